"""Recorded spaces: every point with what it gave, searched without hardware.

A file is a gzip'd CSV, read by `read_space`, in one of two forms.  Ours, written by `write_space`,
begins with a line `# ` and a JSON object:

    {"format": "tedsl space 1", "name": ..., "device": ..., "knobs": {name: [choices]},
     "features": [names], "default": row or null, "notice": text}

Then the heading and one row for each point: for every knob the number of its choice (empty where
the point does not meet the knob), `seconds` (empty unless the status is ok), `status`,
`compile_seconds` (empty when not known), and the features (empty when not known).  A file without
that line is one of published spaces: knobs as integers, `time_ms` (a number, or why it failed) and
`compile_ms`; there the first point that ran is the default.

Only points of the file are legal.  One that failed may be proposed, and its outcome is the failure.
Imports `outcome`, `space` and numpy.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.search.encoding import place_of
from tedsl.autotune.search_space.space import (
    Candidate,
    Choice,
    Decisions,
    Knob,
    Rejected,
    canonical,
    changes,
    crossed,
    freeze,
)
from tedsl.errors import TuneError

FORMAT = "tedsl space 1"
ABSENT = -1
Features: TypeAlias = Mapping[str, float]
Codes: TypeAlias = npt.NDArray[np.int16]
PUBLISHED = {"CompilationFailedConfig": Status.COMPILE_ERROR, "RuntimeFailedConfig": Status.CRASH}


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """A whole space: one row per legal point, holding the number of each knob's choice.

    `ABSENT` stands for a knob that the point does not meet.
    """

    names: tuple[str, ...]
    choices: tuple[tuple[Choice, ...], ...]
    codes: Codes

    def decisions(self, row: int) -> dict[str, Choice]:
        """The decisions of one point."""
        return {knob.name: knob.chosen for knob in self.knobs(row)}

    def knobs(self, row: int) -> tuple[Knob, ...]:
        """The knobs that a point meets."""
        found: list[Knob] = []
        for name, choices, code in zip(self.names, self.choices, self.codes[row], strict=True):
            if code != ABSENT:
                found.append(Knob(name, choices, choices[code]))
        return tuple(found)


class RecordedSpace:
    """A space whose points have all been measured."""

    def __init__(
        self,
        name: str,
        points: Points,
        outcomes: Sequence[Outcome],
        *,
        default: int | None = None,
        features: Sequence[Features | None] = (),
        notice: str = "",
    ) -> None:
        self.name = name
        self.outcomes = tuple(outcomes)
        self.features = tuple(features)
        self.notice = notice
        self._points = points
        self._rows: dict[bytes, int] = {
            points.codes[row].tobytes(): row for row in range(len(points.codes))
        }
        ran = [r for r, o in enumerate(outcomes) if o.status is Status.OK]
        if not ran:
            raise TuneError(f"no point of the recorded space {name!r} ran")
        self._default = ran[0] if default is None else default
        self.best = min(o.seconds or 0.0 for o in outcomes if o.status is Status.OK)

    def __len__(self) -> int:
        return len(self.outcomes)

    def points(self) -> Points:
        """All points."""
        return self._points

    def outcome(self, candidate: Candidate) -> Outcome:
        """What was recorded for a candidate of this space."""
        return self.outcomes[self.row_of(candidate.decisions)]

    def describe(
        self, candidates: Sequence[Candidate], until: float | None = None
    ) -> list[Features | None]:
        """Recorded features."""
        if not self.features:
            return [None] * len(candidates)
        return [self.features[self.row_of(c.decisions)] for c in candidates]

    def row_of(self, decisions: Decisions) -> int:
        """The row of full decisions; -1 when no point has them."""
        codes = np.full(len(self._points.names), ABSENT, np.int16)
        for column, (name, choices) in enumerate(
            zip(self._points.names, self._points.choices, strict=True)
        ):
            if name in decisions:
                codes[column] = place_of(decisions[name], choices)
                if codes[column] < 0:
                    return -1
        return self._rows.get(codes.tobytes(), -1)

    def at(self, row: int, origin: str) -> Candidate:
        """The candidate of a row."""
        return Candidate(self._points.knobs(row), origin=origin)

    def default(self) -> Candidate:
        """The point that the search starts from."""
        return self.at(self._default, "default")

    def candidate(self, decisions: Decisions, origin: str) -> Candidate | Rejected:
        """The point of these decisions; knobs they do not name are as in the default."""
        row = self.row_of(decisions)
        if row < 0:
            row = self.row_of({**self._points.decisions(self._default), **decisions})
        if row < 0:
            return Rejected(decisions, "no such point", canonical(decisions))
        return self.at(row, origin)

    def sample(self, rng: random.Random) -> Candidate:
        """A random point."""
        return self.at(rng.randrange(len(self)), "random")

    def mutate(self, parent: Candidate, rng: random.Random) -> Candidate | Rejected:
        """A random neighbour, or what one random change leads to."""
        knob = rng.choice([knob for knob in parent.knobs if len(knob.choices) > 1])
        decisions = parent.decisions
        decisions[knob.name] = rng.choice(knob.nearest())
        return self.candidate(decisions, "mutation")

    def draws(
        self, parents: Sequence[Candidate | None], rng: random.Random
    ) -> Iterator[Candidate | Rejected]:
        """For each parent a neighbour, for each None a random point."""
        for parent in parents:
            yield self.sample(rng) if parent is None else self.mutate(parent, rng)

    def cross(self, a: Candidate, b: Candidate, rng: random.Random) -> Candidate | Rejected:
        """Choices taken at random from two points."""
        return self.candidate(crossed(a, b, rng), "cross")

    def neighbours(self, centre: Candidate) -> Iterator[Candidate | Rejected]:
        """Points that differ in one knob, nearest choices first."""
        for decisions in changes(centre):
            row = self.row_of(decisions)
            if row >= 0:
                yield self.at(row, "local")

    def look_around(self, centres: Sequence[Candidate], count: int) -> None:
        """All points are known already."""


def read_space(path: Path) -> RecordedSpace:
    """The recorded space of a file.

    Raises:
        TuneError: the file cannot be read, or has neither form.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            text = stream.read()
        if text.startswith("# "):
            head, _, body = text.partition("\n")
            return _ours(json.loads(head[2:]), list(csv.reader(io.StringIO(body))))
        return _published(path.name.split(".")[0], list(csv.reader(io.StringIO(text))))
    except (OSError, EOFError, ValueError, KeyError, IndexError) as error:
        raise TuneError(
            f"{path.name} is no recorded space: {error}",
            hint="write recorded spaces with "
            "tedsl.autotune.search.simulate.recorded_space.write_space",
        ) from error


