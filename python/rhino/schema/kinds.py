"""What a value of a document may be: small composable schemas that check plain data, read it, and describe it.

Owns what is wrong and at which path. Knows no syntax and no document: see `document` for texts, `records` for classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from numbers import Integral, Real
from typing import Any, TypeAlias

from rhino.errors import nearest

Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong at one place of a document.

    Attributes:
      path: keys and positions from the root to the value, or to what lacks something.
      cause: what is said of the value: "must be at least 1, got 0".
      remedy: what to do, where that is more than to give what is meant.
      meant: what the field at this path is for.
    """

    path: Path
    cause: str
    remedy: str = ""
    meant: str = ""

    def at(self, name: str) -> str:
        """The path below a name, and the cause: "rhino.plan.mesh[0] must be ..". Of the root the name alone."""
        return f"{name}{''.join(f'[{k}]' if isinstance(k, int) else f'.{k}' for k in self.path)} {self.cause}"

    def told(self, name: str) -> str:
        """One line: place, cause and remedy."""
        remedy = self.remedy or (self.meant and f"give {self.meant}")
        return f"{self.at(name)}; {remedy}" if remedy else self.at(name)


Faults: TypeAlias = Iterator[Fault]


def suggestion(word: str, known: tuple[str, ...]) -> str:
    """A remedy for an unknown word: its close match if there is one, then what is known."""
    close = nearest(word, known)
    return (f"did you mean {close}? " if close else "") + f"known: {', '.join(known)}"


class Schema:
    """What a value may be: plain data of text, bool, int, float, sequences and mappings with text as keys."""

    def check(self, value: Any, path: Path = ()) -> Faults:
        """The problems of `value`, which is at a path; none if it is valid."""
        raise NotImplementedError

    def normalize(self, value: Any) -> Any:
        """The value with numbers of the kind that is wanted, so that 0 may stand for 0.0, and 8e9 for an integer."""
        return value

    def read(self, value: Any) -> Any:
        """What a valid value stands for: arrays as tuples, records as objects of their class."""
        return value

    def describe(self) -> str:
        """The schema in a few words, for the reference page."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class String(Schema):
    """A string, one of `choices` when there are any; not blank if `filled`."""

    choices: tuple[str, ...] = ()
    filled: bool = False

    def check(self, value: Any, path: Path = ()) -> Faults:
        if not isinstance(value, str):
            yield Fault(path, f"must be a string, got {show(value)}")
        elif self.choices and value not in self.choices:
            yield Fault(path, f"must be one of {', '.join(map(show, self.choices))}, got {show(value)}")
        elif self.filled and not value.strip():
            yield Fault(path, "must not be empty")

    def describe(self) -> str:
        return " or ".join(f'`"{c}"`' for c in self.choices) or "string"


@dataclass(frozen=True, slots=True)
class Bool(Schema):
    """True or false."""

    def check(self, value: Any, path: Path = ()) -> Faults:
        if not isinstance(value, bool):
            yield Fault(path, f"must be true or false, got {show(value)}")

    def describe(self) -> str:
        return "bool"


@dataclass(frozen=True, slots=True)
class Int(Schema):
    """A 64-bit integer, at least `minimum`; or one of a few words."""

    minimum: int | None = None
    words: tuple[str, ...] = ()

    def check(self, value: Any, path: Path = ()) -> Faults:
        if isinstance(value, str) and value in self.words:
            return
        if isinstance(value, bool) or not isinstance(value, Integral):
            yield Fault(path, f"must be {' or '.join(('an integer', *map(show, self.words)))}, got {show(value)}")
        elif self.minimum is not None and value < self.minimum:
            yield Fault(path, f"must be at least {self.minimum}, got {value}")
        elif not -(2**63) <= int(value) < 2**63:
            yield Fault(path, f"must be an integer of 64 bits, got {show(value)}")

    def normalize(self, value: Any) -> Any:
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def describe(self) -> str:
        return "i64" + (f" >= {self.minimum}" if self.minimum is not None else "")


@dataclass(frozen=True, slots=True)
class Version(Schema):
    """The version of a document's form, of which only one is read: it is no part of what the document means."""

    number: int

    def check(self, value: Any, path: Path = ()) -> Faults:
        if isinstance(value, bool) or not isinstance(value, Integral):
            yield Fault(path, f"must be an integer, got {show(value)}")
        elif value != self.number:
            newer = int(value) > self.number
            remedy = "use a newer rhino, or make it again with this one" if newer else "make it again with this rhino"
            yield Fault(path, f"is {value}, but this version of rhino reads {self.number}", remedy)

    def describe(self) -> str:
        return str(self.number)


@dataclass(frozen=True, slots=True)
class Float(Schema):
    """A finite 64-bit float: at least `minimum`, more than `above`, at most `maximum`."""

    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None

    def check(self, value: Any, path: Path = ()) -> Faults:
        if isinstance(value, bool) or not isinstance(value, float) or not isfinite(value):
            yield Fault(path, f"must be a {'finite ' * isinstance(value, float)}float, got {show(value)}")
        elif self.minimum is not None and value < self.minimum:
            yield Fault(path, f"must be at least {self.minimum:g}, got {value:g}")
        elif self.above is not None and value <= self.above:
            yield Fault(path, f"must be above {self.above:g}, got {value:g}")
        elif self.maximum is not None and value > self.maximum:
            yield Fault(path, f"must be at most {self.maximum:g}, got {value:g}")

    def normalize(self, value: Any) -> Any:
        try:
            return float(value) if isinstance(value, Real) and not isinstance(value, bool) else value
        except OverflowError:  # an integer beyond all floats
            return value

    def describe(self) -> str:
        return "f64" + (f" >= {self.minimum:g}" if self.minimum is not None else "")


