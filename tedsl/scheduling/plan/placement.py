"""Where a stage is computed: one placement for each stage.

What a placement says and what it cannot say belong together: a stage at a loop is in the kernel of
that loop and has none of its own, and one that goes along with a reduction is stored where that is.
Imports `expr`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from tedsl.expr.nodes import Axis


class OnlineMode(StrEnum):
    """What a reduction that goes along with another is inside the loop: the result so far; a sum
    scaled up to the whole axis; or a result that stays as it is in most iterations, so that repairs
    that follow it are skipped in those in which none of it changes."""

    EXACT = "exact"
    ESTIMATE = "estimate"
    LAZY = "lazy"


@dataclass(frozen=True, slots=True)
class _Place:
    """What every placement answers: the loop `axis` of the stage `host` that the stage is computed
    in, or whether it is at root or inlined; and the `mode` of one that goes along with a
    reduction."""

    host: str = field(default="", init=False, repr=False)
    axis: Axis | None = field(default=None, init=False, repr=False)
    at_root: bool = field(default=True, init=False, repr=False)
    inlined: bool = field(default=False, init=False, repr=False)
    mode: OnlineMode | None = field(default=None, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Inlined(_Place):
    """Substituted into its readers."""

    at_root: bool = field(default=False, init=False, repr=False)
    inlined: bool = field(default=True, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Own(_Place):
    """In a loop nest of its own, at root."""


AT_ROOT = Own()


@dataclass(frozen=True, slots=True)
class At(_Place):
    """Inside the loop `axis` of the stage `host`: in each iteration, what is read there."""

    host: str
    axis: Axis
    at_root: bool = field(default=False, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Online(_Place):
    """A reduction that goes along with that of `host`: each iteration of `axis` folds the part of
    its axis that `host` folds there."""

    host: str
    axis: Axis
    mode: OnlineMode = OnlineMode.EXACT
    at_root: bool = field(default=False, init=False, repr=False)


Placement = Inlined | Own | At | Online


def at_loop(placement: Placement, host: str, axis: Axis) -> Placement:
    """The same at another loop, for a stage that is computed in one."""
    match placement:
        case At() | Online():
            return replace(placement, host=host, axis=axis)
        case Inlined() | Own():
            return placement
        case _:
            assert_never(placement)