def write_space(
    path: Path,
    rows: Sequence[tuple[Candidate, Outcome, Features | None]],
    *,
    name: str,
    device: str,
    notice: str = "",
) -> None:
    """Write measured candidates as a recorded space; of equal candidates the first is kept.

    Args:
        path: to be written; its name should end in `.csv.gz`.
        rows: candidates, their outcomes, and what was known of them before they ran.
        name: of the space, for tables.
        device: what it was measured on.
        notice: where it comes from, or a licence to be kept with it.
    """
    kept = list({row[0].key: row for row in reversed(rows)}.values())[::-1]
    choices = _all_choices([row[0] for row in kept])
    named = sorted({key for _, _, features in kept for key in features or {}})
    heads = [n for n, (c, _, _) in enumerate(kept) if c.origin == "default"]
    head = {
        "format": FORMAT,
        "name": name,
        "device": device,
        "knobs": choices,
        "features": named,
        "default": heads[0] if heads else None,
        "notice": notice,
    }
    stream = io.StringIO()
    stream.write("# " + json.dumps(head, separators=(",", ":")) + "\n")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([*choices, "seconds", "status", "compile_seconds", *named])
    for candidate, outcome, features in kept:
        taken = candidate.decisions
        writer.writerow(
            [
                *(place_of(taken[k], choices[k]) if k in taken else "" for k in choices),
                _text(outcome.seconds if outcome.status is Status.OK else None, 6),
                outcome.status.value,
                _text(outcome.resources.get("compile_seconds"), 3),
                *(_text((features or {}).get(key), 5) for key in named),
            ]
        )
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(stream.getvalue().encode())


def _text(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _all_choices(candidates: Sequence[Candidate]) -> dict[str, list[Choice]]:
    """Every choice of every knob, numbers in order; which a knob has may depend on others."""
    found: dict[str, dict[str, Choice]] = {}
    for candidate in candidates:
        for knob in candidate.knobs:
            mine = found.setdefault(knob.name, {})
            for choice in (*knob.choices, knob.chosen):
                mine.setdefault(json.dumps(choice), choice)
    return {name: _in_order(list(mine.values())) for name, mine in found.items()}


def _in_order(choices: list[Choice]) -> list[Choice]:
    if all(isinstance(c, (int, float)) and not isinstance(c, bool) for c in choices):
        return sorted(choices, key=lambda c: float(str(c)))
    return choices


def _ours(head: dict[str, Any], table: list[list[str]]) -> RecordedSpace:
    if head.get("format") != FORMAT:
        raise ValueError(f"its format is {head.get('format')!r}, not {FORMAT!r}")
    names: list[str] = list(head["knobs"])
    choices = tuple(tuple(freeze(c, n) for c in head["knobs"][n]) for n in names)
    body, width = table[1:], len(names)
    codes = np.array([[int(x) if x else ABSENT for x in row[:width]] for row in body], np.int16)
    outcomes = [_outcome(Status(r[width + 1]), r[width], r[width + 2], 1.0) for r in body]
    features: list[Features | None] = [
        {k: float(v) for k, v in zip(head["features"], row[width + 3 :], strict=True) if v}
        for row in body
    ]
    codes = codes.reshape(len(body), width)
    points = Points(tuple(names), choices, codes)
    return RecordedSpace(
        head["name"],
        points,
        outcomes,
        default=head["default"],
        features=features if head["features"] else (),
        notice=head["notice"],
    )


def _published(name: str, table: list[list[str]]) -> RecordedSpace:
    heading, body = table[0], table[1:]
    if heading[-2:] != ["time_ms", "compile_ms"]:
        raise ValueError("its last columns are not time_ms and compile_ms")
    values = np.array([[int(x) for x in row[:-2]] for row in body], np.int64)
    choices = tuple(tuple(sorted({int(v) for v in column})) for column in values.T)
    codes = np.empty(values.shape, np.int16)
    for column, allowed in enumerate(choices):
        codes[:, column] = np.searchsorted(np.array(allowed), values[:, column])
    outcomes = [
        _outcome(PUBLISHED[time], "", compiled, 1e-3)
        if time in PUBLISHED
        else _outcome(Status.OK, time, compiled, 1e-3)
        for *_, time, compiled in body
    ]
    return RecordedSpace(name, Points(tuple(heading[:-2]), choices, codes), outcomes)


def _outcome(status: Status, time: str, compiled: str, unit: float) -> Outcome:
    seconds = float(time) * unit if status is Status.OK else None
    known = {"compile_seconds": float(compiled) * unit} if compiled else {}
    samples = () if seconds is None else (seconds,)
    reason = "" if status is Status.OK else f"recorded as {status.value}"
    return Outcome(status, seconds, samples, reason, resources=known)
