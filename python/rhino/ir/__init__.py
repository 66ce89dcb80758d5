"""Modules read as data, and small rewrites that several phases share: what passes and searches both stand on.

Owns the way from MLIR to `rhino.program` and `rhino.pipeline.program`, and errors with places. Runs no pass.
"""
