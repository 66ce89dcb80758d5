"""What XLA's buffer assignment says a program needs.

Owns the sums. Knows no executable.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryAnalysis:
    """XLA's buffer assignment for one device, in bytes.

    Attributes:
      peak_bytes: what the device must have free for the program: arguments + results + temporaries - aliases. XLA's
        own `peak_memory_in_bytes` leaves temporaries out on CPU, and differs by padding only on GPU.
      argument_bytes: all arguments.
      output_bytes: all results, those that reuse an argument's buffer included.
      temp_bytes: the arena of intermediate values.
      alias_bytes: results that reuse a donated argument's buffer.
      host_bytes: arguments in the memory of the host, which are none of the above.
    """

    peak_bytes: int
    argument_bytes: int
    output_bytes: int
    temp_bytes: int
    alias_bytes: int
    host_bytes: int = 0

    # As jax spells them.

    @property
    def argument_size_in_bytes(self) -> int:
        """`argument_bytes`."""
        return self.argument_bytes

    @property
    def output_size_in_bytes(self) -> int:
        """`output_bytes`."""
        return self.output_bytes

    @property
    def temp_size_in_bytes(self) -> int:
        """`temp_bytes`."""
        return self.temp_bytes

    @property
    def alias_size_in_bytes(self) -> int:
        """`alias_bytes`."""
        return self.alias_bytes
