"""Where a stage is computed: one placement for each stage.

What a placement says and what it cannot say belong together: a stage at a loop is in the kernel of
that loop and has none of its own, and one that goes along with a reduction is stored where that is.
Imports `expr` and the plan of a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import assert_never

from tedsl.expr.nodes import Axis, Expr
from tedsl.scheduling.plan.kernel_plan import PLAIN_KERNEL, KernelPlan


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
    where one is `kept` that is not stored where it is computed, its `kernel`, and the loop
    `program` over the programs that compute one together; the `leader` that one runs together with,
    the stage `of` whose last programs compute one, the `head` that stores a part of one, and the
    stage whose result is `home` of one."""

    host: str = field(default="", init=False, repr=False)
    axis: Axis | None = field(default=None, init=False, repr=False)
    at_root: bool = field(default=True, init=False, repr=False)
    inlined: bool = field(default=False, init=False, repr=False)
    mode: OnlineMode | None = field(default=None, init=False, repr=False)
    kept: Kept | None = field(default=None, init=False, repr=False)
    kernel: KernelPlan = field(default=PLAIN_KERNEL, init=False, repr=False)
    program: Axis | None = field(default=None, init=False, repr=False)
    leader: str = field(default="", init=False, repr=False)
    of: str = field(default="", init=False, repr=False)
    head: str = field(default="", init=False, repr=False)
    home: str = field(default="", init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Inlined(_Place):
    """Substituted into its readers."""

    at_root: bool = field(default=False, init=False, repr=False)
    inlined: bool = field(default=True, init=False, repr=False)


@dataclass(frozen=True, slots=True)
class Own(_Place):
    """In a loop nest of its own, at root: in a kernel that has its name.  `home` is a stage whose
    result it initialises, and in which it is stored."""

    kernel: KernelPlan = PLAIN_KERNEL
    home: str = ""


AT_ROOT = Own()


@dataclass(frozen=True, slots=True)
class At(_Place):
    """Inside the loop `axis` of the stage `host`: in each iteration, what is read there.  What is
    at the steps of a scan that are launched one by one has a `kernel`."""

    host: str
    axis: Axis
    kept: Kept | None = None
    kernel: KernelPlan = PLAIN_KERNEL
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


@dataclass(frozen=True, slots=True)
class SharedLoops(_Place):
    """Together with `leader`, whose loops down to `down_to` its own outer loops are, by position:
    where that is, at root or both `at` one loop."""

    leader: str
    down_to: Axis
    at: At | None = None

    def __post_init__(self) -> None:
        if self.at is not None:
            for name in ("host", "axis", "kept", "at_root"):
                object.__setattr__(self, name, getattr(self.at, name))


@dataclass(frozen=True, slots=True)
class SameGrid(_Place):
    """In the kernel of `leader`, in programs of its own beside those; `home` as of `Own`."""

    leader: str
    home: str = ""


@dataclass(frozen=True, slots=True)
class LastBlock(_Place):
    """In the kernel of the stage `of`, by the last of the programs there that feed a tile of it: a
    last-block reduction."""

    of: str


@dataclass(frozen=True, slots=True)
class Partitioned(_Place):
    """Stored by two other stages: `head` what lies before `position` of its data axis number `dim`,
    `tail` the rest.  It has no loops of its own."""

    head: str
    tail: str
    dim: int
    position: Expr


Placement = (
    Inlined | Own | At | Online | Cooperative | SharedLoops | SameGrid | LastBlock | Partitioned
)


def at_loop(placement: Placement, host: str, axis: Axis) -> Placement:
    """The same at another loop, for a stage that is computed in one."""
    match placement:
        case At() | Online() | Cooperative():
            return replace(placement, host=host, axis=axis)
        case SharedLoops(at=At() as at):
            return replace(placement, at=replace(at, host=host, axis=axis))
        case Inlined() | Own() | SharedLoops() | SameGrid() | LastBlock() | Partitioned():
            return placement
        case _:
            assert_never(placement)


def stored(placement: Placement, kept: Kept | None) -> Placement | None:
    """The same for a stage that is stored elsewhere; None where it cannot be."""
    match placement:
        case At():
            return replace(placement, kept=kept)
        case SharedLoops(at=At() as at):
            return replace(placement, at=replace(at, kept=kept))
        case Inlined() | Own() | Online() | Cooperative():
            return None
        case SharedLoops() | SameGrid() | LastBlock() | Partitioned():
            return None
        case _:
            assert_never(placement)


def by_itself(placement: Placement) -> Placement:
    """Where a stage is that a new one takes the place of: at the same loop or at root, run with no
    other, stored where it is computed and computed by each program."""
    match placement:
        case (At() as at) | SharedLoops(at=At() as at):
            return replace(at, kept=None)
        case Cooperative():
            return At(placement.host, placement.axis)
        case Inlined() | Own() | Online():
            return placement
        case SharedLoops() | SameGrid() | LastBlock() | Partitioned():
            return AT_ROOT
        case _:
            assert_never(placement)
