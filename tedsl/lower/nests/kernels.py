"""Build the loop nests: one per stage, attached stages inside their readers', reductions into
accumulators.

First step of the lowering that makes loop IR.  Imports `scheduling.regions.infer` and `ir`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tedsl.dtypes import DType
from tedsl.errors import InternalError, within
from tedsl.expr.index_arith import ZERO, add, as_index, at_most, constant, floormod, less, sub
from tedsl.expr.nodes import (
    Axis,
    Expr,
    Range,
    Reduce,
    TensorRead,
    Var,
)
from tedsl.expr.visit import rewrite, variables, walk
from tedsl.index.prove import prove
from tedsl.index.simplify import simplify
from tedsl.ir.nodes import (
    Allocate,
    Buffer,
    Func,
    Load,
    Module,
    Repeat,
    Scope,
    Seq,
    Stmt,
    Store,
)
from tedsl.ir.visit import buffers_read, buffers_written, walk_exprs, walk_stmts
from tedsl.ir.visit import substitute as substitute_stmt
from tedsl.lower.nests.callers_arrays import in_callers_arrays
from tedsl.lower.nests.context import (
    Context,
    carried,
    folded_indices,
    is_estimate,
    loops,
    lowered,
    output_indices,
    region_start,
    tensor_call,
)
from tedsl.lower.nests.divided import in_whole
from tedsl.lower.nests.grid_barrier import meeting, meeting_counters
from tedsl.lower.nests.host_calls import host_call
from tedsl.lower.nests.last_block import Last, finished, last_counters
from tedsl.lower.nests.reduction import reduction_of
from tedsl.lower.nests.shared_loops import Part, merged, one_grid
from tedsl.lower.plan.kernel_versions import Version, versions_of
from tedsl.scheduling.kernels.complete import launched_scans
from tedsl.scheduling.kernels.tree import (
    Kernel,
    Nest,
    Sync,
    exported,
    has_own_launch,
    kernel_tree,
    root_of,
    running,
)
from tedsl.scheduling.kernels.updates import not_combined
from tedsl.scheduling.plan import Online, OnlineMode, Plan, StagePlan
from tedsl.scheduling.plan.scan_structure import inputs_of, scan_stages, step_loop, stored_as
from tedsl.scheduling.regions.computed_indices import needs_of, read_by
from tedsl.scheduling.regions.infer import Bounds, StageBounds, at_least_none, plan_facts
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, ExternOp, ScanOp, Tensor


def build_nests(plan: Plan, bounds: Bounds, target: Target) -> Module:
    """Loop nests of all stages; each root stage is a kernel, or one for each of its versions, and
    so is on a GPU each part of the steps of a scan that are launched one by one.

    Before:  C[i] = sum(k)(A[i, k]) at D.io;  D[i] = C[i] + 1;  i -> io, ii
    After:   for io: alloc C[32]: (for i: C[i] = 0; for i, k: C[i] += A[io*32 + i, k]);
             for ii: D[io*32 + ii] = C[ii] + 1
    Requires: no inlined stage; `bounds` of this plan.
    Ensures: level NEST; guards exactly where `bounds` could not prove a point inside the domain.
    Raises:
        LowerError: an attached stage whose region has no constant size; an extern that the target
            cannot call.
    """
    launches = launched_scans(plan) if target.is_triton else frozenset[str]()
    tree = kernel_tree(plan, needs_of(bounds))
    context = Context(plan, bounds, tree, launches, stored_as(plan))
    context.remarks.update((stage.name, not_combined(stage, target)) for stage in plan.stages)
    context.attached = partial(_with_children, context)
    outputs = {t: i for i, t in enumerate(plan.outputs)}
    for stage in plan.stages:
        with within(stage.name):
            _place(context, stage)
    for tensor, home in context.aliases.items():
        context.buffers[tensor] = context.buffers[home]
    context.bounds = _with_rows(context, _with_loads(context))
    context.buffers.update(context.exports)
    context.counters.update(last_counters(context))
    context.counters.update(meeting_counters(context))
    buffers = dict.fromkeys((*context.buffers.values(), *context.counters.values()))
    context.places.update((buffer, place) for place, buffer in enumerate(buffers))
    versions = {each.leader.name: versions_of(plan, bounds, each) for each in tree.kernels}
    funcs, repeats = _funcs(context, versions, target)
    inputs = [context.buffers[tensor] for tensor in inputs_of(plan)]
    results = [context.buffers[t] for t in outputs]
    used = {b for f in funcs for b in f.params}
    known = dict.fromkeys(context.buffers.values())
    spaces = [b for b in known if b in used and b not in inputs and b not in results]
    steps = {repeat.step for repeat in repeats}
    counters = tuple(dict.fromkeys(context.counters.values()))
    everything = [*inputs, *results, *spaces, *counters]
    sizes = tuple(v for v in _sizes(everything, funcs, plan.assumptions) if v not in steps)
    name = "_".join(t.op.name for t in outputs)
    given = tuple(inputs), tuple(results), tuple(spaces)
    made = Module(name, *given, sizes, tuple(funcs), tuple(repeats), plan.assumptions, counters)
    moved = ((stage.array, stage.op) for stage in plan.stages if stage.array is not None)
    return in_callers_arrays(
        made, {context.buffers[t]: array for array, op in moved for t in op.outputs}
    )


def _funcs(
    context: Context, versions: Mapping[str, Sequence[Version]], target: Target
) -> tuple[list[Func], list[Repeat]]:
    """The kernels in launch order, and which of them are launched for each step of a scan."""
    funcs: list[Func] = []
    repeats: list[Repeat] = []
    for kernel in context.tree.kernels:
        stage = kernel.leader
        if isinstance(stage.op, ExternOp):
            funcs.append(_host_func(context, stage, stage.op, target))
            continue
        if stage.name in context.launches:
            steps = _step_funcs(context, stage)
            end = len(funcs) + len(steps.funcs)
            repeats.append(Repeat(steps.step, steps.count, len(funcs), end))
            funcs.extend(steps.funcs)
            continue
        several = versions[stage.name]
        for number, version in enumerate(several, 1):
            func = _kernel_func(_under(context, version), kernel, version.when)
            last = number == len(several)
            funcs.append(func if last else replace(func, name=f"{stage.name}.v{number}"))
        if not several:
            funcs.append(_kernel_func(context, kernel))
    return funcs, repeats


def _kernel_func(context: Context, kernel: Kernel, when: Expr | None = None) -> Func:
    """The kernel of stages that run together, and of what its last programs do."""
    ends: dict[str, list[Last]] = {}
    with within(kernel.leader.name):
        for phase in kernel.last:
            nest = _within_kernel(
                context, phase.nests, partial(_stored_nest, context, phase.nests[0])
            )
            ends.setdefault(phase.of, []).append((phase, nest))
        programs = kernel.programs.nests
        body = _within_kernel(context, programs, partial(_kernel_nest, context, kernel, ends))
        return _func(context, kernel.leader, body, when)


def _within_kernel(context: Context, nests: Sequence[Nest], made: Callable[[], Stmt]) -> Stmt:
    """What is made of `nests`, which read what their kernel holds where that is."""
    own: dict[Tensor, Buffer] = {}
    for nest in nests:
        for stage in nest.stages:
            own.update(context.inside.get(stage.name, {}))
    outside = {tensor: context.buffers[tensor] for tensor in own}
    context.buffers.update(own)
    body = made()
    context.buffers.update(outside)
    return body


def _under(context: Context, version: Version) -> Context:
    """The context of one version of a kernel: its attached stages have registers of their own, and
    what its programs exchange lies where that of all versions does."""
    other = replace(
        context,
        bounds=version.bounds,
        buffers=dict(context.buffers),
        before=dict(context.before),
        folded=dict(context.folded),
        inside={},
        exports={},
        kept={},
    )
    other.attached = partial(_with_children, other)
    own = [stage for stage in context.plan.stages if _is_own(context, version, stage)]
    given = {context.buffers[tensor] for stage in own for tensor in stage.op.outputs}
    for home, buffers in context.kept.items():
        other.kept[home] = [buffer for buffer in buffers if buffer not in given]
    for stage in own:
        _place(other, stage)
    other.exports = dict(context.exports)  # in memory, which all versions share
    for tensor, home in context.aliases.items():
        other.buffers[tensor] = other.buffers[home]
    other.tree = kernel_tree(context.plan, needs_of(version.bounds))
    other.bounds = _with_rows(other, _with_loads(other))
    other.buffers.update(context.exports)
    return other


def _is_own(context: Context, version: Version, stage: StagePlan) -> bool:
    """Whether a version has a buffer of its own for a stage."""
    attached = stage.placement.axis is not None and stage.name in version.stages
    return attached and stage.placement.program is None and not _is_workspace(context, stage)


def _with_loads(context: Context) -> Bounds:
    """The bounds with loads for tensor reads: where a stage is gathered (`T[X[i]]`), regions and
    guards depend on data."""

    def changed(name: str, bounds: StageBounds) -> StageBounds:
        if not read_by(bounds):
            return bounds
        kernel = root_of(context.plan, context.plan.stage(name)).name
        here = {**context.buffers, **context.exports, **context.inside.get(kernel, {})}
        loaded = partial(_loaded, replace(context, buffers=here))
        return replace(
            bounds,
            index={axis: loaded(expr) for axis, expr in bounds.index.items()},
            local={axis: loaded(expr) for axis, expr in bounds.local.items()},
            region=tuple(Range(loaded(r.min), r.extent) for r in bounds.region),
            stored=tuple(Range(loaded(r.min), r.extent) for r in bounds.stored),
            guards=tuple(map(loaded, bounds.guards)),
        )

    found = context.bounds.stages
    return Bounds({name: changed(name, bounds) for name, bounds in found.items()})


def _loaded(context: Context, expr: Expr) -> Expr:
    """An expression with loads for tensor reads, from what its kernel has."""

    def read(node: Expr) -> Expr | None:
        if not isinstance(node, TensorRead):
            return None
        starts = [_loaded(context, start) for start in region_start(context, node.tensor)]
        indices = [sub(i, s) for i, s in zip(node.indices, starts, strict=True)]
        places = folded_indices(context, node.tensor, indices)
        return Load(context.buffers[node.tensor], tuple(places))

    return rewrite(expr, read)


def _place(context: Context, stage: StagePlan) -> None:
    """Give the outputs of a stage their buffers: the whole tensor at root, the region when
    attached; parts of a scan live in its result."""
    shapes, scope, private = stage.op.output_shapes, Scope.GLOBAL, False
    if all(tensor in context.aliases for tensor in stage.op.outputs):
        return
    if stage.placement.program is not None:
        pass
    elif stage.placement.axis is not None and _is_workspace(context, stage):
        shapes = (_shape(context, stage),) * len(shapes)
    elif stage.placement.axis is not None:
        shape = _shape(context, stage)
        shapes = (shape,) * len(shapes)
        private = any(constant(extent) is None for extent in shape)  # no stack or register holds it
        if not private:
            scope = Scope.LOCAL if stage.scope is Scope.GLOBAL else stage.scope
    for tensor in stage.op.outputs:
        name = stage.name if len(stage.op.outputs) == 1 else f"{stage.name}_{tensor.index}"
        shape = shapes[tensor.index]
        rows = _aligned(stage, shape)
        held = None if rows is shape else shape
        buffer = context.buffers[tensor] = Buffer(
            name, tensor.dtype, rows, scope, held, stage.evict, stage.evict_then, private
        )
        if stage.placement.kept is not None and not _outlives_launch(context, stage):
            axis = stage.placement.kept.axis
            home = root_of(context.plan, stage).name if axis is None else axis
            context.kept.setdefault(home, []).append(buffer)
        context.before[buffer] = replace(buffer, name=f"{name}_before")
        if stage.placement.mode is OnlineMode.LAZY:
            context.moved[buffer] = Buffer(f"{name}_moved", DType.int32, (), Scope.LOCAL)
        if isinstance(stage.placement, Online) and exported(context.plan, stage):
            kernel = root_of(context.plan, stage).name
            context.inside.setdefault(kernel, {})[tensor] = buffer
            context.exports[tensor] = Buffer(
                name,
                tensor.dtype,
                stage.op.shape,
                evict=stage.evict,
                evict_then=stage.evict_then,
            )
    if isinstance(stage.placement, Online) and isinstance(stage.op, ComputeOp):
        context.folded[stage.name] = _folded(context, stage, stage.op)


def _shape(context: Context, stage: StagePlan) -> tuple[Expr, ...]:
    """The shape of what is stored of an attached stage: nothing for sizes for which no loop reads
    it, of which the region may have an extent below 0.

    Of B[io * 4] for io in 0..(n + 3) // 4:  max((n + 3) // 4 * 4 - 3, 0)
    """
    facts = plan_facts(context.plan)
    return tuple(at_least_none(box.extent, facts) for box in context.bounds[stage.name].stored)


def _aligned(stage: StagePlan, shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The shape with rows as long as `storage_align` asks for."""
    if not isinstance(stage.op, ComputeOp) or not stage.aligned:
        return shape
    sizes = list(shape)
    places = {axis: n for n, axis in enumerate(stage.op.axes)}
    for each in stage.aligned:
        row = places[each.axis] + 1
        gap = floormod(sub(as_index(each.offset), shape[row]), as_index(each.factor))
        sizes[row] = simplify(add(shape[row], gap))
    return tuple(sizes)


