"""Which steps of a schedule could make one kernel of two stages: data, nothing is tried here.

A `Plot` is what to take back of the trace, and the calls to make then.  Nothing is known of what
stages compute: producer and reader are brought together by each primitive that moves stages, at
each loop that could hold them.  Imports `scheduling`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tedsl.expr.nodes import Axis, AxisKind
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.kernels.tree import computed_in, guests, hosts
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.graph import is_reduction, tensors_read
from tedsl.scheduling.plan.labels import labels
from tedsl.scheduling.trace.replay import replay_what_applies
from tedsl.scheduling.trace.trace import AxisRef, MapRef, SizeRef, StageRef, Step, TensorRef, Value
from tedsl.tensor.tensor import ComputeOp, Tensor

OF_ITSELF = frozenset({"launch", "compute_with", "recompute"})
"""What is decided about a stage and not its loops."""
OWN_KERNEL = frozenset({"bind", "parallel", "launch", "specialize", "pragma"})
"""Decisions that only a kernel of its own can have."""
DEEPEST = 3
"""Loops of a stage that others are attached at, from the innermost on."""


@dataclass(frozen=True, slots=True)
class Plot:
    """Steps that may fuse two stages: numbers of steps of the trace to take back first, the calls
    to make, and stages whose remaining data loops become dimensions of a tile (on a GPU)."""

    without: frozenset[int]
    steps: tuple[Step, ...]
    tiled: tuple[str, ...] = ()


def into_reader(schedule: Schedule, first: str, second: str) -> Iterator[Plot]:
    """Ways to compute `first` in the kernel of `second`, which reads it; the plainest come first.

    What was decided about the kernel of `first` is taken back: all of it, or where stages are
    computed in its loops only what no other kernel can have.
    """
    plan = schedule.plan
    producer, reader = plan.stage(first), plan.stage(second)
    bare, bound = _own_steps(schedule, first), _own_steps(schedule, first, OWN_KERNEL)
    inside = guests(plan, producer)
    taken = [bound] if inside else list(dict.fromkeys((bare, bound)))
    pure = not is_reduction(producer.op) and producer.op.num_outputs == 1 and not inside
    if pure:
        yield Plot(taken[0], (Step("compute_inline", first),))
    hosts = list(_hosts(plan, reader))
    for without in taken:
        for host, axis in hosts:
            at = (StageRef(host.name), AxisRef(host.name, labels(host)[axis]))
            yield Plot(without, (Step("compute_at", first, at),))
    if not pure and not hosts:
        yield Plot(taken[0], (Step("compute_inline", first),))
    if is_reduction(reader.op):
        for axis in [a for a in _open_loops(reader) if a.kind is AxisKind.REDUCE][:1]:
            step = Step("online", second, (AxisRef(second, labels(reader)[axis]),))
            yield Plot(taken[0], (step,))


def into_producer(schedule: Schedule, first: str, second: str) -> Iterator[Plot]:
    """Ways to compute `second` in the loops of `first`, which it reads."""
    plan = schedule.plan
    producer, reader = plan.stage(first), plan.stage(second)
    if not reader.placement.at_root or not isinstance(producer.op, ComputeOp):
        return
    without = _own_steps(schedule, second)
    loops = [a for a in _open_loops(producer) if a.kind is AxisKind.DATA]
    for axis in list(reversed(loops))[:DEEPEST]:
        at = (StageRef(first), AxisRef(first, labels(producer)[axis]))
        yield Plot(without, (Step("reverse_compute_at", second, at),), (second,))


def together(schedule: Schedule, first: str, second: str) -> Iterator[Plot]:
    """Ways to compute two stages that read the same in one kernel: with the loops of `first`, as
    those of `second` are or made anew like them, or side by side."""
    plan = schedule.plan
    leader, stage = plan.stage(first), plan.stage(second)
    inside = guests(plan, stage)
    without = _own_steps(schedule, second, OWN_KERNEL if inside else None)
    like = () if inside else tuple(_alike(schedule, leader, stage))
    loops = [a for a in _open_loops(leader) if a.kind is AxisKind.DATA]
    for axis in list(reversed(loops))[:DEEPEST]:
        at = (StageRef(first), AxisRef(first, labels(leader)[axis]))
        yield Plot(without, (*like, Step("compute_with", second, at)), (second,))
    yield Plot(frozenset(), (Step("compute_with", second, (StageRef(first),)),))


def shared_inputs(plan: Plan, first: str, second: str) -> tuple[Tensor, ...]:
    """The tensors that both kernels read from memory, by their root stages."""
    mine = _read_by_kernel(plan, first)
    return tuple(t for t in _read_by_kernel(plan, second) if t in mine)


def without_steps(schedule: Schedule, numbers: frozenset[int]) -> Schedule:
    """The schedule without some steps of its trace, from 1, and what follows from them."""
    if not numbers:
        return schedule
    reasons = dict.fromkeys(numbers, "the stage would be in another kernel")
    return replay_what_applies(schedule.definition, schedule.trace, without=reasons)[0]


def code_of(step: Step) -> str:
    """A step as Python over a schedule `s`."""
    args = [_shown(value) for value in step.args]
    args += [f"{key}={_shown(value)}" for key, value in step.kwargs]
    return f's["{step.stage}"].{step.primitive}({", ".join(args)})'


def _shown(value: Value) -> str:
    match value:
        case AxisRef(stage=stage, axis=axis):
            return f's["{stage}"].axis("{axis}")'
        case StageRef(stage=stage):
            return f's["{stage}"]'
        case TensorRef(stage=stage, index=index):
            return f's["{stage}"].op.output({index})'
        case tuple():
            return f"[{', '.join(map(_shown, value))}]"
        case _:
            return repr(value)


def _own_steps(schedule: Schedule, name: str, only: frozenset[str] | None = None) -> frozenset[int]:
    """The numbers of the steps about a stage, from 1."""
    return frozenset(
        number
        for number, step in enumerate(schedule.trace.steps, 1)
        if step.stage == name and (only is None or step.primitive in only)
    )


def _open_loops(stage: StagePlan) -> list[Axis]:
    """The loops that something may be computed in, outermost first."""
    closed = (LoopKind.VECTORIZED,)
    return [axis for axis in stage.loop_order if stage.mark(axis).kind not in closed]


def _hosts(plan: Plan, reader: StagePlan) -> Iterator[tuple[StagePlan, Axis]]:
    """Loops around the reads of a stage, from the innermost outwards."""
    found: list[tuple[StagePlan, Axis]] = [(reader, a) for a in reversed(_open_loops(reader))]
    for stage, inner in hosts(plan, reader):
        loops = _open_loops(stage)
        place = next((n for n, axis in enumerate(loops) if axis is inner), len(loops) - 1)
        found += [(stage, axis) for axis in reversed(loops[: place + 1])]
    yield from found[:DEEPEST]


def _read_by_kernel(plan: Plan, root: str) -> dict[Tensor, None]:
    """What the stages of a kernel read that it does not compute; single elements aside."""
    names = computed_in(plan, [root])
    inside = [s for s in plan.stages if s.name in names]
    made = {s.op for s in inside}
    return {
        tensor: None
        for stage in inside
        for tensor in _inputs(stage)
        if tensor.op not in made and tensor.shape
    }


def _inputs(stage: StagePlan) -> tuple[Tensor, ...]:
    return tensors_read(stage.op) if isinstance(stage.op, ComputeOp) else ()


def _alike(schedule: Schedule, leader: StagePlan, stage: StagePlan) -> Iterator[Step]:
    """The leader's decisions about its loops, for the loops of another stage of as many axes."""
    mine = [axis.name for axis in leader.root_axes if axis.kind is AxisKind.DATA]
    yours = [axis.name for axis in stage.root_axes if axis.kind is AxisKind.DATA]
    if len(mine) != len(yours):
        return
    names = dict(zip(mine, yours, strict=True))
    for step in schedule.trace.steps:
        if step.stage != leader.name or step.primitive in OF_ITSELF:
            continue
        yield Step(
            step.primitive,
            stage.name,
            tuple(_renamed(value, leader.name, stage.name, names) for value in step.args),
            tuple(
                (key, _renamed(value, leader.name, stage.name, names)) for key, value in step.kwargs
            ),
            tuple(_label(name, names) for name in step.results),
        )


def _renamed(value: Value, leader: str, stage: str, names: Mapping[str, str]) -> Value:
    match value:
        case AxisRef(stage=owner, axis=axis) if owner == leader:
            return AxisRef(stage, _label(axis, names))
        case StageRef() | TensorRef() | MapRef() | SizeRef() | AxisRef():
            return value
        case tuple():
            return tuple(_renamed(item, leader, stage, names) for item in value)
        case _:
            return value


def _label(label: str, names: Mapping[str, str]) -> str:
    """`i.outer` as `x.outer`."""
    return ".".join(names.get(part, part) for part in label.split("."))
