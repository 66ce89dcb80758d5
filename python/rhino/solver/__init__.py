"""A solver of choices with costs, pairwise costs and memory over time.

It knows nothing of programs, meshes or sharding: the problem is plain numbers (docs/design/solver.md).
"""
