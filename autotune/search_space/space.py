"""The search space of a schedule function: a define-by-run tree of named choices.

A schedule function calls `s.knob(name, choices)` for every open choice, and which knobs it meets
may depend on the answers so far.  A `Candidate` is one full set of answers, reduced to the knobs
that were really met.  The space runs the function to learn what a set of answers leads to; it
never looks inside.  Pure logic: imports only `errors`.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol, TypeAlias, cast

from tedsl.errors import BackendError, LowerError, ScheduleError, TuneError

Choice: TypeAlias = "bool | int | float | str | tuple[Choice, ...] | None"
Decisions: TypeAlias = Mapping[str, Choice]
MAX_ROUNDS = 64
"""How often a sample is refined before its space is called endless."""
ROUNDS_AHEAD = 2
"""How many candidates each of the others is given to make at a time."""
MANY_KNOBS = 24
"""Of a function that meets more, a random candidate differs from the default in some alone: to draw
them all takes a run of the function for every few, since each draw changes what the others are."""
MOST_CHANGES = 4
"""How many these are at most."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One open choice as it was met: its allowed values and the one taken."""

    name: str
    choices: tuple[Choice, ...]
    chosen: Choice

    @property
    def is_ordered(self) -> bool:
        """True when every choice is a number, so that neighbours mean something."""
        return all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in self.choices)

    def nearest(self) -> tuple[Choice, ...]:
        """The other choices, nearest to the chosen one first; equal distance in the order given."""
        others = [c for c in self.choices if c != self.chosen or type(c) is not type(self.chosen)]
        return tuple(sorted(others, key=lambda c: distance(c, self.chosen)))


@dataclass(frozen=True, slots=True)
class Realised:
    """What one run of the schedule function led to: the knobs met in order, and the trace as JSON
    text."""

    knobs: tuple[Knob, ...]
    trace: str = ""


Builder: TypeAlias = Callable[[Decisions], Realised]
"""Runs the schedule function under some decisions.  Raises ScheduleError and its kin when they are
not legal."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One full set of answers.  `key` is its canonical JSON; `identity` names the program it leads
    to."""

    knobs: tuple[Knob, ...]
    trace: str = ""
    origin: str = "default"

    @property
    def decisions(self) -> dict[str, Choice]:
        """Knob name to choice, in the order met."""
        return {knob.name: knob.chosen for knob in self.knobs}

    @property
    def key(self) -> str:
        """Canonical JSON of the decisions."""
        return canonical(self.decisions)

    @property
    def identity(self) -> str:
        """Equal for two candidates that lead to the same trace (or, without traces, the same
        decisions)."""
        return hashlib.sha256((self.trace or self.key).encode()).hexdigest()[:32]

    def __str__(self) -> str:
        text = ", ".join(f"{name}={show(value)}" for name, value in self.decisions.items())
        return text or "default"


@dataclass(frozen=True, slots=True)
class Rejected:
    """Decisions that the schedule function could not carry out, and why."""

    decisions: Decisions
    reason: str
    error: str


Asked: TypeAlias = "tuple[Decisions, str]"
Drawing: TypeAlias = "Generator[Asked, Candidate | Rejected, Candidate | Rejected]"
"""Asks for what decisions lead to, step by step, and comes to a candidate."""


def crossed(a: Candidate, b: Candidate, rng: random.Random) -> dict[str, Choice]:
    """Answers taken at random from two candidates."""
    mixed = a.decisions
    for name, value in b.decisions.items():
        if name not in mixed or rng.random() < 0.5:
            mixed[name] = value
    return mixed


def changes(centre: Candidate) -> Iterator[dict[str, Choice]]:
    """The answers of a candidate with one changed, nearest choices of every knob first."""
    ranked = [
        (rank, index, choice)
        for index, knob in enumerate(centre.knobs)
        for rank, choice in enumerate(knob.nearest())
    ]
    for _, index, choice in sorted(ranked, key=lambda row: row[:2]):
        decisions = centre.decisions
        decisions[centre.knobs[index].name] = choice
        yield decisions


class Elsewhere(Protocol):
    """Other processes that run the schedule function, too."""

    @property
    def width(self) -> int:
        """How many of them would answer at once; 0 while all have other things to do."""
        ...

    def realise(self, wanted: Sequence[Decisions]) -> Sequence[Candidate | Rejected | None]:
        """What decisions lead to; None for what they could not say."""
        ...


