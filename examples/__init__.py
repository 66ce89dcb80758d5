"""Real models written as Flax and Optax users write them, and scripts that scale them with Rhino."""