def _folded(context: Context, stage: StagePlan, op: ComputeOp) -> tuple[Buffer, ...]:
    """The accumulators of an online stage."""
    reduces = [body for body in op.bodies if isinstance(body, Reduce)]
    shown = {b.index: context.buffers[t] for b, t in zip(reduces, op.outputs, strict=True)}
    like = context.buffers[op.outputs[0]]
    buffers: list[Buffer] = []
    for n, source in enumerate(reduces[0].sources):
        own = shown.get(n)
        if own is None or is_estimate(context, stage) or reduces[0].finish is not None:
            own = replace(like, name=f"{stage.name}_folded{n}", dtype=source.dtype)
        buffers.append(own)
    return tuple(buffers)


def _is_workspace(context: Context, stage: StagePlan) -> bool:
    """True for what a step of a scan keeps in device memory: what one of its kernels computes for
    another, what is stored outside of them, and what has no constant size."""
    if _outlives_launch(context, stage):
        return True
    if not has_own_launch(context.plan, stage):
        return False
    return stage.placement.host in context.launches or any(
        constant(r.extent) is None for r in context.bounds[stage.name].stored
    )


def _outlives_launch(context: Context, stage: StagePlan) -> bool:
    """True for what is stored outside the kernels that compute the steps of a scan."""
    kept = stage.placement.kept
    root = root_of(context.plan, stage)
    if kept is None or root.name not in context.launches:
        return False
    return kept.axis is None or any(kept.axis is loop for loop in running(context.plan, root))


