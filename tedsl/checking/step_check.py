"""The check behind `te.checked`: is what a schedule computes after a step what the definition says?

    definition -- numpy oracle --> wanted
    schedule -- lowered (CPU, Triton) --> loop IR -- interpreter --> got

Imports `lower`, `ir`, and the inputs and tolerance of the search's own check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tedsl.checking.checked import CheckedStep, Checks
from tedsl.checking.expected_outputs import Oracle
from tedsl.checking.random_inputs import Array, make_inputs
from tedsl.checking.rounding_flips import Sides
from tedsl.checking.shrink_problem import smaller
from tedsl.checking.tolerance import Tolerance, mismatch
from tedsl.errors import ExprError, InternalError, LowerError, ScheduleError
from tedsl.expr.nodes import Expr, Var
from tedsl.ir.interp import run
from tedsl.lower.pipeline import lower
from tedsl.reference.evaluate import evaluate_scalar
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.graph import runtime_sizes
from tedsl.scheduling.trace.as_python import call_text
from tedsl.scheduling.trace.replay import replay_what_applies
from tedsl.scheduling.trace.trace import Step
from tedsl.target import Target
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

TARGETS = ("cpu", "triton-interpret")
ODD = (3, 5, 7, 9, 13, 17, 33)
OTHER = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 24, 32, 33, 48, 64, 96, 128)
PERIODS = (64, 48, 32, 24, 20, 16, 12, 8, 6, 4, 3, 2)
DRAWS = 200
LOOSE = 2.0**-4
"""How far, relative to the largest value, results may be off after consent to other rounding."""
_CONSENT = ("casts", "rounding", "consent")
_NARROWING = ("set_precision",)
_FINITE = ("online", "split_online")
"""They start maxima from a finite value, and give numbers where the definition gives NaN."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """One run: the sizes, the inputs, and what the definition makes of them."""

    size: Extents
    inputs: dict[Tensor, Array]
    outputs: list[Array]
    noise: list[float]

    @property
    def text(self) -> str:
        """`n=5, m=0`."""
        return ", ".join(f"{var.name}={value}" for var, value in self.size.values.items())


class StepChecker:
    """Checks a schedule after each of its steps, and notes what was checked.

    Args:
        checks: where to note it.
        sizes: what symbolic sizes may be.
        seed: of sizes and inputs.
        points: how many points one run may have.
    """

    def __init__(
        self, checks: Checks, sizes: Mapping[str | Var, int | Sequence[int]], seed: int, points: int
    ) -> None:
        self.checks = checks
        self.sizes = {
            key.name if isinstance(key, Var) else key: (value,) if isinstance(value, int) else value
            for key, value in sizes.items()
        }
        self.seed = seed
        self.points = points

    def check(self, schedule: Schedule) -> None:
        """Check `schedule` as it is after its last step.

        Raises:
            InternalError: the step changed the result.
            ScheduleError: too large to be run, or sizes that are not those of the computation.
        """
        number, step = len(schedule.trace), schedule.trace.steps[-1]
        noted = CheckedStep(number, call_text(step))
        rng = np.random.default_rng([self.seed & 0xFFFFFFFF, number])
        known = runtime_sizes(schedule.plan)
        self._require_known(known, noted)
        small = False
        assumptions = schedule.plan.assumptions
        wanted = list(self.runs(schedule.definition, known, assumptions, rng))
        if not wanted:
            schedule, wanted, noted = self._smaller(schedule, known, rng, noted)
            small = True
        if noted.unchecked:
            self.checks.steps.append(noted)
            return
        ran = [t for t in TARGETS if self._target_agrees(schedule, wanted, t, noted, small)]
        sizes = tuple(each.text for each in wanted)
        unchecked = "" if ran else "no target can carry it out as it is now"
        done = replace(noted, sizes=sizes, targets=tuple(ran), smaller=small, unchecked=unchecked)
        self.checks.steps.append(done)

    def _require_known(self, known: Mapping[str, Var], noted: CheckedStep) -> None:
        for name in self.sizes:
            if name not in known:
                raise ScheduleError(
                    f"the computation has no size {name!r}",
                    subject=f"checked(sizes=...), step {noted.number}, {noted.text}",
                    facts=[("sizes", ", ".join(known) or "none")],
                    hint="name sizes that occur in shapes",
                )

    def _smaller(
        self,
        schedule: Schedule,
        known: Mapping[str, Var],
        rng: np.random.Generator,
        noted: CheckedStep,
    ) -> tuple[Schedule, list[Wanted], CheckedStep]:
        """A copy over smaller extents by the same calls, and its runs."""
        for period in PERIODS:
            outputs = smaller(schedule.definition, period)
            if outputs is None:
                continue
            wanted = list(self.runs(outputs, known, schedule.plan.assumptions, rng))
            if not wanted:
                continue
            copy, report = replay_what_applies(outputs, schedule.trace)
            if report.skipped and report.skipped[-1].number == noted.number:
                why = f"does not apply to a smaller copy: {report.skipped[-1].reason}"
                return copy, wanted, replace(noted, smaller=True, unchecked=why)
            return copy, wanted, noted
        possible = any(True for _ in self._settings(known, schedule.plan.assumptions, rng))
        raise ScheduleError(
            f"the computation is too large to be checked: it has more than {self.points} points, "
            "and its extents cannot be made smaller"
            if possible
            else "no small sizes were found for which the assumptions of the schedule hold",
            subject=f"checked, step {noted.number}, {noted.text}",
            hint="make its sizes symbolic (te.size_var), which are drawn small, or allow more with "
            "checked(points=...)"
            if possible
            else "name some: checked(sizes={name: value or list of values})",
        )

    def runs(
        self,
        outputs: tuple[Tensor, ...],
        known: Mapping[str, Var],
        assumptions: Sequence[Expr],
        rng: np.random.Generator,
    ) -> Iterator[Wanted]:
        """The runs of a definition that are small enough and read inside their tensors."""
        seen: set[tuple[int, ...]] = set()
        for given in self._settings(known, assumptions, rng):
            key = tuple(given.values())
            if key in seen:
                continue
            seen.add(key)
            size = Extents(_workload(outputs, known), given)
            tensors = [tensor for op in size.workload.operations for tensor in op.outputs]
            extents = [extent for tensor in tensors for extent in size.shape(tensor)]
            points = sum(size.points(op) for op in size.workload.computes)
            if points > self.points or min(extents, default=0) < 0:
                continue
            inputs = make_inputs(size, self.seed + len(seen), "random")
            oracle = Oracle(size, "cpu")
            try:
                found = oracle.outputs(inputs, self.seed)
                noise = oracle.noise(inputs, found, self.seed)
            except ExprError:
                continue  # the definition has no meaning at these sizes
            yield Wanted(size, inputs, found, noise)

    def _settings(
        self, known: Mapping[str, Var], assumptions: Sequence[Expr], rng: np.random.Generator
    ) -> Iterator[dict[str, int]]:
        """Values of the sizes: odd, all 1, one 0; each as the assumptions allow."""
        names = list(known)

        def allowed(given: Mapping[str, int]) -> bool:
            scalars = {known[name]: np.int64(value) for name, value in given.items()}
            low = all(value >= (known[name].lower or 0) for name, value in given.items())
            return low and all(evaluate_scalar(c, scalars) for c in assumptions)

        def drawn(pool: Sequence[int]) -> dict[str, int]:
            return {n: int(rng.choice(list(self.sizes.get(n, pool)))) for n in names}

        if not names:
            yield {}
            return
        free = [name for name in names if name not in self.sizes]
        zero = free[int(rng.integers(len(free)))] if free else ""
        kinds: tuple[tuple[Sequence[int], str], ...] = ((ODD, ""), ((1,), ""), (ODD, zero))
        for pool, none in kinds:
            for attempt in range(DRAWS):
                given = drawn(pool if attempt < DRAWS // 4 else OTHER)
                if none and attempt < DRAWS // 4:
                    given[none] = 0
                if allowed(given):
                    yield given
                    break
        small = drawn((2, 3))
        if allowed(small):
            yield small

    def _target_agrees(
        self,
        schedule: Schedule,
        wanted: Sequence[Wanted],
        target: str,
        noted: CheckedStep,
        small: bool,
    ) -> bool:
        """True when the lowering for `target` ran and agrees; False when it refuses.

        Raises:
            InternalError: it does not agree.
        """
        try:
            module = lower(schedule.plan, Target.parse(target), check=True)
        except LowerError:
            return False
        except InternalError as error:
            raise self._wrong(schedule, noted, target, "", small, error.reason) from error
        for each in wanted:
            named = {
                stage.name: each.inputs[stage.op.outputs[0]]
                for stage in schedule.plan.stages
                if isinstance(stage.op, PlaceholderOp) and stage.op.outputs[0] in each.inputs
            }
            arrays = {buffer: named[buffer.name] for buffer in module.inputs}
            values = {var.name: value for var, value in each.size.values.items()}
            try:
                found = run(module, arrays, {var: values[var.name] for var in module.sizes})
            except InternalError as error:
                wrong = f"its loop IR fails: {error.reason}"
                raise self._wrong(schedule, noted, target, each.text, small, wrong) from error
            for place, buffer in enumerate(module.outputs):
                complaint = difference(schedule, each, place, np.asarray(found[buffer]))
                if complaint is not None:
                    raise self._wrong(schedule, noted, target, each.text, small, complaint)
        return True

    def _wrong(
        self,
        schedule: Schedule,
        noted: CheckedStep,
        target: str,
        sizes: str,
        small: bool,
        complaint: str,
    ) -> InternalError:
        trace = schedule.as_python().rstrip().replace("\n", "\n          ")
        facts = [("target", target), ("seed", str(self.seed))]
        facts += [("sizes", sizes)] if sizes else []
        facts += [("copy", "with smaller constant extents")] if small else []
        return InternalError(
            f"step {noted.number} made the result wrong: {complaint}",
            subject=noted.text,
            facts=[*facts, ("trace", trace)],
            hint="report the trace with the definition; do without the step",
        )


def _workload(outputs: tuple[Tensor, ...], sizes: Mapping[str, Var]) -> Workload:
    """What inputs and tolerances are made of; without the text that names a problem."""
    found = operations(outputs)
    ops = tuple(op for op in found if isinstance(op, (PlaceholderOp, ComputeOp)))
    return Workload(outputs, ops, tuple(sizes.values()), "", "")


def difference(schedule: Schedule, wanted: Wanted, place: int, got: Array) -> str | None:
    """What is wrong with output `place`, or None."""
    tensor = wanted.size.workload.outputs[place]
    want, noise = wanted.outputs[place], wanted.noise[place]
    sizes = {var.name: var for var in wanted.size.values}
    values = {var.name: value for var, value in wanted.size.values.items()}
    now = Extents(_workload(schedule.outputs, sizes), values)
    ways = [Tolerance.of(size, now.workload.outputs[place]) for size in (wanted.size, now)]
    tolerance = replace(
        ways[0],
        relative=max(way.relative for way in ways),
        scaled=max(way.scaled for way in ways),
        flips=max(way.flips for way in ways),
        noise=noise,
    )
    if any(map(_consents, schedule.trace.steps)):
        tolerance = replace(tolerance, scaled=LOOSE, relative=LOOSE)
    if any(step.primitive in _FINITE for step in schedule.trace.steps):
        got, want = _where_finite(got, want)
    excuse = Sides(wanted.size, tensor, lambda: wanted.inputs)
    return mismatch(got, want, tolerance, tensor.name, excuse)


def _consents(step: Step) -> bool:
    """True when the step was asked for although results may differ by more than reassociation."""
    given = any(key in _CONSENT and value for key, value in step.kwargs)
    return given or step.primitive in _NARROWING


def _where_finite(got: Array, want: Array) -> tuple[Array, Array]:
    """Both with 0 where the wanted value is no finite float."""
    if want.dtype.kind in "iub":
        return got, want
    finite = np.isfinite(want.astype(np.float64))
    zero = want.dtype.type(0)
    return np.where(finite, got, zero), np.where(finite, want, zero)
