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
class Kept:
    """A stage at a loop is stored outside of it: inside `axis`, a loop around that one, or without
    it outside all loops of the kernel.  `rolling`: only the window that is read at a time has
    memory."""

    axis: Axis | None = None
    rolling: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """What every placement answers: the loop `axis` of the stage `host` that the stage is computed
    in, or whether it is at root or inlined; the `mode` of one that goes along with a reduction,
    where one is `kept` that is not stored where it is computed, and the loop `program` over the
    programs that compute one together."""

    host: str = field(default="", init=False, repr=False)
    axis: Axis | None = field(default=None, init=False, repr=False)
    at_root: bool = field(default=True, init=False, repr=False)
    inlined: bool = field(default=False, init=False, repr=False)
    mode: OnlineMode | None = field(default=None, init=False, repr=False)
    kept: Kept | None = field(default=None, init=False, repr=False)
    program: Axis | None = field(default=None, init=False, repr=False)


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
    kept: Kept | None = None
    at_root: bool = field(default=False, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Online(_Place):
    """A reduction that goes along with that of `host`: each iteration of `axis` folds the part of
    its axis that `host` folds there."""

    host: str
    axis: Axis
    mode: OnlineMode = OnlineMode.EXACT
    at_root: bool = field(default=False, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Cooperative(_Place):
    """Inside the loop `axis` of the stage `host`, in memory that all programs read: the elements
    along the axis `part` are computed by the programs of the loop `program` around it, one by
    each."""

    host: str
    axis: Axis
    program: Axis
    part: Axis
    at_root: bool = field(default=False, init=False, repr=False)


Placement = Inlined | Own | At | Online | Cooperative


def at_loop(placement: Placement, host: str, axis: Axis) -> Placement:
    """The same at another loop, for a stage that is computed in one."""
    match placement:
        case At() | Online() | Cooperative():
            return replace(placement, host=host, axis=axis)
        case Inlined() | Own():
            return placement
        case _:
            assert_never(placement)


def by_itself(placement: Placement) -> Placement:
    """Where a stage is that a new one takes the place of: at the same loop, stored where it is
    computed and computed by each program."""
    match placement:
        case At() | Cooperative():
            return At(placement.host, placement.axis)
        case Inlined() | Own() | Online():
            return placement
        case _:
            assert_never(placement)
