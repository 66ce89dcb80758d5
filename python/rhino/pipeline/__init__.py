"""Pipelines over plain program data: the cut into stages, the cut program, its schedule, and the search over them all.

Owns nothing itself: its four packages are imported by their own names. None knows jax or MLIR.
"""