def _with_rows(context: Context, bounds: Bounds) -> Bounds:
    """The bounds of what is stored in the rows of a scan's result: an update at the coordinates of
    the whole, and an init in no rows beyond it."""
    changed = dict(bounds.stages)
    for _, scan in scan_stages(context.plan):
        for update in scan.updates:
            whole = tuple(Range(ZERO, extent) for extent in update.shape)
            name = context.plan.stage_of(update.op).name
            changed[name] = replace(changed[name], local=changed[name].index, stored=whole)
        for init in scan.inits:
            name = context.plan.stage_of(init.op).name
            own = changed[name]
            guard = less(own.index[init.op.axis[0]], scan.shape[0])
            if not prove(guard, own.facts):
                changed[name] = replace(own, guards=(*own.guards, guard))
    return Bounds(changed)


def _step_loops(context: Context, stage: StagePlan) -> tuple[Axis, ...]:
    """The loops of a scan that enclose what its steps compute."""
    order = stage.loop_order
    last = max((n for n, axis in enumerate(order) if axis in context.tree.inside), default=-1)
    return order[: last + 1]


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """The kernels of one step, the runtime scalar that counts the steps, and how many there are."""

    step: Var
    count: Expr
    funcs: tuple[Func, ...]


def _step_funcs(context: Context, stage: StagePlan) -> _Steps:
    """A kernel for each stage in the steps of a scan, in their order.

    Before:  for t: (for i: B[i] = f(S[t - 1, i]);  for i: S[t, i] = g(B[i]))
    After:   kernel B(t): for i: B[i] = ...;  kernel S(t): for i: S[t, i] = ...
    """
    loop = step_loop(stage)
    count = context.bounds[stage.name].extents[loop]
    step = Var(loop.name, loop.dtype, lower=0)
    inside = [axis for axis in _step_loops(context, stage) if axis is not loop]
    parts = [
        (child.stage, _nest(context, child))
        for phase in context.tree.inside.get(loop, ())
        for nest in phase.nests
        for child in (replace(nest, sharing=()), *nest.sharing)
        if isinstance(child.stage.op, ComputeOp)
    ]
    if inside:
        parts.append((stage, loops(context, stage, inside, Seq(()), ())))
    funcs: list[Func] = []
    for owner, body in parts:
        func = _func(context, owner, substitute_stmt(body, {loop: step}))
        known = (at_most(ZERO, step), less(step, count))
        if step in frozenset(func.sizes):
            extra = [v for v in variables(count) if isinstance(v, Var)]
            sizes = tuple(dict.fromkeys((*func.sizes, *extra)))
            func = replace(func, sizes=sizes, assumptions=(*func.assumptions, *known))
        funcs.append(func)
    return _Steps(step, count, tuple(funcs))