class Space:
    """All candidates of one schedule function.

    Args:
        builder: runs the function under some decisions.
        name: identifies the function, so that records of another function are never mixed in.
        named: what the function itself calls a knob.

    Attributes:
        elsewhere: who runs the function besides; what comes of it is the same, only sooner.
    """

    def __init__(
        self, builder: Builder, name: str = "rules", named: Callable[[str], str] = str
    ) -> None:
        self.builder = builder
        self.name = name
        self.named = named
        self.elsewhere: Elsewhere | None = None
        self._known: dict[str, Candidate | Rejected] = {}

    def default(self) -> Candidate:
        """The candidate of no decisions.

        Raises:
            TuneError: the default itself is not legal, so there is nothing to compare with.
        """
        found = self.candidate({}, "default")
        if isinstance(found, Rejected):
            raise TuneError(
                f"the schedule's default choices are not legal: {found.reason}",
                facts=[("error", found.error.replace("\n", " "))],
                hint="give each knob a default= that is legal, or fix the schedule function",
            )
        return found

    def candidate(self, decisions: Decisions, origin: str) -> Candidate | Rejected:
        """What `decisions` lead to; knobs they do not name take their defaults, names never met
        are dropped."""
        asked = canonical(decisions)
        done = self._known.get(asked)
        if done is None:
            done = self._known[asked] = self._run(dict(decisions), origin)
        if isinstance(done, Candidate) and done.origin != origin:
            return replace(done, origin=origin)
        return done

    def sample(self, rng: random.Random) -> Candidate | Rejected:
        """A random candidate: knobs are drawn as they appear, until no new one does; where they are
        many, some of the default's."""
        return self._ended(self._random(rng))

    def mutate(self, parent: Candidate, rng: random.Random) -> Candidate | Rejected:
        """`parent` with one knob (now and then two) changed, mostly to a near choice."""
        return self._ended(self._mutation(parent, rng))

    def draws(
        self, parents: Sequence[Candidate | None], rng: random.Random
    ) -> Iterator[Candidate | Rejected]:
        """For each parent a mutation of it, for each None a random candidate.

        Each has random numbers of its own, so that it does not matter how many of them are made
        together, nor where.
        """
        waiting = [(parent, random.Random(rng.getrandbits(64))) for parent in parents]
        while waiting:
            count = self._together
            yield from self._ended_together(
                [
                    self._random(own) if parent is None else self._mutation(parent, own)
                    for parent, own in waiting[:count]
                ]
            )
            del waiting[:count]

    def cross(self, a: Candidate, b: Candidate, rng: random.Random) -> Candidate | Rejected:
        """Answers taken at random from two candidates."""
        return self.candidate(crossed(a, b, rng), "cross")

    def neighbours(self, centre: Candidate) -> Iterator[Candidate | Rejected]:
        """Every change of one knob, nearest choices of every knob first."""
        wanted = changes(centre)
        for decisions in wanted:
            some = [decisions]
            if canonical(decisions) not in self._known:
                some += islice(wanted, self._together - 1)
                self._learn(some)
            for each in some:
                yield self.candidate(each, "local")

    def look_around(self, centres: Sequence[Candidate], count: int) -> None:
        """Find out what the first `count` neighbours of several candidates are, all together,
        before they are asked for one by one."""
        self._learn([d for centre in centres for d in islice(changes(centre), count)])

    def points(self) -> None:
        """None: what a function's whole space holds is known only by running it everywhere."""

    def describe(self) -> str:
        """The knobs of the default schedule, one line each, and how many combinations they make."""
        default = self.default()
        rows = [f"{k.name}: {show(k.chosen)}  of {show(k.choices)}" for k in default.knobs]
        size = math.prod(len(knob.choices) for knob in default.knobs)
        return "\n".join(
            [f"space {self.name!r}: {size} combinations of the default's knobs", *rows]
        )

    def _run(self, decisions: dict[str, Choice], origin: str) -> Candidate | Rejected:
        """Run the function; a decision that is no choice of its knob here gives way to the default.

        That happens when the choices of one knob depend on another that was changed.
        """
        asked = dict(decisions)
        while True:
            try:
                realised = self.builder(decisions)
            except (ScheduleError, LowerError, BackendError) as error:
                stale = [
                    name for name in decisions if error.subject == f"knob({self.named(name)!r})"
                ]
                if stale:
                    del decisions[stale[0]]
                    continue
                return Rejected(asked, reason_of(error), str(error))
            return Candidate(realised.knobs, realised.trace, origin)

    @property
    def _together(self) -> int:
        """How many candidates are worth making at a time."""
        width = 0 if self.elsewhere is None else self.elsewhere.width
        return max(1, ROUNDS_AHEAD * width)

    def _learn(self, wanted: Sequence[Decisions]) -> None:
        """Have others say what decisions lead to that are not known yet; what they leave out is
        made here when it is asked for."""
        fresh = {canonical(d): d for d in wanted if canonical(d) not in self._known}
        if self.elsewhere is None or not self.elsewhere.width or len(fresh) < 2:
            return
        found = self.elsewhere.realise(list(fresh.values()))
        pairs = zip(fresh, found, strict=True)
        self._known |= {asked: one for asked, one in pairs if one is not None}

    def _ended(self, drawing: Drawing) -> Candidate | Rejected:
        """What a drawing comes to."""
        return self._ended_together([drawing])[0]

    def _ended_together(self, drawings: Sequence[Drawing]) -> list[Candidate | Rejected]:
        """What each of several drawings comes to; they go on step by step."""
        ended: dict[int, Candidate | Rejected] = {}
        asked: dict[int, Asked] = {}
        for place, drawing in enumerate(drawings):
            self._go_on(place, drawing, None, asked, ended)
        while asked:
            self._learn([decisions for decisions, _ in asked.values()])
            for place, (decisions, origin) in list(asked.items()):
                found = self.candidate(decisions, origin)
                self._go_on(place, drawings[place], found, asked, ended)
        return [ended[place] for place in range(len(drawings))]

    @staticmethod
    def _go_on(
        place: int,
        drawing: Drawing,
        found: Candidate | Rejected | None,
        asked: dict[int, Asked],
        ended: dict[int, Candidate | Rejected],
    ) -> None:
        """Tell a drawing what it asked for; note what it asks next, or what it came to."""
        try:
            asked[place] = next(drawing) if found is None else drawing.send(found)
        except StopIteration as end:
            asked.pop(place, None)
            ended[place] = end.value

    def _random(self, rng: random.Random) -> Drawing:
        """The steps of `sample`."""
        default = yield {}, "random"
        if isinstance(default, Rejected):
            return default
        open_knobs = [knob for knob in default.knobs if len(knob.choices) > 1]
        if len(open_knobs) <= MANY_KNOBS:
            return (yield from self._completion({}, rng, "random"))
        changed = rng.sample(open_knobs, rng.randint(1, MOST_CHANGES))
        return (yield {knob.name: rng.choice(knob.nearest()) for knob in changed}, "random")

    def _mutation(self, parent: Candidate, rng: random.Random) -> Drawing:
        """The steps of `mutate`."""
        open_knobs = [knob for knob in parent.knobs if len(knob.choices) > 1]
        if not open_knobs:
            return parent
        count = 2 if len(open_knobs) > 1 and rng.random() < 0.35 else 1
        decisions = parent.decisions
        for knob in rng.sample(open_knobs, count):
            decisions[knob.name] = _step(knob, rng)
        if rng.random() < 0.5:
            return (yield decisions, "mutation")
        return (yield from self._completion(decisions, rng, "mutation"))

    def _completion(self, decisions: Decisions, rng: random.Random, origin: str) -> Drawing:
        """Draw every knob that `decisions` leave open; choices of the ones they name are kept.

        All open knobs are drawn at once; where an earlier draw changed the choices of a later knob,
        that one and all after it are drawn again, so that each is drawn from what it really has.
        """
        taken = dict(decisions)
        drawn: dict[str, tuple[Choice, ...]] = {}
        found = yield dict(taken), origin
        for _ in range(MAX_ROUNDS):
            if isinstance(found, Rejected):
                return found
            stale = [k.name for k in found.knobs if drawn.get(k.name, k.choices) != k.choices]
            if stale:
                later = [k.name for k in found.knobs]
                for name in later[later.index(stale[0]) :]:
                    if drawn.pop(name, None) is not None:
                        taken.pop(name, None)
            fresh = [knob for knob in found.knobs if knob.name not in taken]
            if not fresh:
                return found
            first = fresh[:1] if stale else fresh
            for knob in first:
                taken[knob.name] = rng.choice(knob.choices)
                drawn[knob.name] = knob.choices
            following = yield dict(taken), origin
            if isinstance(following, Rejected) and len(first) > 1:
                # a combination of draws that does not exist: settle the first alone
                for knob in first[1:]:
                    del taken[knob.name], drawn[knob.name]
                following = yield dict(taken), origin
            found = following
        raise TuneError(
            f"the schedule function still meets new knobs after {MAX_ROUNDS} rounds",
            facts=[("knobs", ", ".join(sorted(taken)[:8]))],
            hint="give each choice one fixed name; do not number names by a growing counter",
        )


