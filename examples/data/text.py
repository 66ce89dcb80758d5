"""Byte-level batches of the shipped novel: deterministic in (seed, step), so a run can be repeated or resumed.

Owns reading, splitting and sampling on the host; knows nothing of devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

TEXT_PATH = Path(__file__).with_name("pride_and_prejudice.txt")
VOCAB = 256

Bytes = npt.NDArray[np.uint8]
Tokens = npt.NDArray[np.int32]


def load(split: str = "train", path: Path = TEXT_PATH) -> Bytes:
    """The text as uint8[N]: its first nine tenths for `split="train"`, the last tenth for "validation"."""
    text = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    cut = len(text) * 9 // 10
    if split not in ("train", "validation"):
        raise ValueError(f"no split {split!r}: use 'train' or 'validation'")
    return text[:cut] if split == "train" else text[cut:]


def batch_at(text: Bytes, step: int, batch_size: int, seq_len: int, seed: int) -> dict[str, Tokens]:
    """The batch of one step: `tokens` int32[batch_size, seq_len + 1], windows of the text at random offsets."""
    if len(text) <= seq_len:
        raise ValueError(f"sequences of {seq_len} bytes need a longer text than {len(text)} bytes")
    starts = np.random.default_rng((seed, step)).integers(len(text) - seq_len, size=batch_size)
    return {"tokens": text[starts[:, None] + np.arange(seq_len + 1)].astype(np.int32)}


def batches(text: Bytes, batch_size: int, seq_len: int, seed: int, first_step: int = 0) -> Iterator[dict[str, Tokens]]:
    """Endless batches of `batch_at`, from `first_step` on."""
    step = first_step
    while True:
        yield batch_at(text, step, batch_size, seq_len, seed)
        step += 1
