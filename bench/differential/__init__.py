"""Differential tests: programs nobody chose, planned and run on 8 CPU devices, against one device.

`python -m bench.differential --help` says what can be run. `generate` draws StableHLO programs, `steps` training steps,
`harnesses` takes jax's own test programs; `trial` runs one of them on one cluster, `child` does so in a process that
may die, `shrink` cuts what failed down to the operations that matter.
"""
