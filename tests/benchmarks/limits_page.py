"""The page of what limits the rows that fall short: `results/limits.md`.

Made from the recorded times (`cuda.json`), the counters of `limits_on_device.py` where they have
been taken (`limits_h200.json`), what was compiled without a device (`static_sm_90.json`), and what
was tried (`tried.py`).
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import counters
import expected
import limits
import suite
import summary
import tried
from workload import OURS, Line

NAME = "limits.md"
COUNTERS = "limits_h200.json"
Report = Mapping[str, Any]
HEAD = """# What limits the rows that fall short

Written by `python tests/benchmarks/run.py --table`, or alone by
`python tests/benchmarks/limits_on_device.py --page`. A row is here where its line has missed a bar
and it is below that bar, or where it is below one of its own; one that was disturbed is not judged.

The floor is the longest of three times: the bytes that have to be moved at the speed of a copy
({copied:.2f} TB/s), the operations at the rate of a good product ({tensor:.0f} TFLOP/s in 16 bits,
twice that in 8), and that of the shortest call. "At the floor" is how many times as fast as the
peer a kernel at the floor would be: where that is below what is asked, no schedule meets the bar.
"""
RULES = """What limits a row is said by these rules, of its longest kernel: a unit that is
{busy:.0f}% busy or more; processors without a program {idle:.0f}% of the time or more; where
neither is, latency, with the units, the warps there are, and what sets their number. Added to it
are spilled registers that move {spilled:.0f} MB or more, memory that moves {more:.2f} times the
bytes that have to be, a call of which {outside:.0f}% or more is outside of its kernels, and what
warps wait for most.
"""
FOLDED = "<details><summary>{}</summary>"
UNCOUNTED = """**The counters have not been run on the device yet**: what limits each row, occupancy
and stalls are empty until `python tests/benchmarks/limits_on_device.py --out FOLDER` has run there
and its `limits.json` is kept as `results/{name}`. Registers, spills and shared memory are those of
the same rows compiled for sm_90 without a device.
"""


def write(results: Path) -> None:
    """The page of a folder of results."""
    report = json.loads((results / "cuda.json").read_text(encoding="utf-8"))
    counted, static = (_read(results / name) for name in (COUNTERS, "static_sm_90.json"))
    (results / NAME).write_text(page(report, counted, static), encoding="utf-8")


def _read(path: Path) -> Report:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def page(report: Report, counted: Report, static: Report) -> str:
    """The whole page.

    Args:
        report: the recorded run of the benchmark.
        counted: that of `limits_on_device.py`, or nothing.
        static: that of `run.py --static`, or nothing.
    """
    found = limits.shortfalls(report)
    by_name = {row["name"]: row for row in counted.get("rows", [])}
    compiled = {row["name"]: row for row in static.get("rows", [])}
    constants = {"copied": expected.COPIED / 1e12, "tensor": expected.TENSOR / 1e12}
    parts = [HEAD.format(**constants), _about(report, counted)]
    parts.append(overview(found, by_name))
    for line in dict.fromkeys(each.line for each in found):
        own = [each for each in found if each.line is line]
        parts += [f"## {line.title}\n", *at_the_floor(line, report)]
        parts += [section(each, by_name.get(each.name, {}), compiled) for each in own]
        parts.append(notes(tried.NOTES.get(line.key, ())))
    return "\n".join(parts)


def _about(report: Report, counted: Report) -> str:
    """Where the figures are from."""
    machine = report["machine"]
    text = f"Times: {machine.get('gpu')}, commit {machine['commit']}."
    if not counted:
        return text + "\n\n" + UNCOUNTED.format(name=COUNTERS)
    where = counted["machine"]
    text += f" Counters: {where.get('gpu')}, commit {where['commit']}, `ncu`, cold caches.\n\n"
    text += RULES.format(
        busy=counters.BUSY,
        idle=counters.IDLE,
        spilled=counters.SPILLED / 1e6,
        more=counters.MORE,
        outside=counters.OUTSIDE,
    )
    if remarks := counted.get("notes"):
        shown = "\n".join(f"- `{note}`" for note in remarks)
        text += f"\n{FOLDED.format('Not understood, or not known to <code>ncu</code>')}"
        text += f"\n\n{shown}\n\n</details>\n"
    return text


def overview(found: Sequence[limits.Shortfall], counted: Mapping[str, Report]) -> str:
    """A line for each row."""
    text = [
        "| row | asked | reached | at the floor | ours, ms | floor, ms | its share | limited by |",
        "|---" * 8 + "|",
    ]
    for each in found:
        floor = limits.floor_of(each.load)
        first = each.missed[0]
        cells = [each.name, f"{first.asked}x {first.peer}"]
        if first.reached is None:
            cells += ["failed", "", "", f"{floor.ms:.4f}", "", each.row["failed"][:80]]
        else:
            cells += [
                reached_text(first),
                f"{first.peer_ms / floor.ms:.2f}x",
                f"{first.ours_ms:.4f}",
                f"{floor.ms:.4f}",
                f"{floor.ms / first.ours_ms:.0%}",
                limit_text(each, counted.get(each.name, {})),
            ]
        text.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    return "\n".join(text) + "\n"


def at_the_floor(line: Line, report: Report) -> list[str]:
    """Whether the mean that is asked of a line could be met: what it would be at the floor."""
    loads = {load.name: load for load in suite.workloads() if load.line == line.key}
    text: list[str] = []
    for bar in line.bars:
        ratios = [
            theirs / limits.floor_of(loads[row["name"]]).ms
            for row in report["rows"]
            if row["name"] in loads and "times" in row
            if summary.is_steady(row["times"], bar.peer)
            if (theirs := summary.seconds_of(row["times"], bar.peer)) is not None
        ]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            verdict = "" if mean >= bar.geomean else ": more than any schedule reaches"
            asked = f"a mean of {bar.geomean}x of {bar.peer} is asked"
            text.append(f"At the floor the line would be at {mean:.2f}x; {asked}{verdict}.\n")
    return text


def limit_text(each: limits.Shortfall, row: Report) -> str:
    """What limits a row, or why that is not known."""
    if "counted" in row:
        return counters.limit_of(row["counted"], each.load.moved, row.get("ms", 0.0))
    if row:
        return "not counted: " + str(row.get("not_counted") or row.get("failed", ""))[:80]
    return "not counted yet"


def bars_text(each: limits.Shortfall) -> str:
    """What is asked of a row, and what it reaches."""
    return "; ".join(
        f"asked {bar.asked}x of {bar.peer}, "
        + ("failed" if bar.reached is None else f"reached {reached_text(bar)}")
        for bar in each.missed
    )


def reached_text(bar: limits.Missed) -> str:
    """With as many digits as it takes to see that it is less than asked."""
    reached = bar.reached or 0.0
    short = f"{reached:.2f}"
    return f"{short}x" if float(short) < bar.asked else f"{reached:.3f}x"


def section(each: limits.Shortfall, row: Report, compiled: Mapping[str, Report]) -> str:
    """All of one row."""
    floor = limits.floor_of(each.load)
    text = [f"### {each.name}\n", f"- {bars_text(each)}"]
    times = each.row.get("times", {})
    if OURS in times:
        ours = times[OURS]["ms"]
        text.append(f"- {ours:.4f} ms, from {each.row['how']}; {_peers(times)}")
        text.append(f"- floor {floor.ms:.4f} ms ({floor.what}): {floor.ms / ours:.0%} of our time")
    if "ms" in row:
        text.append(f"- {row['ms']:.4f} ms again, alone, on the day of the counters")
    text.append(f"- limited by: {limit_text(each, row)}")
    if "counted" in row:
        text.append("\n" + counted_table(row["counted"]))
    elif each.name in compiled:
        text.append(f"- compiled for sm_90: {_resources(compiled[each.name])}")
    if own := tried.measured(each.name):
        text.append("\nCandidates that were measured:\n\n" + _listed(own))
    if schedule := row.get("schedule") or each.row.get("schedule"):
        head = FOLDED.format("The schedule")
        text.append(f"\n{head}\n\n```python\n{schedule.strip()}\n```\n\n</details>")
    return "\n".join(text) + "\n"


def _peers(times: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(f"{name} {taken['ms']:.4f}" for name, taken in times.items() if name != OURS)


def _resources(row: Report) -> str:
    """What each kernel asks for, without a device."""
    if "kernels" not in row:
        return "not compiled"
    return "; ".join(
        f"`{kernel['name']}` {kernel['registers']} registers a thread, "
        f"{kernel['spills'] or 0} B of stack, {kernel['shared'] / 1024:.0f} KiB shared, "
        f"{kernel['warps']} warps"
        for kernel in row["kernels"]
    )


COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("ms", "ms", ".4f"), ("dram", "memory %", ".0f"), ("l2", "L2 %", ".0f"),
    ("l2_hits", "L2 hits %", ".0f"), ("sm", "processors %", ".0f"),
    ("tensor", "matrix units %", ".0f"), ("occupancy", "warps %", ".0f"),
    ("registers", "registers", ".0f"), ("local_bytes", "spilled, B", ".0f"),
    ("shared", "shared, B", ".0f"), ("grid", "programs", ".0f"), ("waves", "waves", ".2f"),
    ("idle", "idle %", ".0f"),
)  # fmt: skip
"""What is shown of a kernel: our name, the heading, how it is written."""


def counted_table(kernels: Sequence[Mapping[str, Any]]) -> str:
    """The counters of each kernel, and what its warps wait for."""
    heads = ["kernel", *(head for _, head, _ in COLUMNS), "warps wait for"]
    text = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for kernel in kernels:
        cells = [f"`{kernel['kernel']}`"]
        cells += [format(kernel[key], how) if key in kernel else "" for key, _, how in COLUMNS]
        waits = counters.top_stalls(kernel)
        cells.append("; ".join(f"{words} {share:.0f}%" for words, share in waits))
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def notes(found: Sequence[tried.Tried]) -> str:
    """What was tried on the rows of a line."""
    return f"What was tried on these rows:\n\n{_listed(found)}\n" if found else ""


def _listed(found: Sequence[tried.Tried]) -> str:
    return "\n".join(f"- {each.what}: {each.figure} ({each.source})" for each in found)