def _step(knob: Knob, rng: random.Random) -> Choice:
    """Another choice of `knob`: one of the two nearest three times in four, else any."""
    near = knob.nearest()
    return rng.choice(near[:2]) if rng.random() < 0.75 else rng.choice(near)


def distance(a: Choice, b: Choice) -> float:
    """How far apart two choices are: 0 when equal, octaves for numbers, a sum over tuples, else
    1."""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return sum(distance(x, y) for x, y in zip(a, b, strict=True))
    x, y = _number(a), _number(b)
    if x is not None and y is not None:
        if x > 0 and y > 0:
            return abs(math.log2(x / y))
        return 0.0 if x == y else 1.0 + abs(x - y) / (1.0 + abs(x) + abs(y))
    return 0.0 if a == b and type(a) is type(b) else 1.0


def _number(value: Choice) -> float | None:
    """`value` as a float when it is a number and no bool."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return None


def difference(a: Candidate, b: Candidate) -> int:
    """How many knobs differ; one that only one of them meets counts too."""
    left, right = a.decisions, b.decisions
    return sum(left.get(name, _ABSENT) != right.get(name, _ABSENT) for name in {**left, **right})


_ABSENT = ("absent from the candidate",)


def canonical(decisions: Decisions) -> str:
    """The one JSON text of a set of decisions."""
    return json.dumps(dict(decisions), sort_keys=True, separators=(",", ":"))


def freeze(value: object, knob: str = "") -> Choice:
    """A JSON value with lists made tuples.

    Raises:
        TuneError: a value that JSON cannot hold.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Sequence):
        return tuple(freeze(item, knob) for item in cast("Sequence[object]", value))
    raise TuneError(
        f"knob {knob!r} has the choice {value!r} of type {type(value).__name__}",
        hint="choices are bool, int, float, str, None, or tuples of these",
    )


