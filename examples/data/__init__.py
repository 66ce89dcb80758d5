"""Text that ships with the examples, read as bytes; see README.md beside this file for its source and licence."""
