"""Write an example's training step as StableHLO, ready for `rhino plan` and `rhino-opt`.

    python -m examples.export gpt --preset 1.3b --batch 64 --seq 2048 --remat -o gpt.mlir
    python -m examples.export llama --preset llama2-7b --scan --remat --attention cudnn --platform h100 -o llama.mlir

Everything is traced over abstract shapes, so the 175 B model needs no more memory than its text.
"""

from __future__ import annotations

import argparse
import ast
import collections
import dataclasses
import functools
import importlib
import inspect
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from examples.models import MODELS


def argument_names(function: Callable[..., Any], args: tuple[Any, ...]) -> list[str]:
    """Names of the flat arguments of `function(*args)`, as JAX prints them: `state.params['wpe']`."""
    import jax

    parameters = inspect.signature(function).parameters
    return [
        name + jax.tree_util.keystr(path)
        for name, arg in zip(parameters, args, strict=True)
        for path, _ in jax.tree_util.tree_flatten_with_path(arg)[0]
    ]


def lower(train_step: Callable[..., Any], *args: Any, platform: str = "") -> Any:
    """StableHLO module of `train_step(state, batch)` with the state donated and every argument kept and named.

    `platform` is what JAX lowers for: "cpu", "cuda", or a GPU that need not be here, "h100" for one; by default what it
    runs on. "cuda" is the GPU that is here, or else an H100.
    The names are `rhino.name` attributes rather than locations: text with all locations is half as large again.
    """
    import jax
    from jaxlib.mlir import ir

    from rhino.compile import as_on

    # Of a function of its own: jax remembers what it traced, and a trace may depend on the GPU.
    @functools.wraps(train_step)
    def step(*args: Any) -> Any:
        return train_step(*args)

    jitted = jax.jit(step, donate_argnums=(0,), keep_unused=True)
    platforms = {"": None, "cpu": ("cpu",)}.get(platform, ("cuda",))
    target = platform or ("cuda" if jax.default_backend() == "gpu" else "cpu")
    with as_on("h100" if target == "cuda" else target):
        module = jitted.trace(*args).lower(lowering_platforms=platforms).compiler_ir("stablehlo")
    main = next(op for op in module.body.operations if getattr(op, "sym_name", None) and op.sym_name.value == "main")
    names = argument_names(train_step, args)
    with module.context:
        main.arg_attrs = ir.ArrayAttr.get(
            [
                ir.DictAttr.get({a.name: a.attr for a in attrs} | {"rhino.name": ir.StringAttr.get(name)})
                for attrs, name in zip(main.arg_attrs, names, strict=True)
            ]
        )
    return module


def walk(op: Any) -> Iterator[Any]:
    """Every operation nested in `op`, in program order."""
    for region in op.regions:
        for block in region:
            for inner in block:
                yield inner.operation
                yield from walk(inner.operation)


def count_ops(module: Any) -> dict[str, int]:
    """Number of operations by name, the most frequent first."""
    counts = collections.Counter(op.name for op in walk(module.operation))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def bound_calls(module: Any) -> int:
    """Number of calls whose partitioner is a callback of this process: no other can plan or compile them.

    JAX makes them where a step is lowered over several devices; over one it inlines what they compute.
    """
    return sum(
        op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == "CustomSPMDPartitioning"
        for op in walk(module.operation)
    )


def write(module: Any, path: Path, debug_info: bool = False) -> int:
    """Write `module` as bytecode if `path` ends in `.mlirbc`, else as text; returns the size in bytes."""
    if path.suffix == ".mlirbc":
        with path.open("wb") as file:
            module.operation.write_bytecode(file)
    else:
        path.write_text(module.operation.get_asm(enable_debug_info=debug_info))
    return path.stat().st_size