def written(found: Candidate | Rejected) -> dict[str, object]:
    """What decisions lead to, as JSON."""
    if isinstance(found, Rejected):
        return {"decisions": found.decisions, "reason": found.reason, "error": found.error}
    knobs = [(knob.name, knob.choices, knob.chosen) for knob in found.knobs]
    return {"knobs": knobs, "trace": found.trace}


def read_found(data: Mapping[str, Any], origin: str = "default") -> Candidate | Rejected:
    """What `written` wrote."""
    if "reason" in data:
        asked = {name: freeze(value, name) for name, value in data["decisions"].items()}
        return Rejected(asked, data["reason"], data["error"])
    knobs: list[Knob] = []
    for name, choices, chosen in data["knobs"]:
        offered = tuple(freeze(choice, name) for choice in choices)
        knobs.append(Knob(name, offered, freeze(chosen, name)))
    return Candidate(tuple(knobs), data["trace"], origin)


def read_decisions(text: str) -> dict[str, Choice]:
    """The decisions that `canonical` wrote."""
    data = json.loads(text)
    if not isinstance(data, dict):
        raise TuneError(f"decisions {text[:60]!r} are not a JSON object")
    items = cast("dict[str, object]", data)
    return {name: freeze(value, name) for name, value in items.items()}


def show(value: Choice) -> str:
    """A choice as short text."""
    if isinstance(value, tuple):
        return "(" + " ".join(show(item) for item in value) + ")"
    return str(value)


def reason_of(error: ScheduleError | LowerError | BackendError) -> str:
    """A short text that groups like failures: the primitive when there is one, else the first
    words."""
    primitive = getattr(error, "primitive", "")
    head = error.reason.split("\n", 1)[0]
    return f"{primitive}: {head}" if primitive and primitive not in head else head
