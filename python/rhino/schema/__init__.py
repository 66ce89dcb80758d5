"""Documents of plain data, such as plans and clusters: each described once, and checked, read and written by that.

Owns what a value may be, what is wrong with one and where, and the syntax of JSON and YAML. Knows no document.
"""