def setting(text: str) -> tuple[str, Any]:
    """`NAME=VALUE` as a field's name and value: a Python literal, or else the text itself."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE, such as layers=4")
    try:
        return name.replace("-", "_"), ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name.replace("-", "_"), value


def build(args: argparse.Namespace) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The training step that the options describe, and its abstract inputs."""
    try:
        model = importlib.import_module(f"examples.models.{args.model}")
    except ModuleNotFoundError as error:
        raise SystemExit(f"the {args.model} model needs {error.name}: pip install {error.name}") from None
    if args.preset not in model.PRESETS:
        raise SystemExit(f"no preset {args.preset!r} of {args.model}; it has: {', '.join(model.PRESETS)}")
    config = model.PRESETS[args.preset]
    names = ("remat", "scan", "tied", "fused", "routing", "attention")
    changes = {name: getattr(args, name) for name in names}
    changes["dtype"] = {"bf16": "bfloat16", "f32": "float32", None: None}[args.dtype]
    # A position table must be as long as the sequences are.
    changes["seq_len"] = args.seq
    changes = {name: value for name, value in changes.items() if value is not None} | dict(args.set)
    fields = {field.name for field in dataclasses.fields(config)}
    if unknown := sorted(changes.keys() - fields):
        raise SystemExit(f"the {args.model} model has no option {', '.join(unknown)}; drop it from the command line")
    try:
        config = dataclasses.replace(config, **changes)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    if getattr(config, "attention", "") == "cudnn" and args.platform in ("", "cpu"):
        raise SystemExit("attention 'cudnn' is a kernel of GPUs: say which, such as --platform h100")
    _, train_step = model.make_train_step(config)
    return train_step, model.abstract_inputs(config, args.batch or model.BATCH[args.preset])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(prog="python -m examples.export", description=__doc__.splitlines()[0])
    p.add_argument("model", choices=MODELS)
    p.add_argument("--preset", default="tiny", help="size of the model (default: tiny)")
    p.add_argument("--batch", type=int, help="global batch size (default: the preset's)")
    p.add_argument("--seq", type=int, help="sequence length (default: the preset's)")
    p.add_argument("--dtype", choices=("bf16", "f32"), help="compute type (default: the preset's)")
    flag = argparse.BooleanOptionalAction
    p.add_argument("--remat", action=flag, help="recompute each layer in the backward pass")
    p.add_argument("--scan", action=flag, help="one loop over stacked layers instead of one after the other")
    p.add_argument("--tied", action=flag, help="share the embedding with the output layer (gpt)")
    p.add_argument("--fused", action=flag, help="one matrix for query, key and value, or gate and up (gpt, llama)")
    p.add_argument("--routing", choices=("einsum", "sort", "ragged"), help="how tokens reach experts (moe)")
    p.add_argument("--attention", choices=("xla", "cudnn"),
                   help="products and a softmax, or cuDNN's kernel (models with attention, but clip)")  # fmt: skip
    p.add_argument("--set", type=setting, action="append", default=[], metavar="NAME=VALUE",
                   help="any other field of the model's configuration, such as layers=4; may be repeated")  # fmt: skip
    p.add_argument("--platform", default="", choices=("cpu", "cuda", "v100", "a100", "h100", "h200", "b200"),
                   help="what JAX lowers for, here or not (cuda: the GPU of this machine, or else h100)")  # fmt: skip
    p.add_argument("--debug-info", action="store_true", help="also print JAX's source locations (text only)")
    p.add_argument("-o", "--output", type=Path, required=True, help="FILE.mlir for text, FILE.mlirbc for bytecode")
    return p


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    args = parser().parse_args(argv)
    start = time.perf_counter()
    train_step, inputs = build(args)
    try:
        module = lower(train_step, *inputs, platform=args.platform)
    except NotImplementedError as error:  # what a kernel does not do
        raise SystemExit(f"{args.model} cannot be lowered for {args.platform or 'this machine'}: {error}") from None
    size_bytes = write(module, args.output, args.debug_info)
    counts = count_ops(module)
    top = ", ".join(f"{count} {name.removeprefix('stablehlo.')}" for name, count in list(counts.items())[:5])
    print(f"{args.output}: {sum(counts.values()):,} ops ({top}, ...), {size_bytes / 1e6:.1f} MB, "
          f"{time.perf_counter() - start:.1f} s")  # fmt: skip
    if bound := bound_calls(module):
        print(f"{args.output}: {bound} calls are partitioned by callbacks of this process; no other can plan the file, "
              "rhino.parallelize in this one can")  # fmt: skip


if __name__ == "__main__":
    # Tracing needs no accelerator, and starting one takes seconds; a choice made by the user stands.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
