"""The strategy `schedules`: random primitives with random arguments on any computation.

A primitive that is legal is kept; one that is not must raise `ScheduleError` and leave the schedule
as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

import choices as st
from choices import event
from drawn_calls import FACTORS, axis_of, call, lay_out, scatter, steps
from intrinsics import micro_kernel
from strategies import Draw

import tedsl as te
from tedsl.errors import ScheduleError
from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Axis, Const, Expr, Var
from tedsl.ir.nodes import LoopKind
from tedsl.runtime.arguments.sizes import evaluate
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.graph import runtime_sizes, tensors_read
from tedsl.scheduling.plan.relations import extents
from tedsl.scheduling.trace.replay import replay
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, ScanOp, Tensor

THREADS = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "vthread")
MIXED = 1 << 12
"""Elements of a tensor of which a layout may have places for many more."""
LAID_OUT = 3
"""How many schedules begin as their definitions are for each that begins with `lay_out`."""
PRAGMAS = ("auto_unroll_max_step", "unroll_explicit", "parallel", "tensor_core")
SCOPES = ("local", "local", "global", "shared")


_SIZES: WeakKeyDictionary[Schedule, Mapping[Var, int]] = WeakKeyDictionary()


@st.composite
def schedules(
    draw: Draw,
    outputs: Sequence[Tensor],
    max_steps: int = 8,
    sizes: Mapping[Var, int] | None = None,
) -> Schedule:
    """A schedule of `outputs` after up to `max_steps` attempted primitives.

    What it assumes holds for `sizes`.
    """
    schedule = started(outputs, sizes)
    if draw(st.integers(0, LAID_OUT)) == LAID_OUT:
        lay_out(draw, schedule)
    for _ in steps(draw, max_steps):
        attempt(draw, schedule)
    return schedule


def started(outputs: Sequence[Tensor], sizes: Mapping[Var, int] | None = None) -> Schedule:
    """Nothing is scheduled yet; what is assumed later holds for `sizes`."""
    schedule = te.create_schedule(list(outputs))
    _SIZES[schedule] = sizes or {}
    return schedule


def attempt(
    draw: Draw, schedule: Schedule, primitive: Primitive | None = None, but: Set[str] = frozenset()
) -> set[str]:
    """Draw a primitive, where none is given, and its arguments, and call it, of the stages `but`
    only where there are no others; what was accepted."""
    chosen: Primitive = primitive or draw(st.sampled_from(PRIMITIVES))
    stages = [s for s in schedule.stages if isinstance(s.op, (ComputeOp, ExternOp))]
    stage = draw(st.sampled_from([s for s in stages if s.name not in but] or stages))
    before = len(schedule.trace)
    try:
        chosen(draw, schedule, stage)
    except ScheduleError:
        event(f"refused {chosen.__name__}")
    else:
        event(f"accepted {chosen.__name__}")
    return {step.primitive for step in schedule.trace.steps[before:]}


def split(draw: Draw, s: Schedule, stage: Stage) -> None:
    option = "factor" if draw(st.booleans()) else "nparts"
    call(s, stage.split, axis_of(draw, stage), **{option: draw(st.sampled_from(FACTORS))})


def skew(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Often split afterwards, with a part of its own for what is cut at the start."""
    along = draw(st.sampled_from([*stage.plan.root_axes, Axis("nowhere")]))
    step, modulus = draw(st.integers(1, 9)), draw(st.sampled_from((1, 2, 4, 8)))
    axis = call(s, stage.skew, axis_of(draw, stage), along, step=step, modulus=modulus)
    if draw(st.booleans()):
        outer, _ = call(s, stage.split, axis, factor=draw(st.sampled_from(FACTORS)))
        call(s, stage.partition, outer, "ends")


def tile(draw: Draw, s: Schedule, stage: Stage) -> None:
    axes = stage.leaf_iter_vars[:2]
    call(s, stage.tile, *axes, *(draw(st.sampled_from(FACTORS)) for _ in axes))


