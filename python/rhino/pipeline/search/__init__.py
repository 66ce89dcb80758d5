"""The joint search: stages x replicas x mesh of a stage x micro-batches x schedule, over one SPMD search each.

Owns what a pipeline costs under a sharding, and which pipelines are tried. Knows neither jax nor MLIR.
"""
