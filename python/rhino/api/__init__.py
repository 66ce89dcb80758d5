"""`rhino.parallelize` and what it is made of: tracing, binding, pinning, building and calling a step.

Owns what users call. What a plan is, and its file, is in `rhino.plan`.
"""
