"""Values written out as tokens: no two different values are written alike.

Printed IR is no key: two axes may print alike.  Here every node is written out field by field, and
objects with identity (axes, variables, buffers, shared subtrees) are numbered in the order in which
they are met.  Imports nothing of tedsl but `errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, cast

from tedsl.errors import InternalError


class Tokens:
    """Writes dataclasses, tuples, mappings, enums, numbers and text.

    Attributes:
        tokens: what was written.
        nodes: every dataclass that was written, in order, each once.
        opaque: true when one of them says itself what of it counts.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self.tokens: list[str] = []
        self.nodes: list[object] = []  # kept: an id is only good while its object lives
        self.opaque = False

    def __call__(self, value: object) -> None:
        """Write a value."""
        kind = type(value)
        if kind is tuple:
            items = cast("tuple[object, ...]", value)
            self.tokens.append(f"tuple {len(items)}")
            for item in items:
                self(item)
        elif kind is str:
            text = cast("str", value)
            self.tokens.append(f"str {len(text)} {text}")
        elif kind in _PLAIN:
            self.tokens.append(f"{kind.__name__} {value!r}")
        elif has_fields(kind):
            self._node(value)
        else:
            self._other(value)

    def parts(self, node: object) -> Sequence[object]:
        """What is written of a dataclass: its fields."""
        return [getattr(node, name) for name in field_names(type(node))]

    def _other(self, value: object) -> None:
        """What is of a type that is derived from a simple one."""
        match value:
            case Enum():
                self.tokens.append(f"{type(value).__name__}.{value.name}")
            case str():
                self.tokens.append(f"str {len(value)} {value}")
            case bool() | int() | float():
                self.tokens.append(f"{type(value).__name__} {value!r}")
            case tuple():
                self(tuple(cast("tuple[object, ...]", value)))
            case Mapping():
                pairs = cast("Mapping[object, object]", value)
                self.tokens.append(f"map {len(pairs)}")
                for key, item in pairs.items():
                    self(key)
                    self(item)
            case _:
                raise InternalError(f"{type(value).__name__} has no fingerprint")

    def _node(self, node: object) -> None:
        number = self._numbers.get(id(node))
        if number is not None:
            self.tokens.append(f"# {number}")
            return
        self._numbers[id(node)] = len(self._numbers)
        self.nodes.append(node)
        if from_outside(type(node)):
            self.opaque = True
            self(cast("Any", node).fingerprint)
            return
        parts = self.parts(node)
        self.tokens.append(f"{_name(type(node))} {len(parts)}")
        for part in parts:
            self(part)


_PLAIN = frozenset((type(None), bool, int, float))


has_fields = cache(is_dataclass)
"""True for the type of a dataclass."""


@cache
def _name(kind: type) -> str:
    """The dataclass that a type is, or is derived from without fields of its own."""
    return next(c.__qualname__ for c in kind.__mro__ if "__dataclass_fields__" in vars(c))


@cache
def from_outside(kind: type) -> bool:
    """True for functions from outside, which say what of them generated code depends on."""
    return hasattr(kind, "fingerprint")


@cache
def field_names(kind: type) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(field.name for field in fields(kind))
