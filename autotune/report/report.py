"""What the user reads after a search: a short table at its end, and the report.

The report says how the winner compares, shows its schedule, what each of its decisions is worth,
which limit binds, how candidates failed and where the time went.  Imports `ablation`,
`bottleneck`, `outcome` and `search`.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tedsl.autotune.frontend.result import TuneResult
from tedsl.autotune.measure.paired_ratios import Ratio
from tedsl.autotune.measure.pruning import Tiers
from tedsl.autotune.outcome import Outcome, Status, Trial
from tedsl.autotune.report.ablation import unpaired, worth_of
from tedsl.autotune.report.bottleneck import limits_of, scaled
from tedsl.autotune.report.events import Compared, Refused, Started
from tedsl.autotune.search.budget import Stop
from tedsl.autotune.search.portfolio import Search
from tedsl.autotune.search_space.space import Candidate, show
from tedsl.errors import TuneError
from tedsl.runtime.timing import format_seconds
from tedsl.slips import suggests

SHOWN = 4
"""Other choices of a knob that are shown."""
_ENDS = {
    Stop.BUDGET: "the trials were used up",
    Stop.EXHAUSTED: "everything legal was tried",
    Stop.BOUND: "the best is as fast as the device allows",
    Stop.GAIN: "more trials were not expected to pay",
    Stop.TIME: "the time was used up",
}


def failures(outcomes: Iterable[Outcome], rejected: int = 0) -> Counter[str]:
    """How many candidates ended in each way but `ok`, schedules that were refused included."""
    counts = Counter(o.status.value for o in outcomes if o.status is not Status.OK)
    if rejected:
        counts[Status.ILLEGAL.value] += rejected
    return counts


def summary(
    search: Search,
    winner: Trial,
    show: Callable[[Candidate], str],
    seconds: float,
    notes: Sequence[str] = (),
) -> str:
    """The table after a search: the fastest candidates, the default, and how the rest ended."""
    if winner.outcome.seconds is None:
        lines = [
            f"nothing was measured in {seconds:.1f} s: this is the default schedule",
            *reasons(search),
            "give more seconds, or tune a part of the computation",
        ]
        return "\n".join([*lines, *notes])
    ranked = search.ranking()
    rows = [winner, *(t for t in ranked if t is not winner)][:5]
    default = search.done[0]
    if default not in rows and default.outcome.status is Status.OK:
        rows.append(default)
    base = default.seconds if default.outcome.status is Status.OK else None
    lines = [f"{'':2}{'time':>10}  {'vs default':>10}  candidate"]
    for trial in rows:
        gain = f"{base / trial.seconds:.2f}x" if base else "-"
        mark = "*" if trial is winner else " "
        name = f"{show(trial.candidate)}{' (default)' if trial is default else ''}"
        lines.append(f"{mark:2}{format_seconds(trial.seconds):>10}  {gain:>10}  {name}")
    lines.append(f"{len(search.done)} candidates in {seconds:.1f} s, {len(ranked)} ran correctly")
    lines.extend(reasons(search))
    return "\n".join([*lines, *notes])


def reasons(search: Search, most: int = 8) -> list[str]:
    """One line for each way in which candidates failed, most frequent first."""
    return ways((t.outcome for t in search.done), (r.reason for r in search.rejected), most)


def ways(outcomes: Iterable[Outcome], refused: Iterable[str], most: int = 8) -> list[str]:
    """One line for each way in which candidates failed, most frequent first."""
    counts = Counter((o.status.value, o.reason) for o in outcomes if o.status is not Status.OK)
    counts.update((Status.ILLEGAL.value, reason) for reason in refused)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    lines = [f"  {count:>4} {status}: {reason}" for (status, reason), count in ordered[:most]]
    if len(ordered) > most:
        lines.append(f"  ... and {len(ordered) - most} other reasons")
    return lines


@suggests(TuneError)
@dataclass(frozen=True, slots=True)
class Report:
    """What a search found, in sections of a title and lines.  Print it, or end a notebook's cell
    with it."""

    sections: tuple[tuple[str, tuple[str, ...]], ...]

    def __str__(self) -> str:
        parts = [
            "\n".join([title, *(f"  {line}" for line in lines)]) for title, lines in self.sections
        ]
        return "\n\n".join(parts)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """The sections as a notebook shows them: all but the first are folded."""
        parts = ['<div class="tedsl-report">']
        for place, (title, lines) in enumerate(self.sections):
            head, body = html.escape(title), html.escape("\n".join(lines))
            opened = " open" if place == 0 else ""
            parts.append(
                f"<details{opened}><summary><b>{head}</b></summary><pre>{body}</pre></details>"
            )
        return "".join([*parts, "</div>"])


def report_of(found: TuneResult) -> Report:
    """The report of a search."""
    sections = [
        ("result", _result(found)),
        ("schedule", _schedule(found)),
        ("what each decision is worth: the time with another choice", _decisions(found)),
        ("which limit binds", _limits(found)),
        ("how candidates failed", _failures(found)),
        ("where the time went", _time(found)),
    ]
    kept = [(title, tuple(lines)) for title, lines in sections]
    return Report(tuple((title, lines) for title, lines in kept if lines))


def _result(found: TuneResult) -> Iterator[str]:
    winner = found.winner
    if winner.outcome.seconds is None:
        yield f"{found.text(winner.candidate)}: chosen without a measurement"
        return
    yield f"{format_seconds(winner.seconds)} a call: {found.text(winner.candidate)}"
    yield from _against(found)
    roof = found.roofline
    if roof is not None:
        bound = "memory" if roof.is_memory_bound else "arithmetic"
        yield (
            f"{100 * min(1.0, roof.seconds / winner.seconds):.0f} % of the roofline: at least "
            f"{format_seconds(roof.seconds)}, by {bound} ({scaled(roof.nbytes)}B at "
            f"{scaled(roof.bandwidth)}B/s, {scaled(roof.flops)}flop at {scaled(roof.peak)}flop/s)"
        )
    if not found.replayed and not found.tried:
        yield "0 tried: this is the default, and nothing was compared with it"
    if found.replayed:
        yield "taken from the records or a lock file; nothing was measured"
    elif found.interrupted:
        yield f"cut short after {_candidates(found)}"
    else:
        why = _ENDS[Stop(found.stopped)] if found.stopped else "the time was used up"
        yield f"{_candidates(found)}: {why}"


def _candidates(found: TuneResult) -> str:
    return "1 candidate" if len(found.trials) == 1 else f"{len(found.trials)} candidates"


def _against(found: TuneResult) -> Iterator[str]:
    """How the winner compares with the default and with what had to be beaten."""
    default = found.trials[0]
    if default.candidate.origin != "default" or default.outcome.seconds is None:
        return
    if default.number == found.winner.number:
        yield "the default won"
        return
    compared = next((e for e in found.events if isinstance(e, Compared)), None)
    if compared is None or found.against is None:
        ratio = unpaired(found.winner.outcome.samples, default.outcome.samples)
        yield f"{_faster(ratio)} the default ({format_seconds(default.seconds)}), not timed in turn"
        return
    if compared.incumbent == 0:
        name = f"the default ({format_seconds(default.seconds)})"
    else:
        name = "the earlier winner"
    yield f"{_faster(found.against)} {name}, timed in turn"
    if compared.incumbent != 0:
        yield f"{default.seconds / found.winner.seconds:.2f}x as fast as the default"
    if len(compared.ties) > 1:
        yield f"{len(compared.ties) - 1} others are as fast for all that is known"


def _faster(ratio: Ratio) -> str:
    """A ratio of times as how many times as fast the first is."""
    low = f"{1 / ratio.high:.2f}" if ratio.high else "?"
    high = f"{1 / ratio.low:.2f}" if ratio.low else "?"
    return f"{1 / ratio.middle:.2f}x ({low} to {high}) as fast as"


def _schedule(found: TuneResult) -> Iterator[str]:
    if found.kernel.schedule is not None:
        yield from found.kernel.schedule.as_python().rstrip().splitlines()


def _decisions(found: TuneResult) -> Iterator[str]:
    worth = worth_of(found.searched, found.winner.candidate)
    chosen = found.winner.candidate.decisions
    alone = [name for name, rows in worth.items() if not rows]
    for name, rows in worth.items():
        if not rows:
            continue
        yield f"{found.named(name)} = {show(chosen[name])}"
        for row in rows[:SHOWN]:
            yield f"  {show(row.other):>8}: {row}"
        if len(rows) > SHOWN:
            yield f"  and {len(rows) - SHOWN} slower ones, up to {rows[-1]}"
    if alone and len(alone) < len(worth):
        yield f"never changed alone: {', '.join(found.named(name) for name in alone)}"


def _limits(found: TuneResult) -> Iterator[str]:
    started = next((e for e in found.events if isinstance(e, Started)), None)
    if started is None or found.winner.outcome.seconds is None:
        return
    tiers = Tiers.of(started.target, found.sizes, started.device)
    limits = limits_of(
        found.winner.seconds,
        tiers.estimate(found.kernel.module),
        tiers.facts,
        found.roofline,
        found.winner.outcome.resources,
    )
    yield limits.binding
    width = max((len(name) for name, _ in limits.rows), default=0)
    for name, text in limits.rows:
        yield f"  {name:{width}}  {text}"


def _failures(found: TuneResult) -> Iterator[str]:
    refused = (event.reason for event in found.events if isinstance(event, Refused))
    yield from (line.strip() for line in ways((t.outcome for t in found.trials), refused, most=20))


def _time(found: TuneResult) -> Iterator[str]:
    if found.replayed or not found.measure_seconds:
        return
    whole = found.seconds
    yield f"{whole:.1f} s in all"
    shares = (
        ("measuring", found.measure_seconds, "the measuring process had work"),
        ("device idle", found.idle * whole, "the device had nothing to do"),
        (
            "compiling",
            found.compile_seconds,
            f"over {found.workers} processes, "
            f"{100 * found.compile_seconds / (whole * found.workers):.0f} % of their time",
        ),
    )
    for name, seconds, note in shares:
        yield f"  {name:12} {seconds:7.1f} s  {100 * seconds / whole:4.0f} %  {note}"
