"""What the checks of places ask of one stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from tedsl.expr.nodes import AxisKind
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.plan import (
    At,
    Cooperative,
    Inlined,
    LastBlock,
    Online,
    Own,
    Partitioned,
    SameGrid,
    SharedLoops,
    StagePlan,
)


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a stage may not be where it is, what to do, and if a reader outside is the cause."""

    reason: str
    hint: str
    outsiders: bool = False


def first_fold(stage: StagePlan) -> int:
    """The place of the first loop that belongs to the accumulators: a reduce or vectorized one."""
    order = stage.loop_order
    lane = LoopKind.VECTORIZED
    inner = [a.kind is AxisKind.REDUCE or stage.mark(a).kind is lane for a in order]
    return inner.index(True) if True in inner else len(order)


def place_text(stage: StagePlan) -> str:
    """`attached at C.i`, `at root`."""
    place = stage.placement
    match place:
        case Inlined():
            return "inlined"
        case At() | Cooperative() | SharedLoops(at=At()):
            return f"attached at {place.host}.{'' if place.axis is None else place.axis.name}"
        case Online():
            return f"goes along with {place.host}.{place.axis.name}"
        case Own() | SharedLoops() | SameGrid():
            return "at root"
        case LastBlock():
            return f"computed by the last programs of {place.of}"
        case Partitioned():
            return f"stored by {place.head} and {place.tail}"
        case _:
            assert_never(place)
