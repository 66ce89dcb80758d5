"""One process of several, each a host: random reshardings between their devices."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import exchange_cases
import jax


def main() -> None:
    """Arguments: address, processes, number, how many cases, seed."""
    jax.distributed.initialize(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    count, seed = int(sys.argv[4]), int(sys.argv[5])
    host_of = {device.id: device.process_index for device in jax.devices()}
    for number, case in enumerate(exchange_cases.cases(count, seed)):
        exchange_cases.check(case, jax.devices(), host_of, number)
    exchange_cases.check_keys(jax.devices(), host_of)
    print(f"{count} cases are right", flush=True)


if __name__ == "__main__":
    main()
