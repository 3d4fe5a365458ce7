"""The nests of a reduction: start the accumulators, fold, store the results; and the steps of
online stages, which go along with the loop of another reduction.

Part of `build_nests`; imports `places` and `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tedsl.dtypes import DType
from tedsl.errors import InternalError, LowerError
from tedsl.expr.integers import add, constant, minimum, sub
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    Reduce,
)
from tedsl.expr.tensor import ComputeOp
from tedsl.expr.visit import axes_of, substitute
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    DEFAULT_PRODUCTS,
    Accumulate,
    Allocate,
    Buffer,
    For,
    Guard,
    Load,
    LoopKind,
    Scope,
    Seq,
    Stmt,
    Store,
)
from tedsl.lower.places import (
    Context,
    carried,
    companions,
    guarded,
    loops,
    lowered,
    output_indices,
    tensor_call,
)
from tedsl.scheduling.bounds import StageBounds
from tedsl.scheduling.plan import AttachKind, StagePlan
from tedsl.scheduling.together import running

# A reduction accumulates in registers or stack up to this many elements; a longer row of
# results is accumulated where it is stored.
MAX_ACCUMULATORS = 1 << 16


def reduction_of(context: Context, stage: StagePlan) -> Reduction:
    """The parts of the nest of a stage that is a reduction."""
    first = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    if not isinstance(stage.op, ComputeOp) or not isinstance(first, Reduce):
        raise InternalError(f"{stage.name} is no reduction")
    return Reduction(context, stage, stage.op, first, context.bounds[stage.name])


@dataclass(slots=True)
class Reduction:
    """The three nests of a reduction: start the accumulators, fold, store the results.

    In an atomic one each iteration of the contended loops has accumulators of its own, which are
    combined with the results; these have been started before, by another nest.
    """

    context: Context
    stage: StagePlan
    op: ComputeOp
    reduce: Reduce
    bounds: StageBounds
    prefix: tuple[Axis, ...] = ()
    rest: tuple[Axis, ...] = ()
    data: tuple[Axis, ...] = ()
    kinds: dict[Axis, AxisKind] = field(default_factory=dict[Axis, AxisKind])
    accumulators: tuple[Buffer, ...] = ()

    def __post_init__(self) -> None:
        """Loops before the first reduction loop (or tile) are shared, later ones the
        accumulators'; contended loops, and what is around them, are shared."""
        order, run = self.stage.loop_order, running(self.context.plan, self.stage)
        lane = LoopKind.VECTORIZED
        inner = [a.kind is AxisKind.REDUCE or self.stage.mark(a).kind is lane for a in order]
        contended = set(self.stage.contended)
        begin = max((n + 1 for n, axis in enumerate(order) if axis in contended), default=0)
        first = inner.index(True, begin) if True in inner[begin:] else len(order)
        self.prefix, self.rest = run[:first], run[first:]
        self.kinds = {axis: own.kind for axis, own in zip(run, order, strict=True)}
        extents = self.bounds.extents
        self.data = tuple(
            a for a in self.rest if self.kinds[a] is AxisKind.DATA and constant(extents[a]) != 1
        )

    def nest(self, depth: int = 0) -> Stmt:
        """All three, with what online stages carry through the loops; of the nest inside the
        `depth` outermost loops only the fold where those include loops of the accumulators."""
        guards = self._guards(inside=False)
        if depth > len(self.prefix):
            fold = self._fold(*self._targets(), depth - len(self.prefix))
            return guarded(guards, fold)
        body = self.around(self._fold(*self._targets()))
        stored = [
            member.export()
            for each in companions(self.context, self.stage)
            if (member := reduction_of(self.context, each)).is_exported
        ]
        body = Seq((body, *stored)) if stored else body
        if self.stage.attach.kind is AttachKind.ROOT:  # else beside the buffers of the stage
            for buffer in reversed(carried(self.context, self.stage)):
                body = Allocate(buffer, body)
        return loops(self.context, self.stage, self.prefix[depth:], body, guards)

    def step(self) -> Stmt:
        """One iteration of an online stage: keep the results so far, repair them, fold on."""
        buffers = self.context.folded[self.stage.name]
        indices = output_indices(self.stage, self.op, self.bounds)
        stores: list[Stmt] = [
            Store(self.context.before[shown], indices, Load(shown, indices))
            for shown in self._shown().values()
        ]
        keep = self._copied(stores[0] if len(stores) == 1 else Seq(tuple(stores)))
        parts = [keep, *self._repaired(buffers, indices), self._fold(buffers, indices)]
        parts.extend(self._estimated(buffers, indices))
        guards = self._guards(inside=False)
        return loops(self.context, self.stage, self.prefix, Seq(tuple(parts)), guards)

    def start(self) -> Stmt:
        """The accumulators of an online stage before the first iteration."""
        buffers = self.context.folded[self.stage.name]
        indices = output_indices(self.stage, self.op, self.bounds)
        guards = [g for g in self.bounds.guards if not self._is_fold_guard(g)]
        guards = guards if self.reduce.init is not None else []
        starts: list[Stmt] = [self._copied(self._starts(buffers, indices, guards))]
        for place, shown in self._shown().items():
            if buffers[place] is not shown:  # an estimate of nothing, should the loop never run
                zero = Const(0.0, shown.dtype)
                starts.append(self._copied(Store(shown, indices, zero)))
        start = starts[0] if len(starts) == 1 else Seq(tuple(starts))
        copies: dict[Expr, Expr] = {a: _copy(a) for a in self.prefix}
        return self._around(_renamed(start, copies), self.prefix, copies)

    @property
    def is_atomic(self) -> bool:
        """True when iterations that run at the same time combine their parts with one result."""
        return bool(self.stage.contended)

    @property
    def is_exported(self) -> bool:
        """True when the results are also stored for other kernels or the caller."""
        return self.op.outputs[0] in self.context.exports

    def export(self) -> Stmt:
        """Store what an online stage has folded."""
        local = output_indices(self.stage, self.op, self.bounds)
        whole = tuple(self.bounds.index[axis] for axis in self.op.axes)
        stores: list[Stmt] = [
            Store(self.context.exports[tensor], whole, Load(self.context.buffers[tensor], local))
            for tensor in self.op.outputs
        ]
        guards = [g for g in self.bounds.guards if not self._is_fold_guard(g)]
        axes = (*self.prefix, *self.data)
        copies: dict[Expr, Expr] = {a: _copy(a) for a in axes}
        return self._around(_renamed(guarded(guards, Seq(tuple(stores))), copies), axes, copies)

    def _shown(self) -> dict[int, Buffer]:
        """The buffers that readers see, by their place in the reducer's tuple."""
        pairs = zip(self._reduces(), self.op.outputs, strict=True)
        return {body.index: self.context.buffers[tensor] for body, tensor in pairs}

    def _estimated(self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...]) -> list[Stmt]:
        """What readers see of partial sums: S * (all elements / those folded so far)."""
        stores: list[Stmt] = []
        for place, shown in self._shown().items():
            buffer = buffers[place]
            if buffer is not shown:
                ratio = self._ratio(buffer.dtype)
                value = Binary(BinaryOp.MUL, Load(buffer, indices), ratio)
                stores.append(Store(shown, indices, value))
        return [self._copied(Seq(tuple(stores)))] if stores else []

    def _ratio(self, dtype: DType) -> Expr:
        (axis,) = self.op.reduce_axes
        part = self.bounds.slices[axis]
        if axis.domain is None:
            raise InternalError(f"reduce axis {axis.name} has no domain")
        end = sub(add(part.min, part.extent), axis.domain.min)
        done = simplify(minimum(end, axis.domain.extent), self.bounds.facts)
        return Binary(BinaryOp.DIV, Cast(axis.domain.extent, dtype), Cast(done, dtype))

    def _guards(self, *, inside: bool) -> tuple[Expr, ...]:
        """The guards that depend on the accumulators' loops, or those that do not."""
        rest = frozenset(self.rest)
        return tuple(g for g in self.bounds.guards if inside != axes_of(g).isdisjoint(rest))

    def _is_fold_guard(self, guard: Expr) -> bool:
        """True when a guard depends on a reduction axis, so that it is not one of the results."""
        kinds = (self.kinds.get(axis, axis.kind) for axis in axes_of(guard))
        return any(kind is AxisKind.REDUCE for kind in kinds)

    def _own_outputs(self) -> tuple[Buffer, ...] | None:
        """The output buffers in the reducer's order, when the fold may work in them directly."""
        by_value = {body.index: t for body, t in zip(self._reduces(), self.op.outputs, strict=True)}
        if sorted(by_value) != list(range(len(self.reduce.sources))):
            return None
        attached = self.stage.attach.kind is AttachKind.AT
        whole = [i for i in output_indices(self.stage, self.op, self.bounds) if constant(i) != 0]
        same = len(whole) == len(self.data) and set(whole) == set(self.data)
        direct = (attached and same) or (self.is_atomic and not self.rest)
        if direct or not self._fits():
            return tuple(self.context.buffers[by_value[i]] for i in range(len(by_value)))
        return None

    def _reduces(self) -> tuple[Reduce, ...]:
        return tuple(body for body in self.op.bodies if isinstance(body, Reduce))

    def _fits(self) -> bool:
        total = 1
        for axis in self.data:
            extent = constant(self.bounds.extents[axis])
            if extent is None:
                return False
            total *= extent
        return total <= MAX_ACCUMULATORS

    def _targets(self) -> tuple[tuple[Buffer, ...], tuple[Expr, ...]]:
        """The buffers that are folded into, and where."""
        outputs = self._own_outputs()
        if outputs is not None:
            return outputs, output_indices(self.stage, self.op, self.bounds)
        if not self.accumulators:
            self.accumulators = self._made_accumulators()
        return self.accumulators, self.data

    def _made_accumulators(self) -> tuple[Buffer, ...]:
        if not self._fits():
            raise LowerError(
                f"the accumulators of {self.stage.name} have no constant size",
                facts=[("loops", ", ".join(a.name for a in self.data))],
                hint="split the data loops inside the reduction by constants",
            )
        shape = tuple(self.bounds.extents[a] for a in self.data)
        many = len(self.reduce.sources) > 1
        return tuple(
            Buffer(f"{self.stage.name}_acc{i if many else ''}", s.dtype, shape, Scope.LOCAL)
            for i, s in enumerate(self.reduce.sources)
        )

    def around(self, fold: Stmt, outer: Sequence[Expr] = ()) -> Stmt:
        """The start before `fold` and what comes after it, both under the guards `outer`."""
        buffers, indices = self._targets()
        guards = [g for g in self._guards(inside=True) if not self._is_fold_guard(g)]
        own = buffers is not self.accumulators
        if own and self.is_atomic:
            return fold
        start_guards = guards if own or self._start_values() is self.reduce.init else []
        start = self._copied(self._starts(buffers, indices, start_guards))
        parts = [guarded(outer, start), *self._companions_start(), fold]
        if own and self.reduce.finish is not None:
            value = self._finished([Load(b, indices) for b in buffers], 0)
            end = self._copied(guarded(guards, Store(buffers[0], indices, value)))
            parts.append(guarded(outer, end))
        if not own:
            end = self._copied(guarded(guards, Seq(tuple(self._results_stored()))))
            parts.append(guarded(outer, end))
        body: Stmt = Seq(tuple(parts))
        for buffer in reversed(self.accumulators):
            body = Allocate(buffer, body)
        return body

    def outer_guards(self) -> tuple[Expr, ...]:
        """The guards of the loops outside the accumulators."""
        return self._guards(inside=False)

    def _results_stored(self) -> list[Stmt]:
        if self.is_atomic:
            (part,) = self.accumulators
            (result,) = (self.context.buffers[tensor] for tensor in self.op.outputs)
            where = output_indices(self.stage, self.op, self.bounds)
            values = (Load(part, self.data),)
            return [Accumulate((result,), where, self.reduce.reducer, values, atomic=True)]
        return [
            Store(
                self.context.buffers[tensor],
                output_indices(self.stage, self.op, self.bounds),
                self._finished([Load(a, self.data) for a in self.accumulators], body.index),
            )
            for tensor, body in zip(self.op.outputs, self._reduces(), strict=True)
        ]

    def _start_values(self) -> tuple[Expr, ...]:
        """What an accumulator starts from: the parts of an atomic reduction from nothing."""
        init = None if self.is_atomic else self.reduce.init
        return init or self.reduce.reducer.identity

    def _starts(
        self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...], guards: Sequence[Expr]
    ) -> Stmt:
        """The identity, or `init=`, into every accumulator."""
        values = self._start_values()
        stores = [
            Store(buffer, indices, lowered(self.context, value, self.bounds))
            for buffer, value in zip(buffers, values, strict=True)
        ]
        return guarded(guards, Seq(tuple(stores)))

    def _fold(
        self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...], skipped: int = 0
    ) -> Stmt:
        """The update in its loops, less the `skipped` outermost of them."""
        where = self.reduce.where
        mask = None if where is None else lowered(self.context, where, self.bounds)
        values = tuple(lowered(self.context, s, self.bounds) for s in self.reduce.sources)
        marks = [self.stage.mark(a).products for a in self.stage.leaf_axes]
        products = next((p for p in marks if p is not None), DEFAULT_PRODUCTS)
        call = tensor_call(self.context, self.stage, self.op, self.bounds)
        atomic = self.is_atomic and buffers is not self.accumulators
        if atomic and call is not None:
            raise LowerError(
                f"{call.intrin.name} cannot combine its results with {self.stage.name} atomically",
                hint="split the data loops inside the reduction by constants, so that parts are "
                "folded in registers",
            )
        given = self.reduce.reducer, values, mask, (), products, call, atomic
        update = Accumulate(buffers, indices, *given)
        guards = self._guards(inside=True)
        repairs = [] if self.stage.attach.online else self._repaired(buffers, indices)
        if not repairs:
            return loops(self.context, self.stage, self.rest[skipped:], update, guards)
        at = self._online_place() + 1
        head, tail = self.rest[:at], self.rest[at:]
        deep = {g for g in guards if not axes_of(g).isdisjoint(tail)}
        fold = loops(self.context, self.stage, tail, update, [g for g in guards if g in deep])
        body = Seq((*repairs, fold))
        return loops(self.context, self.stage, head, body, [g for g in guards if g not in deep])

    def _online_place(self) -> int:
        """The position, among the loops of the fold, of the one that online stages go along."""
        found = {stage.attach.axis for stage in companions(self.context, self.stage)}
        places = [i for i, axis in enumerate(self.rest) if axis in found]
        if len(places) != 1:
            raise InternalError(f"{self.stage.name} is repaired in {len(places)} loops")
        return places[0]

    def _companions_start(self) -> list[Stmt]:
        return [
            reduction_of(self.context, stage).start()
            for stage in companions(self.context, self.stage)
        ]

    def _finished(self, values: Sequence[Expr], index: int) -> Expr:
        """The result, of the values that were folded."""
        if self.reduce.finish is None:
            return values[index]
        return lowered(self.context, self.reduce.finish, self.bounds, values)

    def _repaired(self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...]) -> list[Stmt]:
        """The values folded so far, moved on to what the sources read now.

        All new values are made before the first is stored.
        """
        if self.reduce.repair is None:
            return []
        old = [Load(buffer, indices) for buffer in buffers]
        moved = [lowered(self.context, each, self.bounds, old) for each in self.reduce.repair]
        if len(buffers) == 1:
            return [self._copied(Store(buffers[0], indices, moved[0]))]
        shape = tuple(self.bounds.extents[a] for a in self.data)
        spaces = [Buffer(f"{b.name}_moved", b.dtype, shape, Scope.LOCAL) for b in buffers]
        make = [Store(s, self.data, value) for s, value in zip(spaces, moved, strict=True)]
        take = [Store(b, indices, Load(s, self.data)) for b, s in zip(buffers, spaces, strict=True)]
        body: Stmt = Seq((self._copied(Seq(tuple(make))), self._copied(Seq(tuple(take)))))
        for space in reversed(spaces):
            body = Allocate(space, body)
        return [body]

    def _copied(self, leaf: Stmt) -> Stmt:
        """Loops over the accumulators' axes around `leaf`, as fresh axes (an axis is bound
        once)."""
        copies: dict[Expr, Expr] = {a: _copy(a) for a in self.data}
        return self._around(_renamed(leaf, copies), self.data, copies)

    def _around(self, body: Stmt, axes: Sequence[Axis], copies: Mapping[Expr, Expr]) -> Stmt:
        for axis in reversed(axes):
            kind = self.stage.mark(axis).kind
            kind = LoopKind.SERIAL if kind in (LoopKind.PARALLEL, LoopKind.PROGRAM) else kind
            copy, extent = copies[axis], self.bounds.extents[axis]
            if not isinstance(copy, Axis):
                raise InternalError(f"axis {axis.name} has no copy")
            if constant(extent) != 1:
                body = For(copy, extent, kind, body)
        return body


def _copy(axis: Axis) -> Axis:
    return Axis(axis.name, axis.kind, None, axis.dtype)


def _renamed(stmt: Stmt, mapping: Mapping[Expr, Expr]) -> Stmt:
    match stmt:
        case Seq(stmts=stmts):
            return Seq(tuple(_renamed(s, mapping) for s in stmts))
        case Guard(condition=condition, body=body):
            return Guard(substitute(condition, mapping), _renamed(body, mapping))
        case Store(buffer=buffer, indices=indices, value=value):
            moved = tuple(substitute(i, mapping) for i in indices)
            return Store(buffer, moved, substitute(value, mapping))
        case Accumulate(indices=indices, values=values):
            moved = tuple(substitute(i, mapping) for i in indices)
            return replace(
                stmt, indices=moved, values=tuple(substitute(v, mapping) for v in values)
            )
        case For(end=end, body=body):
            return replace(stmt, end=substitute(end, mapping), body=_renamed(body, mapping))
        case _:
            raise InternalError(f"a {type(stmt).__name__} cannot be copied")
