"""Programs that `jax.export` wrote: told apart from other files, read, and settled on one platform.

Owns reading `Exported` through jax. Knows nothing of plans. Loads jax when there is such a file, and not before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir

from rhino.dialect import functions
from rhino.dialect.context import BYTECODE_MAGIC, make_context, parse_bytes, to_bytecode
from rhino.errors import RhinoError, first_line
from rhino.ir.diagnostics import Diagnostic
from rhino.passes.pass_manager import PassManager, native_diagnostics

if TYPE_CHECKING:
    import jax.export

_PLATFORM = "_platform_index"  # the argument of @main that jax fills in with the platform's place in the list


def is_exported(data: bytes) -> bool:
    """Whether bytes may be what `Exported.serialize` wrote: a FlatBuffer around a portable artifact."""
    return not data.startswith(BYTECODE_MAGIC) and b"\0" in data[:64] and BYTECODE_MAGIC in data


def step_of(given: Any) -> Any:
    """What calls the step: the function itself, or of an `Exported` its `call`, under the step's name."""
    import jax.export

    if not isinstance(given, jax.export.Exported):
        return given

    def step(*args: Any, **kwargs: Any) -> Any:
        return given.call(*args, **kwargs)

    step.__name__ = step.__qualname__ = given.fun_name
    return step


def read_exported(data: bytes, where: str, target: str = "") -> bytes:
    """The program in what `Exported.serialize` wrote, as bytecode.

    Args:
      where: what errors call it, a path.
      target: as `rhino.compile` names it; of a program for several platforms, that of the target is kept. Without a
        target their number stays an argument.

    Raises:
      RhinoError: the bytes are damaged, of another version of jax, or of a program for other platforms or more devices.
    """
    try:
        import jax.export

        exported = jax.export.deserialize(bytearray(data))
    except ImportError as error:
        message = f"{where}: a file of jax.export needs the package flatbuffers: {error}"
        raise RhinoError(message, "pip install flatbuffers") from None
    except Exception as error:  # FlatBuffers checks nothing, so that damage shows as any exception
        text = " ".join(str(error).split())[:200]
        message = f"{where}: not a file that this jax's export can read: {type(error).__name__}: {text}"
        raise RhinoError(message, "give the bytes that Exported.serialize() returned") from None
    return program_of(exported, where, target)


def program_of(exported: jax.export.Exported, where: str, target: str = "") -> bytes:
    """The program of an `Exported` as bytecode; see `read_exported`."""
    if exported.nr_devices != 1:
        raise RhinoError(
            f"{where}: exported for {exported.nr_devices} devices", "export the step for one device, without shardings"
        )
    context = make_context()
    said: list[Diagnostic] = []
    try:
        with native_diagnostics(context, said.append):
            module = parse_bytes(exported.mlir_module_serialized, context)
    except ir.MLIRError as error:
        text = said[0].message if said else error
        raise RhinoError(f"{where}: the program in it is damaged: {first_line(text)}", "export it again") from None
    if target:
        _settle(module, _index_of(exported.platforms, target, where))
    return to_bytecode(module)


def _index_of(platforms: Sequence[str], target: str, where: str) -> int:
    if len(platforms) == 1:  # as a module that jax lowered for another platform: what it cannot do, compiling shows
        return 0
    wanted = "cpu" if target == "cpu" else "cuda"
    if wanted not in platforms:
        message = f"{where}: exported for {' and '.join(platforms)}, but {target} needs {wanted}"
        raise RhinoError(message, f"export it with platforms=[{wanted!r}]")
    return platforms.index(wanted)


def _settle(module: ir.Module, platform: int) -> None:
    """Put the platform's number in the place of the argument of that name, and drop what is for other platforms."""
    main = functions.find(module, "main")
    attributes = [] if main is None else functions.argument_attributes(main)
    position = next((i for i, given in enumerate(attributes) if _text(given, "jax.global_constant") == _PLATFORM), None)
    if main is None or position is None:
        return
    block = main.regions[0].blocks[0]
    argument = block.arguments[position]
    value = ir.DenseElementsAttr.get_splat(argument.type, ir.IntegerAttr.get(argument.type.element_type, platform))
    with module.context, ir.Location.unknown():
        constant = ir.Operation.create(
            "stablehlo.constant",
            [argument.type],
            attributes={"value": value},
            ip=ir.InsertionPoint.at_block_begin(block),
        )
        argument.replace_all_uses_with(constant.result)
        block.erase_argument(position)
        kind = ir.FunctionType.get([a.type for a in block.arguments], main.attributes["function_type"].value.results)
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
    functions.set_argument_attributes(main, [given for i, given in enumerate(attributes) if i != position])
    # Functions take the number as an argument too; constants reach them first, then branches are chosen.
    PassManager(module.context).add("sccp").add("canonicalize").run(module)


def _text(attributes: Any, name: str) -> str:
    return str(attributes[name].value) if name in attributes else ""