def _host_func(context: Context, stage: StagePlan, op: ExternOp, target: Target) -> Func:
    """The call of an extern's function, at its place among the kernels."""
    body = host_call(stage, op, context.buffers, target)
    params = (*dict.fromkeys(body.inputs), *body.outputs)
    sizes = dict.fromkeys(v for b in params for v in variables(*b.shape) if isinstance(v, Var))
    return Func(stage.name, params, tuple(sizes), body)


def _func(context: Context, stage: StagePlan, body: Stmt, when: Expr | None = None) -> Func:
    body = in_whole(context, body)
    touched = dict.fromkeys((*buffers_read(body), *buffers_written(body)))
    own = {each.buffer for each in walk_stmts(body) if isinstance(each, Allocate)}
    places = context.places
    if any(b not in places for b in touched if b not in own):
        buffers = dict.fromkeys((*context.buffers.values(), *context.counters.values()))
        places = {buffer: place for place, buffer in enumerate(buffers)}
    found = (b for b in touched if b in places and b not in own and b.scope is Scope.GLOBAL)
    params = tuple(sorted(found, key=places.__getitem__))
    sizes = _scalars(params, body, () if when is None else (when,))
    known = tuple(c for c in context.plan.assumptions if set(sizes).issuperset(variables(c)))
    launch = stage.placement.kernel.launch
    remarks = tuple(filter(None, (context.remarks[stage.name],)))
    return Func(stage.name, params, sizes, body, launch, known, when, remarks)


