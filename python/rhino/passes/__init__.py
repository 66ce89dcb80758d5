"""MLIR passes: IR in, IR out. A pass reads the module into plain data, asks the library, and writes the answer back.

Start at `rhino.passes.registry` to define one and at `rhino.passes.pass_manager` to run some.
"""
