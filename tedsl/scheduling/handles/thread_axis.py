"""What a loop may be bound to: a dimension of the grid, or the lanes of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tedsl.dtypes import DType
from tedsl.errors import ScheduleError
from tedsl.expr.nodes import Expr, Range, Var
from tedsl.expr.promote import make_const

GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")
LANES = ("threadIdx.x", "threadIdx.y", "threadIdx.z")
VIRTUAL = ("vthread",)


@dataclass(frozen=True, slots=True, eq=False)
class ThreadAxis:
    """A grid dimension (`blockIdx.x`) or block axis (`threadIdx.x`), with its extent when that was
    fixed.  `var` is its index, for `Stage.set_store_predicate`.

    One object may be bound in several stages.
    """

    tag: str
    extent: int | None = None
    var: Var = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "var", Var(self.tag, lower=0))

    def equal(self, other: Expr | int) -> Expr:
        """`self.var.equal(other)`: in TVM a thread axis stands for its index."""
        return self.var.equal(other)

    @property
    def dom(self) -> Range | None:
        """The range that was declared."""
        return (
            None
            if self.extent is None
            else Range(make_const(0, DType.int32), make_const(self.extent, DType.int32))
        )

    @property
    def program(self) -> int | None:
        """The grid dimension; None for a block axis."""
        return GRID.index(self.tag) if self.tag in GRID else None

    def __repr__(self) -> str:
        return f"te.thread_axis({self.tag!r})"


def thread_axis(
    dom: str | int | Sequence[int] | None = None, thread_tag: str = "", name: str = ""
) -> ThreadAxis:
    """A thread axis to bind loops to.

    Args:
        dom: the tag when it stands alone (`te.thread_axis("blockIdx.x")`), else the extent or `(0,
            extent)`.
        thread_tag: `blockIdx.x|y|z`, a dimension of the grid; or `threadIdx.x|y|z`, a block axis:
            lanes of the tile that one program holds; or `vthread`, the same (a serial loop on the
            CPU).
        name: accepted for TVM scripts, not used.

    Returns:
        The thread axis; a loop bound to it must have the extent, when one is given.
    """
    if isinstance(dom, str):
        dom, thread_tag = None, dom
    if thread_tag not in (*GRID, *LANES, *VIRTUAL):
        raise ScheduleError(
            f"unknown thread tag {thread_tag!r}",
            primitive="thread_axis",
            subject="thread_axis",
            facts=[("allowed", ", ".join((*GRID, *LANES, *VIRTUAL)))],
            hint="use one of these tags",
        )
    if dom is None or isinstance(dom, int):
        return ThreadAxis(thread_tag, dom)
    low, high = dom
    if low != 0:
        raise ScheduleError(
            f"the range {low} .. {high} of {thread_tag} does not begin at 0",
            primitive="thread_axis",
            subject="thread_axis",
            hint=f"give (0, {high - low})",
        )
    return ThreadAxis(thread_tag, high)


def program_id(axis: int) -> ThreadAxis:
    """Dimension `axis` (0, 1 or 2) of the grid: Triton's name for `blockIdx.x|y|z`."""
    if axis not in (0, 1, 2):
        raise ScheduleError(
            f"the grid has no dimension {axis!r}",
            primitive="program_id",
            subject="program_id",
            facts=[("allowed", "0, 1, 2")],
            hint="fuse loops to use fewer grid dimensions",
        )
    return ThreadAxis(GRID[axis])
