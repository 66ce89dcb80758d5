"""The only file that may use Orbax's private modules; each use says why. Tried on orbax-checkpoint 0.12.8.

Owns the check that Orbax is there and is one of the versions this was written for.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

from rhino.errors import RhinoError

_WANTED = "orbax-checkpoint>=0.12.8,<0.13"

try:
    import orbax.checkpoint as ocp
    import tensorstore

    # The loop that writes arrays which are in host memory already: Orbax has no public function between "a jax.Array
    # with shards in every process" and writing every file by hand.
    from orbax.checkpoint._src.metadata.array_metadata import RANDOM_KEY_IMPL
    from orbax.checkpoint._src.metadata.array_metadata_store import Store
    from orbax.checkpoint._src.serialization.jax_array_handlers import (
        _async_serialize_replica_slices as write_arrays,
    )
    from orbax.checkpoint._src.serialization.jax_array_handlers import (
        _async_serialize_shardings as write_shardings,
    )
    from orbax.checkpoint._src.serialization.limits import reserved_bytes
except ImportError as error:
    try:
        found = f"is {metadata.version('orbax-checkpoint')}"
    except metadata.PackageNotFoundError:
        found = "is not installed"
    raise RhinoError(
        f"checkpoints need {_WANTED}, and orbax-checkpoint {found} ({error})", "pip install 'rhino-jax[checkpoint]'"
    ) from None

__all__ = [
    "RANDOM_KEY_IMPL",
    "Store",
    "ocp",
    "reserved_bytes",
    "tensorstore",
    "type_handlers",
    "write_arrays",
    "write_shardings",
]

type_handlers: Any = ocp.type_handlers
