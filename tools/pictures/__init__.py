"""The pictures of docs/concepts.md, drawn from plans that this library makes: `python -m tools.pictures` writes them.

Each module draws one picture, and its `draw` returns the text of an SVG. Equal plans give equal bytes; a test asserts
that the pictures in the repository are those of the plans made now.
"""
