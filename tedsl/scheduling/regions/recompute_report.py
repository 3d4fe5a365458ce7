"""How often each attached or inlined stage computes the same element, and which loop makes it.

Counted from region inference: the points that are computed against the points of the definition.
Imports the plan, bounds and names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from tedsl.expr.nodes import Axis, Expr, Reduce, TensorRead, Var
from tedsl.expr.visit import axes_of, walk
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.scheduling.kernels.complete import as_it_runs
from tedsl.scheduling.kernels.tree import loops_around
from tedsl.scheduling.plan import Online, Plan, StagePlan
from tedsl.scheduling.plan.graph import runtime_sizes
from tedsl.scheduling.plan.labels import axis_text, labels
from tedsl.scheduling.primitives.stage_facts import first_fold
from tedsl.scheduling.regions.infer import Bounds, infer, moving, region_inside
from tedsl.scheduling.regions.sliding_window import Slide
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, ScanOp

# More than this many times is reported as too often.
OFTEN = 2.0
# What a runtime size is taken to be when it is not given.
PLAUSIBLE = 1024


@dataclass(frozen=True, slots=True)
class Recomputation:
    """How often one stage is computed: `computed` points for `points` of its definition.

    `place` says where (`at C.i`, `inlined into C`); `loops` are the loops that repeat work, each
    with how many times.  `copies` names what a stage reads that only moves elements, as those of
    `cache_read` do: nothing is computed then, however often it is read.
    """

    stage: str
    place: str
    points: int
    computed: int
    loops: tuple[tuple[str, float], ...]
    advice: str
    copies: str = ""

    @property
    def factor(self) -> float:
        """How many times an element is computed, on average; 1 for a copy."""
        if self.copies:
            return 1.0
        return self.computed / self.points if self.points else 0.0

    @property
    def too_often(self) -> bool:
        """True beyond twice."""
        return self.factor > OFTEN

    def __str__(self) -> str:
        if self.copies:
            return f"{self.stage} {self.place}: copies {self.copies}"
        text = f"{self.stage} {self.place}: computed {self.factor:.3g} times"
        if not self.too_often:
            return text
        lines = [f"{text}  <-- redundant"]
        lines += [f"  because {loop} repeats it {times:.3g} times" for loop, times in self.loops]
        return "\n".join([*lines, f"  do      {self.advice}"])


@dataclass(frozen=True, slots=True)
class Pipelined:
    """A loop whose loads run ahead: its name, and how many iterations are in flight."""

    loop: str
    num_stages: int

    def __str__(self) -> str:
        ahead = self.num_stages - 1
        if not ahead:
            return f"{self.loop} in 1 stage: nothing is loaded ahead"
        steps = "iteration" if ahead == 1 else "iterations"
        return (
            f"{self.loop} in {self.num_stages} stages\n"
            f"  cpu     prefetches what is read {ahead} {steps} later (prefetcht0, prfm)\n"
            f"  triton  tl.range(num_stages={self.num_stages})"
        )


@dataclass(frozen=True, slots=True)
class ScheduleReport:
    """The attached and inlined stages of a schedule, the sizes that were assumed, and the pipelined
    loops."""

    stages: tuple[Recomputation, ...]
    sizes: tuple[tuple[str, int], ...] = ()
    pipelined: tuple[Pipelined, ...] = ()

    @property
    def redundant(self) -> tuple[Recomputation, ...]:
        """The stages that are computed more than twice."""
        return tuple(stage for stage in self.stages if stage.too_often)

    def __getitem__(self, name: str) -> Recomputation:
        return next(stage for stage in self.stages if stage.stage == name)

    def __str__(self) -> str:
        head = [f"with {', '.join(f'{n} = {v}' for n, v in self.sizes)}"] if self.sizes else []
        rows = [*map(str, self.stages)] or ["every stage is at root: nothing is computed twice"]
        return "\n".join([*head, *rows, *map(str, self.pipelined)])


def explain_plan(
    plan: Plan, sizes: Mapping[str, int], target: Target | None = None
) -> ScheduleReport:
    """How often each attached or inlined stage is computed.

    Args:
        plan: the plan.
        sizes: values of runtime sizes, by name; those not given are taken to be 1024.
        target: with what it completes, where it is known.
    """
    known = {name: sizes.get(name, PLAUSIBLE) for name in runtime_sizes(plan)}
    values = {var: known[name] for name, var in runtime_sizes(plan).items()}
    counter = _Counter(plan, as_it_runs(plan, target), values)
    found = [counter.attached(s) for s in plan.stages if s.placement.axis is not None]
    inlined = [counter.inlined(s) for s in plan.stages if s.placement.inlined]
    order = {stage.name: n for n, stage in enumerate(plan.stages)}
    rows = sorted((row for row in (*found, *inlined) if row), key=lambda row: order[row.stage])
    pipelined = [
        Pipelined(axis_text(plan, axis), stage.mark(axis).num_stages)
        for stage in plan.stages
        for axis in stage.leaf_axes
        if stage.mark(axis).num_stages
    ]
    return ScheduleReport(tuple(rows), tuple(known.items()), tuple(pipelined))


class _Counter:
    """Counts over one plan."""

    def __init__(self, plan: Plan, shown: Plan, sizes: Mapping[Var, int]) -> None:
        self.plan = plan
        self.shown = shown
        self.bounds: Bounds = infer(self.shown)
        self.sizes = sizes
        self.evaluated: dict[str, int] = {}

    def attached(self, stage: StagePlan) -> Recomputation | None:
        """A stage in the loops of another: the product over these loops of how often each repeats
        what it computes.

        repeats(loop) = iterations * points computed inside it / points computed inside the loops
        around it
        """
        own = self.shown.stage(stage.name)
        if not isinstance(own.op, ComputeOp) or isinstance(own.op, ScanOp):
            return None
        loops = loops_around(self.shown, own)
        if isinstance(own.placement, Online):
            host = self.shown.stage(own.placement.host)
            along = frozenset(host.loop_order[first_fold(host) :])
            loops = tuple(axis for axis in loops if axis not in along)
        if own.placement.program is not None:  # its iterations compute one part each
            loops = tuple(axis for axis in loops if axis is not own.placement.program)
        points = [
            self._points(region_inside(self.shown, own, self.bounds, loops[:n]))
            for n in range(len(loops) + 1)
        ]
        repeats: list[tuple[str, float]] = []
        total = Fraction(points[-1])
        slide = moving(self.shown, own) if own.placement.kept is not None else None
        for n, axis in enumerate(loops):
            trips = Fraction(self._trips(axis))
            if isinstance(slide, Slide) and slide.loop is axis and trips:
                trips = (slide.window + slide.step * (trips - 1)) / slide.window
            total *= trips
            times = float(trips * points[n + 1] / points[n]) if points[n] else 0.0
            if times > 1:
                repeats.append((self._text(axis), times))
        repeats.sort(key=lambda each: -each[1])
        at = "" if stage.placement.axis is None else axis_text(self.plan, stage.placement.axis)
        worst = repeats[0][0] if repeats else at
        return Recomputation(
            stage.name,
            f"at {at}",
            self._points(stage.op.shape),
            int(total),
            tuple(repeats),
            f"attach {stage.name} outside the loop {worst}, compute it at root, or keep what is "
            "computed with store_at",
            _copied(stage),
        )

    def inlined(self, stage: StagePlan) -> Recomputation | None:
        """A stage that is written out where it is read: once for each evaluation of a reader."""
        readers = [r for r in self.plan.stages if self._reads(r, stage)]
        loops: list[tuple[str, float]] = []
        for reader in readers:
            for read in self._reads(reader, stage):
                loops += self._idle_loops(reader, read)
        names = ", ".join(reader.name for reader in readers)
        return Recomputation(
            stage.name,
            f"inlined into {names}",
            self._points(stage.op.shape),
            self._evaluations(stage),
            tuple(sorted(dict.fromkeys(loops), key=lambda each: -each[1])),
            f"attach {stage.name} to a reader with compute_at, or compute it at root",
            _copied(stage),
        )

    def _evaluations(self, stage: StagePlan) -> int:
        """How often the body of a stage is evaluated."""
        if stage.name not in self.evaluated:
            if stage.placement.inlined:
                total = sum(
                    self._evaluations(reader)
                    for reader in self.plan.stages
                    for _ in self._reads(reader, stage)
                )
            else:
                total = self._computed(stage)
            self.evaluated[stage.name] = total
        return self.evaluated[stage.name]

    def _computed(self, stage: StagePlan) -> int:
        row = self.attached(stage) if stage.placement.axis is not None else None
        total = self._points(stage.op.shape) if row is None else row.computed
        if isinstance(stage.op, ComputeOp) and isinstance(stage.op.bodies[0], Reduce):
            domains = [a.domain.extent for a in stage.op.reduce_axes if a.domain is not None]
            total *= self._points(domains)
        return total

    def _reads(self, reader: StagePlan, stage: StagePlan) -> list[TensorRead]:
        if not isinstance(reader.op, ComputeOp) or isinstance(reader.op, ScanOp):
            return []
        return [
            node
            for node in walk(*reader.op.bodies)
            if isinstance(node, TensorRead) and node.tensor.op is stage.op
        ]

    def _idle_loops(self, reader: StagePlan, read: TensorRead) -> list[tuple[str, float]]:
        """The axes of a reader that a read does not move along."""
        used, known = axes_of(*read.indices), labels(reader)
        extents = {a: a.domain.extent for a in reader.root_axes if a.domain is not None}
        return [
            (f"{reader.name}.{known[axis]}", float(self._points([extent])))
            for axis, extent in extents.items()
            if axis not in used and self._points([extent]) > 1
        ]

    def _trips(self, axis: Axis) -> int:
        found = next(b for b in self.bounds.stages.values() if axis in b.extents)
        return self._value(found.extents[axis])

    def _points(self, extents: Sequence[Expr]) -> int:
        return math.prod(self._value(extent) for extent in extents)

    def _value(self, expr: Expr) -> int:
        """A count; loops that it still depends on are in their first iteration."""
        values: dict[Expr, int] = {**self.sizes, **dict.fromkeys(axes_of(expr), 0)}
        try:
            return max(0, evaluate_int(expr, values))
        except EvaluationError:
            return 1

    def _text(self, axis: Axis) -> str:
        """A loop by the name that the user knows: an axis of the plan before it was separated."""
        for stage, own in zip(self.shown.stages, self._looped(), strict=False):
            for mine, theirs in zip(stage.leaf_axes, own.leaf_axes, strict=True):
                if mine is axis:
                    return axis_text(self.plan, theirs)
        return axis.name

    def _looped(self) -> list[StagePlan]:
        return [self.plan.stage(stage.name) for stage in self.shown.stages]


def _copied(stage: StagePlan) -> str:
    """What a stage reads whose elements are elements of it; empty when it computes something."""
    bodies = stage.op.bodies if isinstance(stage.op, ComputeOp) else ()
    read = [body.tensor.name for body in bodies if isinstance(body, TensorRead)]
    return ", ".join(dict.fromkeys(read)) if bodies and len(read) == len(bodies) else ""
