"""The kernels of a computation whose sizes are constants that a function is given.

Imports `problem` and `space`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tedsl.autotune.search_space.problem import Problem, ScheduleFunction
from tedsl.autotune.search_space.space import Candidate, Decisions
from tedsl.build import build
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Outputs
from tedsl.workload.workload import Workload

Make = Callable[..., Outputs]


class Instances:
    """The kernels of a function of constant sizes: one for each size and set of decisions, built
    when it is first asked for."""

    def __init__(
        self,
        make: Make,
        target: str,
        function: ScheduleFunction | None,
        chosen: Sequence[Decisions],
    ) -> None:
        self.make = make
        self.target = target
        self.function = function
        self.chosen = tuple(chosen)
        self.problems: dict[tuple[tuple[str, int], ...], Problem] = {}
        self.kernels: dict[tuple[object, ...], Kernel] = {}

    def kernel(self, number: int, sizes: Mapping[str, int]) -> Kernel:
        """The kernel by the decisions of this number; by others where these are not legal."""
        point = tuple(sorted(sizes.items()))
        found = self.kernels.get((number, point))
        if found is None:
            if point not in self.problems:
                outputs = Workload.of(self.make(**sizes)).outputs
                self.problems[point] = Problem(outputs, self.target, self.function)
            found = build(self._schedule(number, self.problems[point]), self.target)
            self.kernels[number, point] = found
        return found

    def _schedule(self, number: int, problem: Problem) -> Schedule:
        space = problem.space()
        for decisions in (self.chosen[number], *self.chosen):
            found = space.candidate(decisions, "dispatch")
            if isinstance(found, Candidate):
                return problem.schedule(found.decisions)
        return problem.schedule(space.default().decisions)