def fuse(draw: Draw, s: Schedule, stage: Stage) -> None:
    leaves = stage.leaf_iter_vars
    first = draw(st.integers(0, max(0, len(leaves) - 2)))
    count = 0 if draw(st.integers(0, 9)) == 7 else 2
    call(s, stage.fuse, *leaves[first : first + count])


def reorder(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.reorder, *draw(st.permutations(list(stage.leaf_iter_vars)))[:3])


def bind(draw: Draw, s: Schedule, stage: Stage) -> None:
    leaves = stage.leaf_iter_vars
    axis = leaves[0] if leaves and draw(st.booleans()) else axis_of(draw, stage)
    call(s, stage.bind, axis, draw(st.sampled_from(THREADS)))


def vectorize(draw: Draw, s: Schedule, stage: Stage) -> None:
    leaves = stage.leaf_iter_vars
    call(s, stage.vectorize, leaves[-1] if leaves and draw(st.booleans()) else axis_of(draw, stage))


def unroll(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.unroll, axis_of(draw, stage))


def parallel(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.parallel, axis_of(draw, stage))


def atomic(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Sometimes with a reduce loop of it, or of another stage, outermost and at once."""
    reductions = [
        each for each in s.stages if isinstance(each.op, ComputeOp) and each.op.reduce_axis
    ]
    stage = draw(st.sampled_from([stage, *reductions, *reductions]))
    call(s, stage.atomic)
    folded = [a for a in stage.leaf_iter_vars if a.kind == "reduce"]
    if not folded or not draw(st.integers(0, 3)):
        return
    axis = draw(st.sampled_from(folded))
    if draw(st.booleans()):
        axis, _ = call(s, stage.split, axis, factor=draw(st.sampled_from(FACTORS)))
    if draw(st.booleans()):
        others = [a for a in stage.leaf_iter_vars if a is not axis]
        call(s, stage.reorder, axis, *others)
    if draw(st.booleans()):
        call(s, stage.parallel, axis)
    else:
        call(s, stage.bind, axis, draw(st.sampled_from(THREADS[:3])))


def pipeline(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.pipeline, axis_of(draw, stage), draw(st.integers(1, 4)))


def reverse(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.reverse, axis_of(draw, stage))


def serial(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.serial, axis_of(draw, stage))


def compute_at(draw: Draw, s: Schedule, stage: Stage) -> None:
    places = stage.legal_places()
    if places and draw(st.integers(0, 3)):
        call(s, stage.compute_at, *draw(st.sampled_from(places)))
        return
    other = draw(st.sampled_from(s.stages))
    call(s, stage.compute_at, other, axis_of(draw, other))


def store_at(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Store an attached stage at a loop of a stage around it, as a window or not."""
    if not stage.plan.placement.host and stage.legal_places() and draw(st.booleans()):
        compute_at(draw, s, stage)
    hosts = [s[stage.plan.placement.host]] if stage.plan.placement.host else list(s.stages)
    while hosts[-1].plan.placement.host and len(hosts) < 4:
        hosts.append(s[hosts[-1].plan.placement.host])
    host = draw(st.sampled_from(hosts))
    if host.leaf_iter_vars and draw(st.integers(0, 3)):
        call(s, stage.store_at, host, draw(st.sampled_from(host.leaf_iter_vars)))
    else:
        call(s, stage.store_root)
    if draw(st.booleans()):
        call(s, stage.rolling_buffer)


def compute_with(draw: Draw, s: Schedule, stage: Stage) -> None:
    """With one that is placed alike and neither reads it nor is read by it, where there is one."""
    others = [o for o in s.stages if o.name != stage.name and isinstance(o.op, ComputeOp)]
    alike = [o for o in others if o.plan.placement.axis is stage.plan.placement.axis]
    apart = [o for o in alike if stage.op not in _before(o.op) and o.op not in _before(stage.op)]
    leader = draw(st.sampled_from(apart or alike or others or [stage]))
    loops = leader.leaf_iter_vars
    if loops and draw(st.integers(0, 3)):
        axis = loops[0] if draw(st.booleans()) else draw(st.sampled_from(loops))
        call(s, stage.compute_with, leader, axis)
    else:
        call(s, stage.compute_with, leader)


def _before(op: Operation) -> set[Operation]:
    """All that an operation reads, and what that reads."""
    found, left = set[Operation](), [op]
    while left:
        reads = {tensor.op for tensor in tensors_read(left.pop())} - found
        found |= reads
        left += reads
    return found


def _programs(draw: Draw, s: Schedule, stage: Stage) -> list[Axis]:
    """The loops of the grid; where there are none the outermost may become one."""
    loops = stage.leaf_iter_vars
    programs = [a for a in loops if stage.plan.mark(a).kind is LoopKind.PROGRAM]
    if not programs and loops and draw(st.booleans()):
        call(s, stage.bind, loops[0], "blockIdx.x")
        programs = [loops[0]]
    return programs


def compute_last(draw: Draw, s: Schedule, stage: Stage) -> None:
    """By the last programs of a stage that it reads, or of any."""
    near = _read(s, stage)
    others = [o for o in s.stages if isinstance(o.op, ComputeOp)]
    other = draw(st.sampled_from(near or others or [stage]))
    _programs(draw, s, other)
    call(s, stage.compute_last, other)


def _read(s: Schedule, stage: Stage) -> list[Stage]:
    """The computed stages that it reads."""
    return [s[t.op] for t in tensors_read(stage.op) if isinstance(t.op, ComputeOp)]


def compute_across(draw: Draw, s: Schedule, stage: Stage) -> None:
    """By the programs of a loop around where it is read, or of any loop."""
    stage = draw(st.sampled_from(_read(s, stage) or [stage]))
    places = stage.legal_places()
    host, at = draw(st.sampled_from(places)) if places else (stage, axis_of(draw, stage))
    programs = _programs(draw, s, host) or host.leaf_iter_vars
    if programs:
        over = draw(st.sampled_from(programs))
        call(s, stage.compute_across, host, at, axis_of(draw, stage), over)


def compute_inline(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.compute_inline)


def compute_root(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.compute_root)


def set_scope(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.set_scope, draw(st.sampled_from(SCOPES)))


def launch(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.launch, num_warps=draw(st.sampled_from((1, 4, 5))))


def cache_read(draw: Draw, s: Schedule, stage: Stage) -> None:
    sources = [t for each in s.stages for t in each.op.outputs]
    tensor = draw(st.sampled_from(sources))
    copy = call(s, s.cache_read, tensor, draw(st.sampled_from(SCOPES)), [stage])
    places = s[copy].legal_places()
    if places and draw(st.booleans()):
        call(s, s[copy].compute_at, *draw(st.sampled_from(places)))


def recompute(draw: Draw, s: Schedule, stage: Stage) -> None:
    sources = [t for each in _read(s, stage) or s.stages for t in each.op.outputs]
    copy = call(s, s.recompute, draw(st.sampled_from(sources)), [stage])
    places = s[copy].legal_places()
    if places and draw(st.booleans()):
        call(s, s[copy].compute_at, *draw(st.sampled_from(places)))


def cache_write(draw: Draw, s: Schedule, stage: Stage) -> None:
    outputs = list(stage.op.outputs)
    made: Any = call(s, s.cache_write, outputs if len(outputs) > 1 else outputs[0], "local")
    copy = s[made[0] if isinstance(made, list) else made]
    places = copy.legal_places()
    if places and draw(st.booleans()):
        call(s, copy.compute_at, *draw(st.sampled_from(places)))


def divide(draw: Draw, s: Schedule, stage: Stage) -> None:
    at = draw(st.sampled_from((0, 1, 1, 2, 3, 4, 5, 8)))
    call(s, s.divide, stage.op.outputs[0], axis_of(draw, stage), at)


def rfactor(draw: Draw, s: Schedule, stage: Stage) -> None:
    axes = [a for a in stage.leaf_iter_vars if a.kind == "reduce"] or [axis_of(draw, stage)]
    axis = draw(st.sampled_from(axes))
    if draw(st.booleans()):
        axis = draw(
            st.sampled_from(call(s, stage.split, axis, factor=draw(st.sampled_from(FACTORS))))
        )
    call(s, s.rfactor, stage.op.outputs[0], axis, factor_axis=draw(st.sampled_from((0, 0, 1, -1))))


def reverse_compute_at(draw: Draw, s: Schedule, stage: Stage) -> None:
    """A stage that the drawn one reads where there is one, at one of its outer loops."""
    other = draw(st.sampled_from(_read(s, stage) or s.stages))
    leaves = other.leaf_iter_vars[:2]
    axis = draw(st.sampled_from(leaves)) if leaves and draw(st.booleans()) else axis_of(draw, other)
    call(s, stage.reverse_compute_at, other, axis)


def reverse_compute_inline(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.reverse_compute_inline)


def undo(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Take back some steps: what is left is what the calls before them make."""
    call(s, s.undo, draw(st.integers(1, 3)))
    again = replay(s.definition, s.trace)
    again = again.copy(target=Target.parse(s.target)) if s.target else again
    assert str(again) == str(s) and not s.diff(again)


def decompose_reduction(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, s.decompose_reduction, stage.op.outputs[0], axis_of(draw, stage))


def transform_layout(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Permuted, split, fused, shifted or reversed; sometimes with two elements at one place.  Of
    what is read, where the drawn stage reads something."""
    stage = draw(st.sampled_from([*_read(s, stage), stage]))
    sizes = stage.op.shape
    kind = draw(st.sampled_from(("permute", "split", "fuse", "shift", "reverse", "mix", "drop")))
    step, place = draw(st.sampled_from((1, 2, 3, 4, 8))), draw(st.integers(0, 2))
    order = draw(st.permutations(list(range(len(sizes)))))

    def layout(*axes: Axis) -> Any:
        if not axes:
            return [0]
        first, rest = axes[place % len(axes)], [axes[n] for n in order]
        match kind:
            case "split":
                return [first // step, *(a for a in rest if a is not first), first % step]
            case "fuse" if len(axes) > 1:
                return [axes[0] * sizes[1] + axes[1], *axes[2:]]
            case "shift":
                return [a + step if a is first else a for a in rest]
            case "reverse":
                return [sizes[place % len(axes)] - 1 - first if a is first else a for a in rest]
            case "mix" if prod(n.value if isinstance(n, Const) else MIXED for n in sizes) < MIXED:
                return [(first + 1) // step, *rest[:1], *rest[1:], (first + 1) % step]
            case "drop":
                return [first % step, *(a for a in rest if a is not first)]
            case _:
                return rest

    call(s, stage.transform_layout, layout)


def set_precision(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Wider types, which the bound of the comparison covers; others only to be refused."""
    wider = {"float32": "float64", "int32": "int64", "int8": "int32", "uint8": "int32"}
    refused = draw(st.sampled_from(("float64", "int64", "bool")))
    wide = {"compute": True} if draw(st.integers(0, 2)) == 0 else {}
    dtype = wider.get(stage.op.output_dtypes[0], refused)
    call(s, s.set_precision, stage.op.outputs[0], dtype, **wide)


def group(draw: Draw, s: Schedule, stage: Stage) -> None:
    """What lies between two drawn stages moves into a third, or each by itself."""
    first, target = draw(st.sampled_from(s.stages)), draw(st.sampled_from(s.stages))
    made = s.create_group(stage, first, include_inputs=draw(st.booleans()))
    if draw(st.integers(0, 3)):
        call(s, made.compute_at, target, axis_of(draw, target))
    else:
        call(s, made.compute_root)


def auto_inline(draw: Draw, s: Schedule, stage: Stage) -> None:
    passes = te.schedule
    every = (passes.AutoInlineElemWise, passes.AutoInlineBroadcast, passes.AutoInlineInjective)
    draw(st.sampled_from(every))(s)


def _condition(draw: Draw, s: Schedule) -> Expr | bool:
    """A condition on one or two sizes; a bool where the computation has none."""
    sizes = [v for v in runtime_sizes(s.plan).values() if v.dtype.is_integer]
    if not sizes:
        return draw(st.booleans())
    n, m = draw(st.sampled_from(sizes)), draw(st.sampled_from(sizes))
    bound = draw(st.sampled_from(FACTORS))
    simple = (n % bound == 0, n >= bound, n < bound, n == bound, n >= m, n * m < bound)
    first, second = draw(st.sampled_from(simple)), draw(st.sampled_from(simple))
    return draw(st.sampled_from((first, first, first, ~first, first & second, first | second)))


def assume(draw: Draw, s: Schedule, stage: Stage) -> None:
    condition, known = _condition(draw, s), _SIZES.get(s, {})
    if isinstance(condition, Expr) and (not known or not evaluate(condition, known)):
        condition = True
    call(s, s.assume, condition)


def cut(draw: Draw, s: Schedule, stage: Stage) -> None:
    points: list[Any] = sorted(draw(st.sets(st.integers(1, 9), min_size=1, max_size=2)))
    sizes = [v for v in runtime_sizes(s.plan).values() if v.dtype.is_integer]
    if sizes and draw(st.booleans()):
        points.append(draw(st.sampled_from(sizes)) - draw(st.integers(-2, 4)))
    call(s, stage.cut, axis_of(draw, stage), *points)


def partition(draw: Draw, s: Schedule, stage: Stage) -> None:
    policy = st.sampled_from(("always", "never", "auto"))
    call(s, stage.partition, axis_of(draw, stage), draw(policy))


def blockize(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.blockize, axis_of(draw, stage))


def hints(draw: Draw, s: Schedule, stage: Stage) -> None:
    """What TVM scripts say of memory and threads."""
    kind = draw(st.integers(0, 5))
    axis = axis_of(draw, stage)
    if kind == 5:
        then = draw(st.sampled_from((None, "first", "normal")))
        call(s, stage.evict, draw(st.sampled_from(("first", "last"))), then)
    elif kind == 0:
        factor, offset = draw(st.sampled_from(FACTORS)), draw(st.integers(0, 3))
        axes = [*stage.op.axis, axis] if isinstance(stage.op, ComputeOp) else [axis]
        call(s, stage.storage_align, draw(st.sampled_from(axes)), factor, offset)
    elif kind == 1:
        call(s, stage.double_buffer)
    elif kind == 2:
        sources = [t for each in s.stages for t in each.op.outputs]
        tensor, ahead = draw(st.sampled_from(sources)), draw(st.integers(0, 2))
        call(s, stage.prefetch, tensor, axis, ahead)
    elif kind == 3:
        thread = te.thread_axis(draw(st.sampled_from(THREADS)))
        call(s, stage.set_store_predicate, thread.var.equal(draw(st.integers(0, 1))))
    else:
        value = draw(st.sampled_from((None, 0, 4, 16)))
        call(s, stage.pragma, axis, draw(st.sampled_from(PRAGMAS)), value)


def specialize(draw: Draw, s: Schedule, stage: Stage) -> None:
    call(s, stage.specialize, _condition(draw, s))


def env_threads(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Threads around the steps of a scan, sometimes of loops that all its steps have bound."""
    scans = [each for each in s.stages if isinstance(each.op, ScanOp)]
    if not scans:
        call(s, stage.env_threads, draw(st.lists(st.sampled_from(THREADS), max_size=2)))
        return
    scan = draw(st.sampled_from(scans))
    call(s, scan.env_threads, draw(st.sampled_from(("blockIdx.x", THREADS, ()))))
    parts = [e for e in s.stages if e.plan.placement.host == scan.name and e.leaf_iter_vars]
    if not draw(st.booleans()):
        return
    factor = draw(st.sampled_from((None, *FACTORS)))
    for part in parts:
        axis = part.leaf_iter_vars[-1]
        if factor is not None:
            axis, _ = call(s, part.split, axis, factor=factor)
        call(s, part.bind, axis, "blockIdx.x")


def associative_scan(draw: Draw, s: Schedule, stage: Stage) -> None:
    """A scan as folds over triangles, whose loops over steps are then tiles, sometimes."""
    scans = [each for each in s.stages if isinstance(each.op, ScanOp)]
    stage = draw(st.sampled_from(scans)) if scans else stage
    block = draw(st.sampled_from((None, None, *FACTORS)))
    axis = draw(st.sampled_from((0, 0, -1, 1)))
    folded = call(s, s.associative_scan, stage.op.outputs[0], block, step_axis=axis)
    tensors = folded if isinstance(folded, list) else [folded]
    fold = s[tensors[0]]
    if draw(st.booleans()):
        for loop in (*fold.op.axis, *fold.op.reduce_axis):
            call(s, fold.vectorize, loop)


def around_steps(draw: Draw, s: Schedule, stage: Stage) -> None:
    """A loop of a scan before all others: around its steps."""
    scans = [each for each in s.stages if isinstance(each.op, ScanOp)]
    stage = draw(st.sampled_from(scans)) if scans else stage
    leaves = list(stage.leaf_iter_vars)
    axis = draw(st.sampled_from(leaves)) if leaves else Axis("nowhere")
    call(s, stage.reorder, axis, *(other for other in leaves if other is not axis))


def dot(draw: Draw, s: Schedule, stage: Stage) -> None:
    """Only what changes no product: whether it may be a matrix product."""
    axes = [a for a in stage.leaf_iter_vars if a.kind == "reduce"] or [axis_of(draw, stage)]
    axis = draw(st.sampled_from(axes))
    call(s, stage.dot, axis, use=draw(st.booleans()), finite=draw(st.booleans()))


def tensorize(draw: Draw, s: Schedule, stage: Stage) -> None:
    """The inner loops of a product of its size, or of whatever the stage is, as a micro kernel."""
    reductions = [e for e in s.stages if isinstance(e.op, ComputeOp) and e.op.reduce_axis]
    stage = draw(st.sampled_from([stage, *reductions, *reductions]))
    leaves = stage.leaf_iter_vars
    data = [a for a in leaves if a.kind != "reduce"][-2:]
    folded = [a for a in leaves if a.kind == "reduce"][-1:]
    m, n, k = (draw(st.sampled_from((1, 2, 3, 4, 4))) for _ in range(3))
    if len(data) < 2 or not folded:
        call(s, stage.tensorize, axis_of(draw, stage), micro_kernel(m, n, k))
        return
    inner: list[Axis] = []
    outer: list[Axis] = []
    if draw(st.integers(0, 4)):  # else it has guards
        m, n, k = (_dividing(draw, stage, axis) for axis in (*data, *folded))
    for axis, factor in zip((*data, *folded), (m, n, k), strict=True):
        made: Any = call(s, stage.split, axis, factor=factor)
        outer.append(made[0])
        inner.append(made[1])
    if draw(st.integers(0, 9)):
        call(s, stage.reorder, *outer, *inner)
    call(s, stage.tensorize, inner[0], micro_kernel(m, n, k))


def _dividing(draw: Draw, stage: Stage, axis: Axis) -> int:
    """A factor of a loop."""
    extent = constant(extents(stage.plan)[axis]) or 1
    return draw(st.sampled_from([f for f in (2, 3, 4) if extent % f == 0] or [1]))


Primitive = Callable[[Draw, Schedule, Stage], None]
PRIMITIVES: tuple[Primitive, ...] = (
    *[split] * 3,
    *[skew] * 2,
    tile,
    fuse,
    reorder,
    reorder,
    bind,
    vectorize,
    vectorize,
    unroll,
    parallel,
    atomic,
    atomic,
    scatter,
    scatter,
    pipeline,
    reverse,
    reverse,
    serial,
    *[compute_at] * 3,
    *[compute_with] * 2,
    compute_last,
    compute_across,
    store_at,
    store_at,
    compute_inline,
    compute_root,
    set_scope,
    launch,
    cache_read,
    recompute,
    cache_write,
    divide,
    divide,
    rfactor,
    reverse_compute_at,
    reverse_compute_inline,
    decompose_reduction,
    undo,
    transform_layout,
    transform_layout,
    set_precision,
    group,
    auto_inline,
    assume,
    specialize,
    cut,
    cut,
    partition,
    blockize,
    hints,
    hints,
    env_threads,
    associative_scan,
    around_steps,
    dot,
    tensorize,
)
