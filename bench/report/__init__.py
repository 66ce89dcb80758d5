"""What the benches measured, kept in the repository, and the texts that quote it: `python -m bench.report`."""