def _scalars(params: Sequence[Buffer], body: Stmt, others: Sequence[Expr]) -> tuple[Var, ...]:
    """Runtime scalars that the shapes, the body and `others` use."""
    exprs = [*(e for b in params for e in b.shape), *walk_exprs(body), *others]
    return tuple(dict.fromkeys(n for n in walk(*exprs) if isinstance(n, Var)))


def _sizes(
    buffers: Sequence[Buffer], funcs: Sequence[Func], conditions: Sequence[Expr]
) -> tuple[Var, ...]:
    shapes = [n for b in buffers for n in walk(*b.shape) if isinstance(n, Var)]
    assumed = [n for n in walk(*conditions) if isinstance(n, Var)]
    return tuple(dict.fromkeys([*shapes, *(v for f in funcs for v in f.sizes), *assumed]))


def _kernel_nest(context: Context, kernel: Kernel, ends: Mapping[str, Sequence[Last]]) -> Stmt:
    """The nests of a kernel side by side in its grid, each with its `ends`, what the last of its
    programs do."""
    nests = [
        finished(context, nest.stage, _stored_nest(context, nest), ends.get(nest.stage.name, ()))
        for nest in kernel.programs.nests
    ]
    return one_grid(nests) if len(nests) > 1 else nests[0]


def _stored_nest(context: Context, nest: Nest) -> Stmt:
    """A nest at root inside the buffers of what is stored outside its loops, none of which are of
    the grid then."""
    body = _nest(context, nest)
    for stage in nest.stages:
        body = _with_kept(context, stage.name, body)
    return body


