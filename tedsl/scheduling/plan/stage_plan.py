"""What a schedule has decided, as immutable data: the input of the lowering.

A `Plan` is never changed; a primitive makes a new one from it, so a refused call leaves nothing
half-done.  Stages are named (`Plan.stages` holds each name once) and refer to each other by name;
axes are objects.  Imports `expr`, `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import TYPE_CHECKING

from tedsl.errors import InternalError, ScheduleError
from tedsl.expr.index_arith import widened
from tedsl.expr.nodes import Axis, AxisKind, Expr
from tedsl.expr.visit import substitute
from tedsl.ir.nodes import Evict, LoopKind, PartPolicy, Products, Scope
from tedsl.once import once
from tedsl.scheduling.plan.following import (
    MayFollow,
    MayHaveFollowed,
    Row,
    has_outputs,
    model_op,
    results,
)
from tedsl.scheduling.plan.links import output_names, places, share_links
from tedsl.scheduling.plan.placement import AT_ROOT, Placement
from tedsl.slips import suggests
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, Tensor

if TYPE_CHECKING:
    from tedsl.tensor.intrin import TensorIntrin


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """parent = outer * extent(inner) + inner.

    With `factor`: extent(inner) = factor, extent(outer) = ceil(extent(parent) / factor).
    With `nparts`: extent(outer) = nparts, extent(inner) = ceil(extent(parent) / nparts).  Exactly
    one is given.
    """

    parent: Axis
    outer: Axis
    inner: Axis
    factor: Expr | None = None
    nparts: Expr | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Fuse:
    """outer = fused // extent(inner), inner = fused % extent(inner)."""

    outer: Axis
    inner: Axis
    fused: Axis


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """`axis` runs once and comes of no other axis."""

    axis: Axis


@dataclass(frozen=True, slots=True, eq=False)
class Skew:
    """parent = skewed - along * step % modulus; extent(skewed) = extent(parent) + modulus - 1,
    or 0.

    `along` is a data axis of the definition, and counts by its value, not by its place in a region.
    """

    parent: Axis
    skewed: Axis
    along: Axis
    step: int
    modulus: int


@dataclass(frozen=True, slots=True, eq=False)
class Scatter:
    """`axis`, a data axis of a reduction, has the value that a condition of the definition equates
    it with, and no loop (`plan/scattered`)."""

    axis: Axis


Relation = Split | Fuse | Unit | Skew | Scatter


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """Positions at which a loop runs in parts, in ascending order."""

    points: tuple[Expr, ...] = ()


NO_CUTS = Cuts()


@dataclass(frozen=True, slots=True)
class Tensorized:
    """A loop that is axis `place` of an intrinsic, which runs with all its axes at once."""

    intrin: TensorIntrin
    place: int


@suggests(ScheduleError, owner="how a loop runs", alias={"bind_thread": "thread"})
@dataclass(frozen=True, slots=True)
class Mark:
    """How one leaf axis runs; `thread` is what a block axis was bound to, `products` (of a reduce
    axis) is of `ir.Accumulate`, the other fields are those of `ir.For`.  A loop that is
    `tensorized` is VECTORIZED too; one that is `descending` is bound to the grid, or runs
    backwards; one that is `implied` is a block axis that the target adds, or runs in turn as the
    target has no atomic update for what it folds."""

    kind: LoopKind = LoopKind.SERIAL
    program: int = 0
    num_stages: int = 0
    flatten: bool = False
    thread: str = ""
    cuts: Cuts = NO_CUTS
    partition: PartPolicy = PartPolicy.AUTO
    products: Products | None = None
    tensorized: Tensorized | None = None
    descending: bool = False
    implied: bool = False

    @property
    def iter_type(self) -> str:
        """TVM's word for it, of those of `te.schedule.IterVar`."""
        if self.tensorized is not None:
            return "tensorized"
        return "thread" if self.thread or self.kind is LoopKind.PROGRAM else self.kind.value


