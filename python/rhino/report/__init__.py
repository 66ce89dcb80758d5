"""Plans for people: a summary for terminals and a page for browsers. Imports neither jax nor MLIR."""