@dataclass(frozen=True, slots=True)
class ListOf(Schema):
    """An array whose elements all have one schema; not an empty one if `filled`."""

    element: Schema
    filled: bool = False

    def check(self, value: Any, path: Path = ()) -> Faults:
        if not isinstance(value, list | tuple):
            yield Fault(path, f"must be an array, got {show(value)}")
            return
        if self.filled and not value:
            yield Fault(path, "must not be empty")
        for i, element in enumerate(value):
            yield from self.element.check(element, (*path, i))

    def normalize(self, value: Any) -> Any:
        return [self.element.normalize(v) for v in value] if isinstance(value, list | tuple) else value

    def read(self, value: Any) -> Any:
        return tuple(map(self.element.read, value))

    def describe(self) -> str:
        return f"[{self.element.describe()}, ...]"


@dataclass(frozen=True, slots=True)
class TupleOf(Schema):
    """An array of fixed length with a schema per position."""

    elements: tuple[Schema, ...]

    def check(self, value: Any, path: Path = ()) -> Faults:
        if not isinstance(value, list | tuple) or len(value) != len(self.elements):
            yield Fault(path, f"must be {self.describe()}, got {show(value)}")
            return
        for i, (schema, element) in enumerate(zip(self.elements, value, strict=True)):
            yield from schema.check(element, (*path, i))

    def normalize(self, value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(self.elements):
            return value
        return [schema.normalize(element) for schema, element in zip(self.elements, value, strict=True)]

    def read(self, value: Any) -> Any:
        return tuple(schema.read(element) for schema, element in zip(self.elements, value, strict=True))

    def describe(self) -> str:
        return f"[{', '.join(e.describe() for e in self.elements)}]"


@dataclass(frozen=True, slots=True)
class MapOf(Schema):
    """A dictionary whose values all have one schema, with any keys, or with `keys`, which `spell` makes of others."""

    value: Schema
    keys: tuple[str, ...] = ()
    spell: Callable[[str], str] = str

    def check(self, value: Any, path: Path = ()) -> Faults:
        if not isinstance(value, Mapping):
            yield Fault(path, f"must be a dictionary, got {show(value)}")
            return
        spelled: dict[str, str] = {}
        for key, inner in value.items():
            other = spelled.setdefault(self.spell(key), key)
            if self.keys and self.spell(key) not in self.keys:
                yield Fault((*path, key), "is not known", suggestion(key, self.keys))
            elif other != key:
                yield Fault((*path, key), f"is '{other}' again", "remove one of the two")
            else:
                yield from self.value.check(inner, (*path, key))

    def normalize(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {key: self.value.normalize(inner) for key, inner in value.items()}

    def read(self, value: Any) -> Any:
        return {self.spell(key): self.value.read(inner) for key, inner in value.items()}

    def describe(self) -> str:
        return f"{{name = {self.value.describe()}, ...}}"


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a record: its schema, what it means, whether it may be missing, and its name where it is read."""

    schema: Schema
    doc: str
    optional: bool = False
    name: str = ""  # where that is not the key


def _no_rules(value: Any) -> Faults:
    return iter(())


@dataclass(frozen=True, slots=True)
class Record(Schema):
    """A dictionary with known keys.

    Attributes:
      fields: by key.
      extensible: whether there may be other keys, which are neither checked nor read.
      make: what is read becomes of its fields.
      rules: what the fields cannot say, of data whose fields are valid; paths begin at this record.
    """

    fields: Mapping[str, Field] = field(default_factory=dict)
    extensible: bool = False
    make: Callable[..., Any] = dict
    rules: Callable[[Any], Faults] = _no_rules

    def check(self, value: Any, path: Path = ()) -> Faults:
        if not isinstance(value, Mapping):
            yield Fault(path, f"must be a dictionary, got {show(value)}", f"write its keys: {', '.join(self.fields)}")
            return
        found = list(self._check_fields(value, path))
        yield from found
        if not found:
            yield from (replace(problem, path=(*path, *problem.path)) for problem in self.rules(value))

    def _check_fields(self, value: Mapping[str, Any], path: Path) -> Faults:
        # The first: of a misspelt key two things are wrong, and this says both.
        for key in () if self.extensible else value:
            if key not in self.fields:
                yield Fault((*path, key), "is not known", suggestion(key, tuple(self.fields)))
        for key, known in self.fields.items():
            if key in value:
                for problem in known.schema.check(value[key], (*path, key)):
                    yield problem if problem.meant else replace(problem, meant=known.doc)
            elif not known.optional:
                yield Fault(path, f"has no key '{key}'", meant=known.doc)

    def normalize(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {k: self.fields[k].schema.normalize(v) if k in self.fields else v for k, v in value.items()}

    def read(self, value: Any) -> Any:
        known = [(key, one) for key, one in self.fields.items() if key in value and not isinstance(one.schema, Version)]
        return self.make(**{one.name or key: one.schema.read(value[key]) for key, one in known})

    def describe(self) -> str:
        return "{" + ", ".join(key + ("?" if f.optional else "") for key, f in self.fields.items()) + "}"


def show(value: object) -> str:
    """A value as it looks in MLIR text, shortened, for messages."""
    if value is None:
        return "nothing"
    text = f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    text = text.replace("\n", " ")
    return text if len(text) <= 60 else text[:57] + "..."
