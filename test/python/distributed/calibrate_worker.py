"""One process of a job that calibrates: small experiments, through the command."""

from __future__ import annotations

import argparse
import sys

from rhino.cli import cluster as command
from rhino.machine import calibrate
from rhino.machine.effort import Experiments


def main() -> None:
    address, count, index, folder = sys.argv[1:]
    calibrate.CPU = Experiments(32, 1 << 16, (1 << 10, 1 << 16), 0.01, between_bytes=(1 << 10, 1 << 16))
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    job = ["--coordinator", address, "--processes", count, "--process", index]
    words = ["cluster", "calibrate", "-o", f"{folder}/{index}.yaml", "--name", "job", "--json", "-", *job]
    sys.exit(command.run(parser.parse_args(words)))


if __name__ == "__main__":
    main()
