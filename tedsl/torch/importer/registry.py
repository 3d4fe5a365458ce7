"""Which operators of PyTorch are taken, and by which function.

The table of the documentation is made from it (`importer.table`).  Imports `elements` and
`importer.context`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from tedsl.torch.elements.value import Value

Converted: TypeAlias = "Value | tuple[Value, ...]"
Converter: TypeAlias = Callable[..., Converted]
"""From the context and the arguments in the order of the schema, defaults filled in, to values."""


class Family(StrEnum):
    """What kind of loop nest an operator is."""

    POINTWISE = "pointwise"
    VIEW = "views and copies"
    REDUCTION = "reductions"
    PRODUCT = "products"
    CONVOLUTION = "convolutions"
    POOL = "pools"
    INDEXING = "indexing"
    CREATION = "creation"
    CAST = "casts"
    SCAN = "running sums"


MOVES = (Family.VIEW, Family.CREATION)
"""Families that compute nothing."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One overload that is taken; `limits` says of what arguments only."""

    target: Any
    convert: Converter
    family: Family
    limits: str = ""


REGISTRY: dict[Any, Entry] = {}


def takes(family: Family, *targets: Any, limits: str = "") -> Callable[[Converter], Converter]:
    """Register a converter for overloads of operators."""

    def register(convert: Converter) -> Converter:
        for target in targets:
            REGISTRY[target] = Entry(target, convert, family, limits)
        return convert

    return register


def entry_of(target: object) -> Entry | None:
    """The entry of an operator, None where there is none."""
    return REGISTRY.get(target)
