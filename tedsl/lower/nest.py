"""Build the loop nests: one per stage, attached stages inside their readers', reductions into
accumulators.

First step of the lowering that makes loop IR.  Imports `scheduling.bounds` and `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tedsl.dtypes import DType
from tedsl.errors import InternalError, LowerError
from tedsl.expr.integers import add, both, constant, minimum, sub
from tedsl.expr.nodes import (
    Axis,
    AxisKind,
    Before,
    Binary,
    BinaryOp,
    Cast,
    Const,
    Expr,
    Folded,
    Range,
    Reduce,
    TensorRead,
    Var,
)
from tedsl.expr.tensor import ComputeOp, PlaceholderOp, Tensor
from tedsl.expr.visit import axes_of, rewrite, substitute, variables, walk
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    For,
    Func,
    Guard,
    Load,
    LoopKind,
    Module,
    Precision,
    Scope,
    Seq,
    Stmt,
    Store,
)
from tedsl.ir.visit import buffers_read, buffers_written, walk_exprs
from tedsl.scheduling.bounds import Bounds, StageBounds, is_reduce_guard
from tedsl.scheduling.plan import AttachKind, Plan, StagePlan

# A reduction accumulates in registers or stack up to this many elements; a longer row of
# results is accumulated where it is stored.
MAX_ACCUMULATORS = 1 << 16


@dataclass(slots=True)
class _Context:
    """What every nest needs: the plan, its bounds, and where each tensor lives.

    Of online stages, `before` is where their results of the iteration before are kept for repairs,
    and `partial` where the sums lie of which `buffers` holds estimates.
    """

    plan: Plan
    bounds: Bounds
    buffers: dict[Tensor, Buffer] = field(default_factory=dict[Tensor, Buffer])
    before: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])
    partial: dict[Buffer, Buffer] = field(default_factory=dict[Buffer, Buffer])
    children: dict[Axis, list[StagePlan]] = field(default_factory=dict[Axis, list[StagePlan]])


def build_nests(plan: Plan, bounds: Bounds) -> Module:
    """Loop nests of all stages; each root stage is a kernel.

    Before:  C[i] = sum(k)(A[i, k]) at D.io;  D[i] = C[i] + 1;  i -> io, ii
    After:   for io: alloc C[32]: (for i: C[i] = 0; for i, k: C[i] += A[io*32 + i, k]);
             for ii: D[io*32 + ii] = C[ii] + 1
    Requires: no inlined stage; `bounds` of this plan.
    Ensures: level NEST; guards exactly where `bounds` could not prove a point inside the domain.
    Raises:
        LowerError: an attached stage whose region has no constant size.
    """
    context = _Context(plan, bounds)
    outputs = {t: i for i, t in enumerate(plan.outputs)}
    for stage in plan.stages:
        _place(context, stage)
        if stage.attach.kind is AttachKind.AT and stage.attach.axis is not None:
            context.children.setdefault(stage.attach.axis, []).append(stage)
    context.bounds = _with_loads(context)
    funcs = [
        _func(context, stage, stage.op)
        for stage in plan.stages
        if isinstance(stage.op, ComputeOp) and stage.attach.kind is AttachKind.ROOT
    ]
    inputs = [
        context.buffers[s.op.outputs[0]] for s in plan.stages if isinstance(s.op, PlaceholderOp)
    ]
    results = [context.buffers[t] for t in outputs]
    used = {b for f in funcs for b in f.params}
    spaces = [
        b for b in context.buffers.values() if b in used and b not in inputs and b not in results
    ]
    sizes = _sizes([*inputs, *results, *spaces], funcs)
    name = "_".join(t.op.name for t in outputs)
    return Module(name, tuple(inputs), tuple(results), tuple(spaces), sizes, tuple(funcs))


def _with_loads(context: _Context) -> Bounds:
    """The bounds with loads for tensor reads: where a stage is gathered (`T[X[i]]`), regions and
    guards depend on data."""

    def loaded(expr: Expr) -> Expr:
        return rewrite(expr, read)

    def read(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        starts = [loaded(start) for start in _region_start(context, node.tensor)]
        indices = tuple(sub(i, s) for i, s in zip(node.indices, starts, strict=True))
        return Load(context.buffers[node.tensor], indices)

    def changed(bounds: StageBounds) -> StageBounds:
        exprs = (*bounds.index.values(), *(r.min for r in bounds.region), *bounds.guards)
        if not any(isinstance(node, TensorRead) for node in walk(*exprs)):
            return bounds
        return replace(
            bounds,
            index={axis: loaded(expr) for axis, expr in bounds.index.items()},
            local={axis: loaded(expr) for axis, expr in bounds.local.items()},
            region=tuple(Range(loaded(r.min), r.extent) for r in bounds.region),
            stored=tuple(Range(loaded(r.min), r.extent) for r in bounds.stored),
            guards=tuple(map(loaded, bounds.guards)),
        )

    return Bounds({name: changed(bounds) for name, bounds in context.bounds.stages.items()})


def _place(context: _Context, stage: StagePlan) -> None:
    """Give the outputs of a stage their buffers: the whole tensor at root, the region when
    attached."""
    shape, scope = stage.op.shape, Scope.GLOBAL
    if stage.attach.kind is AttachKind.AT:
        shape = tuple(r.extent for r in context.bounds[stage.name].stored)
        scope = Scope.LOCAL if stage.scope is Scope.GLOBAL else stage.scope
        for i, extent in enumerate(shape):
            if constant(extent) is None:
                raise LowerError(
                    f"dimension {i} of the region of {stage.name} has no constant size",
                    subject=f"compute_at({stage.name}, at={stage.attach.stage})",
                    hint=f"split the loops of {stage.attach.stage} by constants and attach inside, "
                    f"or leave {stage.name} inline or at root",
                )
    for tensor in stage.op.outputs:
        name = stage.name if len(stage.op.outputs) == 1 else f"{stage.name}_{tensor.index}"
        buffer = context.buffers[tensor] = Buffer(name, tensor.dtype, shape, scope)
        if stage.attach.online:
            context.before[buffer] = replace(buffer, name=f"{name}_before")
        if stage.attach.estimate:
            context.partial[buffer] = replace(buffer, name=f"{name}_partial")


def _func(context: _Context, stage: StagePlan, op: ComputeOp) -> Func:
    body = _stage_nest(context, stage, op)
    touched = dict.fromkeys((*buffers_read(body), *buffers_written(body)))
    params = tuple(b for b in context.buffers.values() if b in touched and b.scope is Scope.GLOBAL)
    sizes = _scalars(params, body)
    known = tuple(c for c in context.plan.assumptions if set(sizes).issuperset(variables(c)))
    return Func(stage.name, params, sizes, body, stage.launch, known)


def _scalars(params: Sequence[Buffer], body: Stmt) -> tuple[Var, ...]:
    """Runtime scalars that the shapes and the body use."""
    exprs = [*(e for b in params for e in b.shape), *walk_exprs(body)]
    return tuple(dict.fromkeys(n for n in walk(*exprs) if isinstance(n, Var)))


def _sizes(buffers: Sequence[Buffer], funcs: Sequence[Func]) -> tuple[Var, ...]:
    shapes = [n for b in buffers for n in walk(*b.shape) if isinstance(n, Var)]
    return tuple(dict.fromkeys([*shapes, *(v for f in funcs for v in f.sizes)]))


def _stage_nest(context: _Context, stage: StagePlan, op: ComputeOp) -> Stmt:
    bounds = context.bounds[stage.name]
    first = op.bodies[0]
    if isinstance(first, Reduce):
        return _Reduction(context, stage, op, first, bounds).nest()
    indices = _output_indices(stage, op, bounds)
    stores = [
        Store(context.buffers[tensor], indices, _lowered(context, body, bounds))
        for tensor, body in zip(op.outputs, op.bodies, strict=True)
    ]
    leaf = stores[0] if len(stores) == 1 else Seq(tuple(stores))
    return _loops(context, stage, stage.loop_order, leaf, bounds.guards)


def _output_indices(stage: StagePlan, op: ComputeOp, bounds: StageBounds) -> tuple[Expr, ...]:
    where = bounds.local if stage.attach.kind is AttachKind.AT else bounds.index
    return tuple(where[axis] for axis in op.axes)


def _lowered(
    context: _Context, body: Expr, bounds: StageBounds, folded: Sequence[Expr] = ()
) -> Expr:
    """A body over leaf axes and buffers: tensor reads become loads relative to the stored
    region, and `Folded` values those given."""
    index: Mapping[Expr, Expr] = {**bounds.index}

    def replaced(node: Expr) -> Expr | None:
        if isinstance(node, Folded):
            return folded[node.index]
        if isinstance(node, Before):
            if not isinstance(node.a, Load):
                raise InternalError("the value before is asked of something that is not stored")
            return replace(node.a, buffer=context.before[node.a.buffer])
        if isinstance(node, TensorRead):
            starts = _region_start(context, node.tensor)
            indices = [sub(i, s) for i, s in zip(node.indices, starts, strict=True)]
            return Load(
                context.buffers[node.tensor], tuple(simplify(i, bounds.facts) for i in indices)
            )
        return index.get(node)

    return simplify(rewrite(body, replaced), bounds.facts)


def _region_start(context: _Context, tensor: Tensor) -> tuple[Expr, ...]:
    stage = context.plan.stage_of(tensor.op)
    if stage.attach.kind is not AttachKind.AT:
        return tuple(Const(0, DType.int32) for _ in tensor.op.shape)
    return tuple(r.min for r in context.bounds[stage.name].stored)


def _guarded(conditions: Sequence[Expr], body: Stmt) -> Stmt:
    return Guard(both(*conditions), body) if conditions else body


def _loops(
    context: _Context, stage: StagePlan, axes: Sequence[Axis], body: Stmt, guards: Sequence[Expr]
) -> Stmt:
    """Loops of `stage` over `axes`, outermost first, with the stages attached at each of them.

    Each guard stands as far out as its axes allow, so that an idle iteration computes nothing.
    """
    extents = context.bounds[stage.name].extents
    waiting: list[Expr] = list(guards)
    for axis in reversed(axes):
        body = _with_children(context, axis, body)
        here = {g for g in waiting if axis in axes_of(g)}
        body = _guarded([g for g in waiting if g in here], body)
        waiting = [g for g in waiting if g not in here]
        if constant(extents[axis]) != 1:
            mark = stage.mark(axis)
            body = For(
                axis, extents[axis], mark.kind, body, mark.program, mark.num_stages, mark.flatten
            )
    return _guarded(waiting, body)


def _with_children(context: _Context, axis: Axis, body: Stmt) -> Stmt:
    """`body` after the nests of the stages attached at `axis`, inside their buffers.

    What an online stage has folded outlives the iteration: its host allocates it.
    """
    for stage in reversed(context.children.get(axis, [])):
        if not isinstance(stage.op, ComputeOp):
            raise InternalError(f"placeholder {stage.name} is attached")
        buffers = [context.buffers[tensor] for tensor in stage.op.outputs]
        if stage.attach.online:
            body = Seq((_reduction(context, stage).step(), body))
            inside = [context.before[buffer] for buffer in buffers]
        else:
            body = Seq((_stage_nest(context, stage, stage.op), body))
            inside = [*buffers, *_carried(context, stage)]
        for buffer in reversed(inside):
            body = Allocate(buffer, body)
    return body


def _companions(context: _Context, host: StagePlan) -> list[StagePlan]:
    """The online stages that go along with the reduction of `host`, producers first."""
    return [
        stage
        for axis in host.leaf_axes
        for stage in context.children.get(axis, [])
        if stage.attach.online
    ]


def _carried(context: _Context, host: StagePlan) -> list[Buffer]:
    """What the online stages of `host` carry from one iteration to the next."""
    found: list[Buffer] = []
    for stage in _companions(context, host):
        for tensor in stage.op.outputs:
            buffer = context.buffers[tensor]
            found.append(buffer)
            if buffer in context.partial:
                found.append(context.partial[buffer])
    return found


def _reduction(context: _Context, stage: StagePlan) -> _Reduction:
    """The parts of the nest of a stage that is a reduction."""
    first = stage.op.bodies[0] if isinstance(stage.op, ComputeOp) else None
    if not isinstance(stage.op, ComputeOp) or not isinstance(first, Reduce):
        raise InternalError(f"{stage.name} is no reduction")
    return _Reduction(context, stage, stage.op, first, context.bounds[stage.name])


@dataclass(slots=True)
class _Reduction:
    """The three nests of a reduction: start the accumulators, fold, store the results."""

    context: _Context
    stage: StagePlan
    op: ComputeOp
    reduce: Reduce
    bounds: StageBounds
    prefix: tuple[Axis, ...] = ()
    rest: tuple[Axis, ...] = ()
    data: tuple[Axis, ...] = ()

    def __post_init__(self) -> None:
        """Loops before the first reduction loop (or tile) are shared, later ones the
        accumulators'."""
        order = self.stage.loop_order
        lane = LoopKind.VECTORIZED
        inner = [a.kind is AxisKind.REDUCE or self.stage.mark(a).kind is lane for a in order]
        first = inner.index(True) if True in inner else len(order)
        self.prefix, self.rest = order[:first], order[first:]
        extents = self.bounds.extents
        self.data = tuple(
            a for a in self.rest if a.kind is AxisKind.DATA and constant(extents[a]) != 1
        )

    def nest(self) -> Stmt:
        """All three, with what online stages carry through the loops."""
        outputs = self._own_outputs()
        body = self._accumulated() if outputs is None else self._in_place(outputs)
        if self.stage.attach.kind is AttachKind.ROOT:  # else beside the buffers of the stage
            for buffer in reversed(_carried(self.context, self.stage)):
                body = Allocate(buffer, body)
        return _loops(self.context, self.stage, self.prefix, body, self._guards(inside=False))

    def step(self) -> Stmt:
        """One iteration of an online stage: keep the results so far, repair them, fold on."""
        buffers = self._results()
        indices = _output_indices(self.stage, self.op, self.bounds)
        stores: list[Stmt] = [
            Store(self.context.before[shown], indices, Load(shown, indices))
            for shown in self._shown()
        ]
        keep = self._copied(stores[0] if len(stores) == 1 else Seq(tuple(stores)))
        parts = [keep, *self._repaired(buffers, indices), self._fold(buffers, indices)]
        parts.extend(self._estimated(buffers, indices))
        guards = self._guards(inside=False)
        return _loops(self.context, self.stage, self.prefix, Seq(tuple(parts)), guards)

    def start(self) -> Stmt:
        """The accumulators of an online stage before the first iteration."""
        buffers = self._results()
        indices = _output_indices(self.stage, self.op, self.bounds)
        guards = [g for g in self.bounds.guards if not is_reduce_guard(g)]
        guards = guards if self.reduce.init is not None else []
        start = self._copied(self._starts(buffers, indices, guards))
        copies: dict[Expr, Expr] = {a: _copy(a) for a in self.prefix}
        return self._around(_renamed(start, copies), self.prefix, copies)

    def _shown(self) -> tuple[Buffer, ...]:
        """The buffers that readers see, in the reducer's order."""
        by_value = {body.index: t for body, t in zip(self._reduces(), self.op.outputs, strict=True)}
        return tuple(self.context.buffers[by_value[i]] for i in range(len(by_value)))

    def _results(self) -> tuple[Buffer, ...]:
        """The buffers that an online stage folds into, in the reducer's order."""
        partial = self.context.partial
        return tuple(partial.get(buffer, buffer) for buffer in self._shown())

    def _estimated(self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...]) -> list[Stmt]:
        """What readers see of partial sums: S * (all elements / those folded so far)."""
        stores: list[Stmt] = []
        for buffer, shown in zip(buffers, self._shown(), strict=True):
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

    def _own_outputs(self) -> tuple[Buffer, ...] | None:
        """The output buffers in the reducer's order, when the fold may work in them directly."""
        by_value = {body.index: t for body, t in zip(self._reduces(), self.op.outputs, strict=True)}
        if sorted(by_value) != list(range(len(self.reduce.sources))):
            return None
        attached = self.stage.attach.kind is AttachKind.AT
        whole = [i for i in _output_indices(self.stage, self.op, self.bounds) if constant(i) != 0]
        direct = len(whole) == len(self.data) and set(whole) == set(self.data)
        if (attached and direct) or not self._fits():
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

    def _in_place(self, buffers: tuple[Buffer, ...]) -> Stmt:
        indices = _output_indices(self.stage, self.op, self.bounds)
        guards = [g for g in self._guards(inside=True) if not is_reduce_guard(g)]
        start = self._copied(self._starts(buffers, indices, guards))
        finish: list[Stmt] = []
        if self.reduce.finish is not None:
            value = self._finished([Load(b, indices) for b in buffers], 0)
            finish = [self._copied(_guarded(guards, Store(buffers[0], indices, value)))]
        return Seq((start, *self._companions_start(), self._fold(buffers, indices), *finish))

    def _accumulated(self) -> Stmt:
        if not self._fits():
            raise LowerError(
                f"the accumulators of {self.stage.name} have no constant size",
                facts=[("loops", ", ".join(a.name for a in self.data))],
                hint="split the data loops inside the reduction by constants",
            )
        shape = tuple(self.bounds.extents[a] for a in self.data)
        many = len(self.reduce.sources) > 1
        accumulators = tuple(
            Buffer(f"{self.stage.name}_acc{i if many else ''}", s.dtype, shape, Scope.LOCAL)
            for i, s in enumerate(self.reduce.sources)
        )
        guards = [g for g in self._guards(inside=True) if not is_reduce_guard(g)]
        start_guards = guards if self.reduce.init is not None else []
        stores: list[Stmt] = [
            Store(
                self.context.buffers[tensor],
                _output_indices(self.stage, self.op, self.bounds),
                self._finished([Load(a, self.data) for a in accumulators], body.index),
            )
            for tensor, body in zip(self.op.outputs, self._reduces(), strict=True)
        ]
        body: Stmt = Seq(
            (
                self._copied(self._starts(accumulators, self.data, start_guards)),
                *self._companions_start(),
                self._fold(accumulators, self.data),
                self._copied(_guarded(guards, Seq(tuple(stores)))),
            )
        )
        for buffer in reversed(accumulators):
            body = Allocate(buffer, body)
        return body

    def _starts(
        self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...], guards: Sequence[Expr]
    ) -> Stmt:
        """The identity, or `init=`, into every accumulator."""
        values = self.reduce.init or self.reduce.reducer.identity
        stores = [
            Store(buffer, indices, _lowered(self.context, value, self.bounds))
            for buffer, value in zip(buffers, values, strict=True)
        ]
        return _guarded(guards, Seq(tuple(stores)))

    def _fold(self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...]) -> Stmt:
        where = self.reduce.where
        mask = None if where is None else _lowered(self.context, where, self.bounds)
        values = tuple(_lowered(self.context, s, self.bounds) for s in self.reduce.sources)
        marks = [self.stage.mark(a).precision for a in self.stage.leaf_axes]
        precision = next((p for p in marks if p is not None), Precision.IEEE)
        update = Accumulate(buffers, indices, self.reduce.reducer, values, mask, (), precision)
        guards = self._guards(inside=True)
        repairs = [] if self.stage.attach.online else self._repaired(buffers, indices)
        if not repairs:
            return _loops(self.context, self.stage, self.rest, update, guards)
        at = self._online_place() + 1
        head, tail = self.rest[:at], self.rest[at:]
        deep = {g for g in guards if not axes_of(g).isdisjoint(tail)}
        fold = _loops(self.context, self.stage, tail, update, [g for g in guards if g in deep])
        body = Seq((*repairs, fold))
        return _loops(self.context, self.stage, head, body, [g for g in guards if g not in deep])

    def _online_place(self) -> int:
        """The position, among the loops of the fold, of the one that online stages go along."""
        found = {stage.attach.axis for stage in _companions(self.context, self.stage)}
        places = [i for i, axis in enumerate(self.rest) if axis in found]
        if len(places) != 1:
            raise InternalError(f"{self.stage.name} is repaired in {len(places)} loops")
        return places[0]

    def _companions_start(self) -> list[Stmt]:
        return [
            _reduction(self.context, stage).start()
            for stage in _companions(self.context, self.stage)
        ]

    def _finished(self, values: Sequence[Expr], index: int) -> Expr:
        """The result, of the values that were folded."""
        if self.reduce.finish is None:
            return values[index]
        return _lowered(self.context, self.reduce.finish, self.bounds, values)

    def _repaired(self, buffers: tuple[Buffer, ...], indices: tuple[Expr, ...]) -> list[Stmt]:
        """The values folded so far, moved on to what the sources read now.

        All new values are made before the first is stored.
        """
        if self.reduce.repair is None:
            return []
        old = [Load(buffer, indices) for buffer in buffers]
        moved = [_lowered(self.context, each, self.bounds, old) for each in self.reduce.repair]
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
        case For(extent=extent, body=body):
            return replace(stmt, extent=substitute(extent, mapping), body=_renamed(body, mapping))
        case _:
            raise InternalError(f"a {type(stmt).__name__} cannot be copied")