PLAIN = Mark()
"""A serial loop of which nothing was said."""


@dataclass(frozen=True, slots=True, eq=False)
class Align:
    """Elements that follow each other along `axis` stand a multiple of `factor` plus `offset` apart
    in memory."""

    axis: Axis
    factor: int
    offset: int


@dataclass(frozen=True, slots=True, eq=False)
class CallersArray:
    """The array that a caller has of an output in another layout: the element `axes` of the stage
    is at `indices` of `shape`, where `conditions` hold; it has none of the others."""

    axes: tuple[Axis, ...]
    indices: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    conditions: tuple[Expr, ...] = ()

    def place(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Where an element of the stage is."""
        return self._at(indices, self.indices)

    def has(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        """Conditions under which an element of the stage is in the array."""
        return self._at(indices, self.conditions)

    def _at(self, indices: Sequence[Expr], exprs: Sequence[Expr]) -> tuple[Expr, ...]:
        pairs = zip(self.axes, indices, strict=True)
        here: dict[Expr, Expr] = {axis: widened(index, axis.dtype) for axis, index in pairs}
        return tuple(substitute(each, here) for each in exprs)


@dataclass(frozen=True, slots=True, eq=False)
class StagePlan(MayFollow):
    """One operation and how it runs.

    `leaf_axes` are the loops, outermost first.  `relations` join root axes (`op.axes +
    op.reduce_axes`) to them, in the order of the calls.  Axes without an entry in `marks` are
    serial.  `scope` is where the result lives when the stage is attached; at root it is GLOBAL.
    With `atomic` its reduce loops may run in parallel: each iteration adds its part to the result
    in one indivisible step.  `aligned` is how it lies in memory.
    `env` are the threads that a scan launches around its steps, by their tags.
    `evict` says when the caches of a GPU give up what is read and stored of it, and `evict_then`
    when what a kernel reads again and for the last time.
    `array` is what the caller has of an output in another layout.
    """

    name: str
    op: ComputeOp | PlaceholderOp | ExternOp
    leaf_axes: tuple[Axis, ...] = ()
    relations: tuple[Relation, ...] = ()
    marks: Mapping[Axis, Mark] = field(default_factory=dict[Axis, Mark])
    placement: Placement = AT_ROOT
    scope: Scope = Scope.GLOBAL
    atomic: bool = False
    aligned: tuple[Align, ...] = ()
    env: tuple[str, ...] = ()
    evict: Evict = Evict.NORMAL
    evict_then: Evict | None = None
    array: CallersArray | None = None

    @property
    def root_axes(self) -> tuple[Axis, ...]:
        """The axes of the definition: data axes, then reduce axes."""
        op = model_op(self)
        return (*op.axes, *op.reduce_axes) if isinstance(op, ComputeOp) else ()

    @property
    def loop_order(self) -> tuple[Axis, ...]:
        """The leaf axes as they run: vectorized axes are the dimensions of a tile, inside all
        loops.

        Legal for every definition: data axes are independent, and a reduction that is vectorized
        may combine in any order.
        """
        return _loop_order(self)

    def mark(self, axis: Axis) -> Mark:
        """How `axis` runs."""
        return self.marks.get(axis, PLAIN)

    def with_op(self, op: ComputeOp | ExternOp) -> StagePlan:
        """The stage with another operation, which runs in the same way."""
        return StagePlan(self.name, op, *_how_it_runs(self))

    @property
    def scatters(self) -> bool:
        """True for a reduction in which data say into which elements each point is folded."""
        return any(isinstance(each, Scatter) for each in self.relations)

    @property
    def starts_apart(self) -> bool:
        """True for a reduction whose results are initialised by a nest before its own."""
        return self.scatters or bool(self.contended)

    @property
    def contended(self) -> tuple[Axis, ...]:
        """The reduce loops whose iterations run at the same time, outermost first: their parts are
        combined atomically.  Lanes of a tile are combined first, unless data say into which
        elements each of them goes."""
        at_once = [LoopKind.PARALLEL, LoopKind.PROGRAM]
        if self.scatters:
            at_once.append(LoopKind.VECTORIZED)
        reduce_loops = (a for a in self.leaf_axes if a.kind is AxisKind.REDUCE)
        return tuple(a for a in reduce_loops if self.mark(a).kind in at_once)


_how_it_runs = attrgetter(*(each.name for each in fields(StagePlan)[2:]))


@once
def _loop_order(stage: StagePlan) -> tuple[Axis, ...]:
    lane = {a: stage.mark(a).kind is LoopKind.VECTORIZED for a in stage.leaf_axes}
    return (*(a for a in lane if not lane[a]), *(a for a in lane if lane[a]))


@dataclass(frozen=True, slots=True, eq=False)
class Plan(MayHaveFollowed):
    """All stages, producers before readers, and the tensors the user asked for, in the user's
    order.

    `assumptions` are conditions on runtime sizes that hold at every call; the runtime checks them.
    `retired` are axes that stages had before they were rebuilt, each with its stage and the
    primitive that rebuilt it: what a refusal says of a stale handle.
    """

    stages: tuple[StagePlan, ...]
    outputs: tuple[Tensor, ...]
    assumptions: tuple[Expr, ...] = ()
    retired: Mapping[Axis, tuple[str, str]] = field(default_factory=dict[Axis, tuple[str, str]])

    def has(self, name: str) -> bool:
        """True when there is a stage called `name`."""
        return name in places(self).by_name

    def stage(self, name: str) -> StagePlan:
        """The stage called `name`."""
        number = places(self).by_name.get(name)
        if number is not None:
            return self.stage_at(number)
        raise InternalError(
            f"no stage {name!r} in the plan",
            facts=[("stages", ", ".join(s.name for s in self.stages))],
        )

    def stage_at(self, number: int) -> StagePlan:
        """The stage at a place, without a look at all others, which may follow."""
        return self.stages[number] if self.row is None else self.row[number]

    def stage_of(self, op: Operation) -> StagePlan:
        """The stage that computes `op` (the operation as it is now, after rewrites)."""
        number = places(self).by_op.get(op)
        if number is not None:
            return self.stage_at(number)
        raise InternalError(f"operation {op.name!r} has no stage in the plan")

    def with_stages(self, stages: tuple[StagePlan, ...], *, same_outputs: bool = False) -> Plan:
        """The plan with other stages, and with the same outputs: the same objects, or those of the
        stages of the same names."""
        if not (same_outputs or has_outputs(self)):
            return self.with_results(stages, results(self))
        return Plan(stages, self.outputs, self.assumptions, self.retired)

    def with_results(
        self, stages: tuple[StagePlan, ...] | Row, found: tuple[tuple[str, int], ...]
    ) -> Plan:
        """The plan with other stages, whose outputs are of the stages of these names: they are
        looked up when they are asked for."""
        made, put = object.__new__(type(self)), object.__setattr__
        lazily = isinstance(stages, Row)
        if not lazily:
            put(made, "stages", stages)
        put(made, "row", stages if lazily else None)
        put(made, "assumptions", self.assumptions)
        put(made, "retired", self.retired)
        put(made, "found", found)
        put(made, "_found", {})
        return made

    def with_stage(self, changed: StagePlan) -> Plan:
        """The plan with the stage of the same name replaced."""
        number = places(self).by_name[changed.name]
        old = self.stage_at(number)
        if self.row is not None and changed.op is old.op:
            after = self.with_results(self.row.replaced(number, changed), results(self))
        else:
            stages = (*self.stages[:number], changed, *self.stages[number + 1 :])
            gone = changed.name in output_names(self) and changed.op is not old.op
            after = self.with_stages(stages, same_outputs=gone)
        share_links(self, after, old, changed)
        return after
