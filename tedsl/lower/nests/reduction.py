"""The nests of a reduction: initialise the accumulators, accumulate, store the results; and the
steps of online stages, which share the loop of another reduction and rescale (online softmax).

Part of `build_nests`; imports `context` and `ir`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.index_arith import add, both, constant, less, minimum, sub
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Before,
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Reduce,
    Reducer,
    TensorRead,
    Var,
)
from tedsl.expr.visit import axes_of, reads, substitute, walk
from tedsl.index.prove import prove
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
from tedsl.ir.visit import walk_exprs, walk_stmts
from tedsl.lower.nests.context import (
    Context,
    all_of,
    carried,
    companions,
    guarded,
    is_estimate,
    loops,
    lowered,
    output_indices,
    tensor_call,
)
from tedsl.once import same
from tedsl.scheduling.algebra.counterexamples import with_rest
from tedsl.scheduling.kernels.tree import loops_around, running
from tedsl.scheduling.plan import Online, OnlineMode, StagePlan
from tedsl.scheduling.plan.graph import tensors_read
from tedsl.scheduling.plan.scattered import scattered
from tedsl.scheduling.regions.infer import StageBounds
from tedsl.tensor.tensor import ComputeOp

# A reduction accumulates in registers or stack up to this many elements; a longer row of
# results is accumulated where it is stored.
MAX_ACCUMULATORS = 1 << 16


def reduction_of(context: Context, stage: StagePlan) -> Reduction:
    """The parts of the nest of a stage that is a reduction."""
    first = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    if not isinstance(stage.op, ComputeOp) or not isinstance(first, Reduce):
        raise InternalError(f"{stage.name} is no reduction")
    way = scattered(stage)
    fold = first if way is None else way.fold
    return Reduction(context, stage, stage.op, fold, context.bounds[stage.name])


@dataclass(slots=True)
class Reduction:
    """The three nests of a reduction: initialise the accumulators, accumulate, store the results.

    In an atomic one each iteration of the contended loops has accumulators of its own, which are
    combined with the results; these have been initialised before, by another nest.  A scattered one
    has no accumulators: each point is combined with the result that data say.
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
        `depth` outermost loops only the accumulation where those include loops of the
        accumulators."""
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
        if self.stage.placement.at_root:  # else beside the buffers of the stage
            for buffer in reversed(carried(self.context, self.stage)):
                body = Allocate(buffer, body)
        return loops(self.context, self.stage, self.prefix[depth:], body, guards)

    def step(self) -> Stmt:
        """One iteration of an online stage: keep the old running statistics, rescale the
        accumulators, accumulate."""
        buffers = self.context.folded[self.stage.name]
        indices = output_indices(self.stage, self.op, self.bounds)
        stores: list[Stmt] = [
            Store(self.context.before[shown], indices, Load(shown, indices))
            for shown in self._shown().values()
        ]
        leaf = stores[0] if len(stores) == 1 else Seq(tuple(stores))
        keep = self._copied(self._kept(leaf))
        parts = [keep, *self._repaired(buffers, indices), self._fold(buffers, indices)]
        estimate = is_estimate(self.context, self.stage)
        if estimate or self._is_read_on():
            parts.extend(self._seen(buffers, indices, estimate))
        guards = self._guards(inside=False)
        flags, noted = self._noted(indices)
        parts.extend(noted)
        step = loops(self.context, self.stage, self.prefix, Seq(tuple(parts)), guards)
        return Seq((*flags, step)) if flags else step

    def _noted(self, indices: tuple[Expr, ...]) -> tuple[list[Stmt], list[Stmt]]:
        """The test of lazy rescaling, whether any running statistic of a stage changed: what comes
        before all its loops, and what after each step in them."""
        flags: list[Stmt] = []
        notes: list[Stmt] = []
        for shown in self._shown().values() if self.stage.placement.mode is OnlineMode.LAZY else ():
            flag, before = self.context.moved[shown], self.context.before[shown]
            changed = Compare(CompareOp.NE, Load(shown, indices), Load(before, indices))
            flags.append(Store(flag, (), Const(0, flag.dtype)))
            notes.append(
                self._copied(
                    self._kept(
                        Accumulate((flag,), (), _anywhere(), (Cast(changed, flag.dtype),)),
                    )
                )
            )
        return flags, notes

    def start(self) -> Stmt:
        """The accumulators of an online stage before the first iteration."""
        buffers = self.context.folded[self.stage.name]
        indices = output_indices(self.stage, self.op, self.bounds)
        guards = [g for g in self.bounds.guards if not self._is_fold_guard(g)]
        guards = guards if self.reduce.init is not None else []
        leaf = self._starts(buffers, indices, guards)
        starts: list[Stmt] = [self._copied(leaf if guards else self._kept(leaf, inside=False))]
        for place, shown in self._shown().items():
            if buffers[place] is not shown:  # what rescaling reads before the first iteration
                nothing = lowered(self.context, self._start_values()[place], self.bounds)
                leaf = guarded(guards, Store(shown, indices, nothing))
                starts.append(self._copied(leaf if guards else self._kept(leaf, inside=False)))
        return self._in_prefix(starts[0] if len(starts) == 1 else Seq(tuple(starts)))

    def end(self) -> Stmt | None:
        """What is applied after the last iteration of an online stage; None when there is
        nothing."""
        if self.reduce.finish is None:
            return None
        buffers = self.context.folded[self.stage.name]
        indices = output_indices(self.stage, self.op, self.bounds)
        (seen,) = self._seen(buffers, indices, estimate=False, inside=False)
        return self._in_prefix(seen)

    def _kept(self, leaf: Stmt, *, inside: bool = True) -> Stmt:
        """`leaf` under the guards of the results (or of those, the guards of the accumulators'
        loops) when loops run beyond the buffer: padded lanes of it may hold anything."""
        if all(self._stays(place) for place in _places(leaf)):
            return leaf
        guards = self._guards(inside=True) if inside else self.bounds.guards
        return guarded([g for g in guards if not self._is_fold_guard(g)], leaf)

    def _stays(self, place: tuple[Buffer, tuple[Expr, ...]]) -> bool:
        """True when a place is proved to lie in its buffer."""
        buffer, indices = place
        pairs = zip(indices, buffer.shape, strict=True)
        return all(prove(less(index, extent), self.bounds.facts) for index, extent in pairs)

    def _in_prefix(self, body: Stmt) -> Stmt:
        """`body` in copies of the shared loops."""
        copies: dict[Expr, Expr] = {a: _copy(a) for a in self.prefix}
        return self._around(_renamed(body, copies), self.prefix, copies)

    def _is_read_on(self) -> bool:
        """True when a value with a `finish` is read before the last iteration: by anything but the
        `finish` of a reduction in the loop that is itself not."""
        if self.reduce.finish is None:
            return False
        host = self.context.plan.stage(self.stage.placement.host)
        around = frozenset(loops_around(self.context.plan, self.stage))
        for reader in self.context.plan.stages:
            if not any(t.op is self.op for t in tensors_read(reader.op)):
                continue
            own = reader.op.bodies[0] if isinstance(reader.op, ComputeOp) else None
            if reader is host or isinstance(reader.placement, Online):
                if not isinstance(own, Reduce):
                    raise InternalError(f"{reader.name} goes along with a loop and folds nothing")
                folded = replace(own, finish=None, index=0)
                if any(read.tensor.op is self.op for read in reads(folded)):
                    return True
                if reader is not host and reduction_of(self.context, reader)._is_read_on():
                    return True
            elif around <= frozenset(loops_around(self.context.plan, reader)):
                return True
        return False

    @property
    def is_atomic(self) -> bool:
        """True when iterations that run at the same time combine their parts with one result."""
        return bool(self.stage.contended)

    @property
    def is_exported(self) -> bool:
        """True when the results are also stored for other kernels or the caller."""
        return self.op.outputs[0] in self.context.exports

    def export(self) -> Stmt:
        """Store the accumulators of an online stage."""
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

    def _seen(
        self,
        buffers: tuple[Buffer, ...],
        indices: tuple[Expr, ...],
        estimate: bool,
        inside: bool = True,
    ) -> list[Stmt]:
        """What readers see of the accumulators, where that is something else: with `finish`
        applied, and of partial sums S, estimates S * (all elements / those reduced so far)."""
        values: list[Expr] = [Load(buffer, indices) for buffer in buffers]
        if estimate:
            ratios = [self._ratio(buffer.dtype) for buffer in buffers]
            values = [Binary(BinaryOp.MUL, v, r) for v, r in zip(values, ratios, strict=True)]
        stores: list[Stmt] = [
            Store(shown, indices, self._finished(values, place))
            for place, shown in self._shown().items()
            if buffers[place] is not shown
        ]
        return [self._copied(self._kept(Seq(tuple(stores)), inside=inside))] if stores else []

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
        """True when a guard depends on a loop that this stage, or one that it folds along with,
        reduces, so that it is not one of the results."""
        along = isinstance(self.stage.placement, Online)
        kinds = (self.kinds.get(a, a.kind if along else AxisKind.DATA) for a in axes_of(guard))
        return any(kind is AxisKind.REDUCE for kind in kinds)

    def _own_outputs(self) -> tuple[Buffer, ...] | None:
        """The output buffers in the reducer's order, when they may serve as the accumulators."""
        by_value = {body.index: t for body, t in zip(self._reduces(), self.op.outputs, strict=True)}
        if sorted(by_value) != list(range(len(self.reduce.sources))):
            return None
        attached = self.stage.placement.axis is not None
        whole = [i for i in output_indices(self.stage, self.op, self.bounds) if constant(i) != 0]
        same = len(whole) == len(self.data) and set(whole) == set(self.data)
        direct = (attached and same) or (self.is_atomic and not self.rest) or self.stage.scatters
        if direct or not self._fits():
            return tuple(self.context.buffers[by_value[i]] for i in range(len(by_value)))
        return None

    def _reduces(self) -> tuple[Reduce, ...]:
        return tuple(body for body in self.op.bodies if isinstance(body, Reduce))

    def _fits(self) -> bool:
        """True when registers or stack hold the accumulators."""
        return not self._halves()[0]

    def _halves(self) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """The accumulators' axes: the inner ones, of as many elements as registers or stack hold,
        and those outside."""
        total, place = 1, len(self.data)
        while place:
            extent = constant(self.bounds.extents[self.data[place - 1]])
            if extent is None or total * extent > MAX_ACCUMULATORS:
                break
            total, place = total * extent, place - 1
        return self.data[:place], self.data[place:]

    def _targets(self) -> tuple[tuple[Buffer, ...], tuple[Expr, ...]]:
        """The accumulators and their indices."""
        outputs = self._own_outputs()
        if outputs is not None:
            return outputs, output_indices(self.stage, self.op, self.bounds)
        if not self.accumulators:
            self.accumulators = self._made_accumulators()
        return self.accumulators, self.data

    def _made_accumulators(self) -> tuple[Buffer, ...]:
        many = len(self.reduce.sources) > 1
        return tuple(
            self._space(f"{self.stage.name}_acc{i if many else ''}", source.dtype)
            for i, source in enumerate(self.reduce.sources)
        )

    def _space(self, name: str, dtype: DType) -> Buffer:
        """Room for a value of each accumulator: in memory where registers and stack have none, as
        of rows whose length is known at run time."""
        shape = tuple(self.bounds.extents[a] for a in self.data)
        if self._fits():
            return Buffer(name, dtype, shape, Scope.LOCAL, part_of=self.stage.name)
        return Buffer(name, dtype, shape, Scope.GLOBAL, private=True, part_of=self.stage.name)

    def around(self, fold: Stmt, outer: Sequence[Expr] = ()) -> Stmt:
        """The initialisation before `fold` and what comes after it, both under the guards
        `outer`."""
        buffers, indices = self._targets()
        guards = [g for g in self._guards(inside=True) if not self._is_fold_guard(g)]
        own = buffers is not self.accumulators
        if own and self.stage.starts_apart:
            return fold
        start_guards = guards if own or self._start_values() is self.reduce.init else []
        start = self._copied(self._starts(buffers, indices, start_guards))
        parts = [guarded(outer, start), *self._companions_start(), fold, *self._companions_end()]
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
        """The initial value of an accumulator: the identity for the parts of an atomic
        reduction."""
        init = None if self.stage.starts_apart else self.reduce.init
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
        guards, folded = self._guards_of_folds()
        if self.reduce.where is not None:
            folded = all_of(folded, lowered(self.context, self.reduce.where, self.bounds))
        mask = both(*folded) if folded else None
        values = tuple(lowered(self.context, s, self.bounds) for s in self.reduce.sources)
        marks = [self.stage.mark(a).products for a in self.stage.leaf_axes]
        products = next((p for p in marks if p is not None), DEFAULT_PRODUCTS)
        if self.reduce.finite:
            products = replace(products, finite=True)
        atomic = self.is_atomic and buffers is not self.accumulators
        call = None  # no intrinsic combines what it computes with the result atomically
        if not atomic:
            call = tensor_call(self.context, self.stage, self.op, self.bounds)
        given = with_rest(self.reduce.reducer), values, mask, (), products, call, atomic
        update = Accumulate(buffers, indices, *given)
        repairs = (
            [] if isinstance(self.stage.placement, Online) else self._repaired(buffers, indices)
        )
        if not repairs:
            return loops(self.context, self.stage, self.rest[skipped:], update, guards)
        at = self._online_place() + 1
        head, tail = self.rest[:at], self.rest[at:]
        deep = {g for g in guards if not axes_of(g).isdisjoint(tail)}
        fold = loops(self.context, self.stage, tail, update, [g for g in guards if g in deep])
        body = Seq((*repairs, fold))
        return loops(self.context, self.stage, head, body, [g for g in guards if g not in deep])

    def _guards_of_folds(self) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """The guards inside, less those that say for each lane what is folded into it (of skewed
        loops, say), and these, which belong to the update: where the last iteration of a loop runs
        by itself, they would look like guards of lanes that are no results."""
        loops = frozenset(self.stage.leaf_axes)
        vectorized = {a for a in loops if self.stage.mark(a).kind is LoopKind.VECTORIZED}
        kept: list[Expr] = []
        mixed: list[Expr] = []
        for guard in self._guards(inside=True):
            axes = axes_of(guard)
            folds = any(axis.kind is AxisKind.REDUCE and axis in loops for axis in axes)
            lanes = any(axis.kind is AxisKind.DATA and axis in vectorized for axis in axes)
            (mixed if folds and lanes else kept).append(guard)
        return tuple(kept), tuple(mixed)

    def _online_place(self) -> int:
        """The position, among the loops of the accumulation, of the online loop."""
        found = {stage.placement.axis for stage in companions(self.context, self.stage)}
        places = [i for i, axis in enumerate(self.rest) if axis in found]
        if len(places) != 1:
            raise InternalError(f"{self.stage.name} is repaired in {len(places)} loops")
        return places[0]

    def _companions_start(self) -> list[Stmt]:
        return [
            reduction_of(self.context, stage).start()
            for stage in companions(self.context, self.stage)
        ]

    def _companions_end(self) -> list[Stmt]:
        ends = [
            reduction_of(self.context, stage).end()
            for stage in companions(self.context, self.stage)
        ]
        return [end for end in ends if end is not None]

    def _finished(self, values: Sequence[Expr], index: int) -> Expr:
        """The result, of the values of the accumulators."""
        if self.reduce.finish is None:
            return values[index]
        return lowered(self.context, self.reduce.finish, self.bounds, values)

    def _repaired(self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...]) -> list[Stmt]:
        """Rescale the accumulators to the running statistics of now (online softmax).

        All new values are made before the first is stored.  Lazy rescaling is skipped where no
        element of the running statistics has changed: it would change nothing.
        """
        if self.reduce.repair is None:
            return []
        found = [e.a for e in walk(*self.reduce.repair) if isinstance(e, Before)]
        shown = [self.context.buffers[e.tensor] for e in found if isinstance(e, TensorRead)]
        flags = list(dict.fromkeys(self.context.moved.get(buffer) for buffer in shown))
        tests = [Compare(CompareOp.NE, Load(f, ()), Const(0, f.dtype)) for f in flags if f]
        body = self._moved(self.reduce.repair, buffers, indices)
        if not tests or len(tests) < len(flags):
            return [body]
        return [Guard(reduce(partial(Binary, BinaryOp.OR), tests), body)]

    def _moved(
        self, repair: Sequence[Expr], buffers: tuple[Buffer, ...], indices: tuple[Expr, ...]
    ) -> Stmt:
        old = [Load(buffer, indices) for buffer in buffers]
        moved = [lowered(self.context, each, self.bounds, old) for each in repair]
        if len(buffers) == 1:
            return self._copied(self._kept(Store(buffers[0], indices, moved[0])))
        outer, inner = self._halves()
        shape = tuple(self.bounds.extents[a] for a in inner)
        spaces = [Buffer(f"{b.name}_moved", b.dtype, shape, Scope.LOCAL) for b in buffers]
        make = [Store(s, inner, value) for s, value in zip(spaces, moved, strict=True)]
        take = [Store(b, indices, Load(s, inner)) for b, s in zip(buffers, spaces, strict=True)]
        leaves = (self._copied(self._kept(Seq(tuple(each))), inner) for each in (make, take))
        copies: dict[Expr, Expr] = {a: _copy(a) for a in outer}
        body = _renamed(Seq(tuple(leaves)), copies)
        for space in reversed(spaces):
            body = Allocate(space, body)
        return self._around(body, outer, copies)

    def _copied(self, leaf: Stmt, axes: Sequence[Axis] | None = None) -> Stmt:
        """Loops over the accumulators' axes (or those `axes` of them) around `leaf`, as fresh axes
        (an axis is bound once)."""
        axes = self.data if axes is None else axes
        copies: dict[Expr, Expr] = {a: _copy(a) for a in axes}
        return self._around(_renamed(leaf, copies), axes, copies)

    def _around(self, body: Stmt, axes: Sequence[Axis], copies: Mapping[Expr, Expr]) -> Stmt:
        """Loops of one program around `body`: none is of lanes where a buffer is allocated."""
        plain = {LoopKind.PARALLEL, LoopKind.PROGRAM}
        if isinstance(body, Allocate):
            plain.add(LoopKind.VECTORIZED)
        for axis in reversed(axes):
            kind = self.stage.mark(axis).kind
            kind = LoopKind.SERIAL if kind in plain else kind
            copy, extent = copies[axis], self.bounds.extents[axis]
            if not isinstance(copy, Axis):
                raise InternalError(f"axis {axis.name} has no copy")
            if constant(extent) != 1:
                body = For(copy, extent, kind, body)
        return body


@same
def _anywhere() -> Reducer:
    """The largest of int32 flags."""
    a, b = Var("a", DType.int32), Var("b", DType.int32)
    return Reducer("max", (a,), (b,), (Binary(BinaryOp.MAX, a, b),), (Const(0, DType.int32),))


def _places(leaf: Stmt) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """The buffers that `leaf` stores and reads, and where."""
    for stmt in walk_stmts(leaf):
        if isinstance(stmt, Store):
            yield stmt.buffer, stmt.indices
    yield from ((e.buffer, e.indices) for e in walk_exprs(leaf) if isinstance(e, Load))


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
