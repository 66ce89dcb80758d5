"""Cross-mesh resharding: from the tiles of one mesh to those of another, between hosts, at the network's bound.

Plans messages and proves bounds; running them is the runtime's. Imports neither jax nor MLIR.
"""
