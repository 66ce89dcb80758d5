"""Command-line options that the GPT scripts share, and what they stand for.

Owns choosing devices, the model's size and the data; knows nothing of plans.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax

from examples.data import text
from examples.models.gpt import PRESETS, GPTConfig


def parser(module: str, description: str, steps: int) -> argparse.ArgumentParser:
    """A parser with the shared options; a script may add its own."""
    p = argparse.ArgumentParser(prog=f"python -m examples.{module}", description=description)
    p.add_argument("--preset", choices=sorted(PRESETS), default="10m", help="size of the model (default: 10m)")
    p.add_argument("--batch", type=int, default=8, help="sequences in a batch (default: 8)")
    p.add_argument("--seq", type=int, help="bytes in a sequence (default: 128, or the preset's if shorter)")
    p.add_argument("--steps", type=int, default=steps, help=f"training steps (default: {steps})")
    p.add_argument("--seed", type=int, default=0, help="seed of the parameters and of the data (default: 0)")
    p.add_argument("--bf16", action="store_true", help="compute in bfloat16 (parameters and loss stay float32)")
    p.add_argument("--cpu-devices", type=int, metavar="N", help="run on the CPU, as N virtual devices")
    return p


def use_devices(args: argparse.Namespace) -> None:
    """Apply `--cpu-devices`; call it before anything asks JAX for its devices."""
    if args.cpu_devices:
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", args.cpu_devices)


def model_config(args: argparse.Namespace) -> GPTConfig:
    """The preset, changed as the options say; the vocabulary is always the 256 bytes of the shipped text."""
    preset = PRESETS[args.preset]
    dtype = "bfloat16" if args.bf16 else "float32"
    return dataclasses.replace(preset, vocab=text.VOCAB, dtype=dtype, seq_len=args.seq or min(128, preset.seq_len))


def batches(args: argparse.Namespace, config: GPTConfig, split: str = "train") -> Iterator[dict[str, Any]]:
    """Endless batches of the shipped text, the same ones for the same seed."""
    return text.batches(text.load(split), args.batch, config.seq_len, args.seed)