def _nest(context: Context, nest: Nest) -> Stmt:
    """The nest of a stage, with those that share its outer loops."""
    return merged(context, [_part(context, stage) for stage in nest.stages])


def _part(context: Context, stage: StagePlan) -> Part:
    """The nest of one stage, of which the outer loops may be run by another."""
    op = stage.op
    if not isinstance(op, ComputeOp):
        raise InternalError(f"placeholder {stage.name} has no nest")
    if isinstance(op.bodies[0], Reduce):
        return Part(stage, reduction_of(context, stage))
    return Part(stage, _pointwise(context, stage, op))


def _pointwise(context: Context, stage: StagePlan, op: ComputeOp) -> Callable[[int], Stmt]:
    bounds = context.bounds[stage.name]
    if isinstance(op, ScanOp):
        around = _step_loops(context, stage)
        return lambda depth: loops(context, stage, around[depth:], Seq(()), ())
    indices = output_indices(stage, op, bounds)
    call = tensor_call(context, stage, op, bounds)
    stores = [
        Store(context.buffers[tensor], indices, lowered(context, body, bounds), call=call)
        for tensor, body in zip(op.outputs, op.bodies, strict=True)
    ]
    leaf = stores[0] if len(stores) == 1 else Seq(tuple(stores))
    order = running(context.plan, stage)
    return lambda depth: loops(context, stage, order[depth:], leaf, bounds.guards)


def _with_children(context: Context, axis: Axis, body: Stmt) -> Stmt:
    """`body` after the nests of the stages attached at `axis`, inside their buffers.

    The accumulators of an online stage outlive the iteration: its host allocates them.
    """
    for phase in reversed(context.tree.inside.get(axis, ())):
        for nest in reversed(phase.nests):
            body = _before(context, nest, body)
        if phase.sync is Sync.GRID_BARRIER:
            body = Seq((meeting(context, phase), body))
    return _with_kept(context, axis, body)


def _before(context: Context, nest: Nest, body: Stmt) -> Stmt:
    """`body` after a nest, inside its buffers."""
    buffers = [context.buffers[tensor] for stage in nest.stages for tensor in stage.op.outputs]
    if isinstance(nest.stage.placement, Online):
        body = Seq((reduction_of(context, nest.stage).step(), body))
        inside = [context.before[buffer] for buffer in buffers]
        inside.extend(context.moved[b] for b in buffers if b in context.moved)
    else:
        body = Seq((_nest(context, nest), body))
        inside = [*buffers, *(b for stage in nest.stages for b in carried(context, stage))]
        kept = {b for home in context.kept.values() for b in home}
        inside = [buffer for buffer in inside if buffer not in kept]
    for buffer in reversed(inside):
        shared = buffer.scope is Scope.GLOBAL and not buffer.private
        body = body if shared else Allocate(buffer, body)
    return body


def _with_kept(context: Context, home: Axis | str, body: Stmt) -> Stmt:
    """`body` inside the buffers of stages that are stored there and computed further in."""
    for buffer in reversed(context.kept.get(home, [])):
        body = Allocate(buffer, body)
    return body
