"""`te.space`: what may be chosen for a computation, printed or as JSON.

Sizes are exact where the tree of choices is small enough to be walked; else the mean, over random
walks from the root, of the product of the numbers of choices met (Knuth's estimate of the leaves of
a tree), with its standard error.  Imports `space` and `problem`.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tedsl import saving
from tedsl.autotune.search_space.problem import Problem, ScheduleFunction
from tedsl.autotune.search_space.space import Candidate, Choice, Knob, Rejected, Space, show
from tedsl.errors import TuneError
from tedsl.expr.index_arith import range_text, whole_number
from tedsl.shown import InNotebook
from tedsl.slips import suggests
from tedsl.target import Target
from tedsl.tensor.tensor import Outputs
from tedsl.workload.workload import Workload

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
COUNTED = 500
"""Candidates up to which they are counted one by one."""
MOST_SAMPLES = 100_000


@dataclass(frozen=True, slots=True)
class Size:
    """How many candidates a space has.

    Attributes:
        count: exact, or the estimate.
        error: its standard error; 0 when exact.
        method: how it was found, in words.
    """

    count: float
    error: float
    method: str

    def __str__(self) -> str:
        if self.error == 0.0:
            return f"{self.count:,.0f} ({self.method})"
        return f"about {_rounded(self.count):,.0f} +- {_rounded(self.error):,.0f} ({self.method})"


@suggests(TuneError)
@dataclass(frozen=True, slots=True)
class KnobInfo:
    """One knob of a space.

    Attributes:
        name: as the schedule function calls it.
        kind: `yes/no`, `number`, `name`, or `order`.
        choices: all that were met, numbers in ascending order.
        default: what the default schedule takes; None where it does not meet the knob.
        met: whether the default schedule meets it.
        depends: knobs whose choice decides whether it is met, or what its choices are.
    """

    name: str
    kind: str
    choices: tuple[Choice, ...]
    default: Choice
    met: bool
    depends: tuple[str, ...]

    def __str__(self) -> str:
        default = f"default {show(self.default)}" if self.met else "not met by default"
        depends = f"; depends on {', '.join(self.depends)}" if self.depends else ""
        values = " ".join(show(choice) for choice in self.choices)
        return f"{self.name}: {self.kind} of {values}; {default}{depends}"


@suggests(TuneError)
@dataclass(frozen=True, slots=True)
class Listing(InNotebook):
    """What may be chosen for a computation on a target; `print` it, or take `to_json()`.

    Attributes:
        name: which function made the space.
        target: where it is to run.
        size: how many candidates.
        knobs: in the order in which they are met.
        sampled: candidates drawn.
        distinct: distinct traces among them.
        refused: draws that a primitive refused.
    """

    name: str
    target: str
    size: Size
    knobs: tuple[KnobInfo, ...]
    sampled: int
    distinct: int
    refused: int

    def __str__(self) -> str:
        drawn = f"{self.sampled} drawn: {self.distinct} distinct traces, {self.refused} refused"
        head = f"space {self.name!r} for {self.target}: {self.size}; {drawn}"
        return "\n".join([head, *(f"  {knob}" for knob in self.knobs)])

    def save(self, path: str | Path) -> Path:
        """Write it to a file.

        Args:
            path: `.json` or `.txt`.

        Returns:
            The path.

        Raises:
            TuneError: another ending, or a file that cannot be written.
        """
        plain = saving.text(lambda: f"{self}\n")
        writers = {".json": saving.text(self.to_json), ".txt": plain}
        return saving.save(path, "a space", writers, TuneError)

    def to_json(self) -> str:
        """The same as JSON text."""
        data: dict[str, Json] = {
            "name": self.name,
            "target": self.target,
            "size": {
                "count": self.size.count,
                "error": self.size.error,
                "method": self.size.method,
            },
            "sampled": self.sampled,
            "distinct": self.distinct,
            "refused": self.refused,
            "knobs": [
                {
                    "name": knob.name,
                    "kind": knob.kind,
                    "choices": list(knob.choices),
                    "default": knob.default,
                    "met": knob.met,
                    "depends": list(knob.depends),
                }
                for knob in self.knobs
            ],
        }
        return json.dumps(data, indent=1)


def list_space(
    outputs: Outputs,
    target: str | Target,
    schedule: ScheduleFunction | None = None,
    samples: int = 64,
    seed: int = 0,
) -> Listing:
    """What may be chosen for `outputs` on `target`: see `te.space`."""
    count = whole_number(samples)
    if count is None or not 1 <= count <= MOST_SAMPLES:
        raise TuneError(
            f"samples is {samples!r}",
            facts=[("allowed", range_text(1, MOST_SAMPLES))],
            hint=f"give {range_text(1, MOST_SAMPLES)} as samples",
        )
    where = Target.parse(target)
    problem = Problem(Workload.of(outputs).outputs, str(where.kind), schedule)
    space, rng = problem.space(), random.Random(seed)
    default = space.default()
    drawn = [space.sample(rng) for _ in range(count)]
    legal = [one for one in drawn if isinstance(one, Candidate)]
    size = _counted(space) or _estimated(legal or [default])
    found = _knobs(space, default, legal)
    named = problem.naming.named
    knobs = tuple(
        KnobInfo(
            named(info.name),
            info.kind,
            info.choices,
            info.default,
            info.met,
            tuple(named(name) for name in info.depends),
        )
        for info in found
    )
    distinct = len({one.identity for one in legal})
    refused = len(drawn) - len(legal)
    return Listing(problem.name, str(where.kind), size, knobs, len(drawn), distinct, refused)


def _counted(space: Space) -> Size | None:
    """The exact number of candidates, when a walk over the tree is short."""
    if math.prod(len(knob.choices) for knob in space.default().knobs) > COUNTED:
        return None
    waiting: list[dict[str, Choice]] = [{}]
    count = 0
    while waiting:
        prefix = waiting.pop()
        found = space.candidate(prefix, "walk")
        if isinstance(found, Rejected):
            continue
        following = next((knob for knob in found.knobs if knob.name not in prefix), None)
        if following is None:
            count += 1
            continue
        if count + len(waiting) + len(following.choices) > COUNTED:
            return None
        waiting += [{**prefix, following.name: choice} for choice in following.choices]
    return Size(float(count), 0.0, "every combination was made")


def _estimated(drawn: Sequence[Candidate]) -> Size:
    """Every draw of a leaf has the probability 1 / the product of the numbers of choices."""
    products = [float(math.prod(len(knob.choices) for knob in one.knobs)) for one in drawn]
    mean = sum(products) / len(products)
    spread = sum((each - mean) ** 2 for each in products) / max(1, len(products) - 1)
    error = math.sqrt(spread / len(products))
    return Size(mean, error, f"estimated from {len(products)} random walks down the tree")


def _knobs(space: Space, default: Candidate, drawn: Sequence[Candidate]) -> list[KnobInfo]:
    """All knobs met, and for each which others change it."""
    places: dict[str, Candidate] = {}
    choices: dict[str, dict[str, Choice]] = {}
    for one in (default, *drawn):
        for knob in one.knobs:
            places.setdefault(knob.name, one)
            found = choices.setdefault(knob.name, {})
            found.update({show(choice): choice for choice in knob.choices})
    depends = {name: set[str]() for name in places}
    for one in dict.fromkeys(places.values()):
        _note_changes(space, one, [n for n, place in places.items() if place is one], depends)
    chosen = default.decisions
    return [
        KnobInfo(
            name,
            _kind(choices[name].values()),
            _in_order(choices[name].values()),
            chosen.get(name),
            name in chosen,
            tuple(other for other in places if other in depends[name]),
        )
        for name in places
    ]


def _note_changes(
    space: Space, one: Candidate, wanted: Sequence[str], depends: dict[str, set[str]]
) -> None:
    """Change each knob of a candidate by itself; which of `wanted` are other knobs then?"""
    own = {knob.name: knob.choices for knob in one.knobs}
    last = max(place for place, knob in enumerate(one.knobs) if knob.name in wanted)
    for knob in one.knobs[:last]:
        others = knob.nearest()
        for choice in dict.fromkeys((*others[:1], *others[-1:])):
            changed = space.candidate({**one.decisions, knob.name: choice}, "walk")
            if isinstance(changed, Rejected):
                continue
            now: Mapping[str, tuple[Choice, ...]] = {k.name: k.choices for k in changed.knobs}
            for name in wanted:
                if name != knob.name and now.get(name) != own[name]:
                    depends[name].add(knob.name)


def _kind(choices: Iterable[Choice]) -> str:
    values = list(choices)
    if all(isinstance(value, bool) for value in values):
        return "yes/no"
    if any(isinstance(value, tuple) for value in values):
        return "order"
    if Knob("", tuple(values), None).is_ordered:
        return "number"
    return "name"


def _in_order(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    values = list(choices)
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return tuple(sorted(numbers)) if len(numbers) == len(values) else tuple(values)


def _rounded(value: float) -> float:
    """Two leading digits."""
    if value <= 0:
        return 0.0
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(value / scale) * scale
