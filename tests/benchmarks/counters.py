"""What Nsight Compute counts of a kernel: which metrics are asked for, how its output is read, and
what the figures say limits the kernel.

Metrics have names, and versions of `ncu` differ in those that they know: what it knows is asked
before (`known`), what it does not know is left out and noted, and a metric that is missing from the
output leaves its column empty.
"""

from __future__ import annotations

import csv
import io
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

BUSY = 80.0
"""Per cent of its peak from which a unit is what limits a kernel."""
IDLE = 15.0
"""Per cent of the time without a program from which idle processors do."""
MORE = 1.15
"""Times the bytes that have to be moved from which moving more is worth a word."""
OUTSIDE = 15.0
"""Per cent of a call outside of its kernels from which that is worth a word."""
SPILLED = 1 << 20
"""Bytes of local memory moved from which spilled registers are."""

TIME = "gpu__time_duration.sum"
ACTIVE, ELAPSED = "sm__cycles_active.avg", "sm__cycles_elapsed.max"
PERCENT: Mapping[str, tuple[str, ...]] = {
    "dram": (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    ),
    "l2": ("lts__throughput.avg.pct_of_peak_sustained_elapsed",),
    "l2_hits": ("lts__t_sector_hit_rate.pct",),
    "l1": ("l1tex__throughput.avg.pct_of_peak_sustained_active",),
    "sm": ("sm__throughput.avg.pct_of_peak_sustained_elapsed",),
    "issue": ("smsp__issue_active.avg.pct_of_peak_sustained_active",),
    "tensor": (
        "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor_op_hmma.avg.pct_of_peak_sustained_elapsed",
        "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_elapsed",
    ),
    "fma": ("sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",),
    "alu": ("sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",),
    "xu": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",),
    "occupancy": ("sm__warps_active.avg.pct_of_peak_sustained_active",),
}
"""Percentages by our names; of several metrics the largest counts: versions and kinds of matrix
instruction differ in which of them is not zero."""
COUNTED: Mapping[str, tuple[str, ...]] = {
    "read": ("dram__bytes_read.sum",),
    "written": ("dram__bytes_write.sum",),
    "local_bytes": (
        "l1tex__t_bytes_pipe_lsu_mem_local_op_ld.sum",
        "l1tex__t_bytes_pipe_lsu_mem_local_op_st.sum",
    ),
    "local_instructions": (
        "smsp__inst_executed_op_local_ld.sum",
        "smsp__inst_executed_op_local_st.sum",
    ),
    "shared": ("launch__shared_mem_per_block_dynamic", "launch__shared_mem_per_block_static"),
    "registers": ("launch__registers_per_thread",),
    "grid": ("launch__grid_size",),
    "threads": ("launch__block_size",),
    "waves": ("launch__waves_per_multiprocessor",),
}
"""Numbers by our names; several metrics are added up."""
LIMITS: Mapping[str, str] = {
    "launch__occupancy_limit_registers": "registers",
    "launch__occupancy_limit_shared_mem": "shared memory",
    "launch__occupancy_limit_warps": "warps",
    "launch__occupancy_limit_blocks": "the number of programs",
}
"""How many programs of a multiprocessor each resource allows, and what it is."""
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
FAMILY = re.compile(
    r"smsp__average_warps_issue_stalled_(\w+?)(?<!_not_issued)_per_issue_active(?:\.ratio)?$"
)
WORDS: Mapping[str, str] = {
    "barrier": "the other warps of the program, at a barrier",
    "branch_resolving": "where a branch leads",
    "dispatch_stall": "the dispatcher",
    "drain": "its last stores, before it ends",
    "gmma": "the matrix units to take the next group of products",
    "imc_miss": "a constant that is not cached",
    "lg_throttle": "the queue of loads and stores in global memory",
    "long_scoreboard": "data from memory or from the second-level cache",
    "math_pipe_throttle": "an arithmetic unit that is busy",
    "membar": "a memory fence",
    "mio_throttle": "the queue of shared memory and special functions",
    "misc": "other things",
    "no_instruction": "its next instruction to be fetched",
    "not_selected": "its turn: other warps could issue, too",
    "short_scoreboard": "shared memory or special functions",
    "sleeping": "the end of a sleep",
    "tex_throttle": "the queue of the texture unit",
    "wait": "a fixed number of clocks after its last instruction",
}
"""What a warp waits for, by the name of the stall; "selected" is issuing and no stall."""


def metrics(names: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """What to ask `ncu` for, and what of it this version does not know.

    Args:
        names: the base names that it knows; none when that could not be asked, and then the stalls
            are those of sm_90 and nothing is left out.
    """
    groups = (*PERCENT.values(), *COUNTED.values())
    wanted: list[str] = [
        TIME,
        ACTIVE,
        ELAPSED,
        *(name for group in groups for name in group),
        *LIMITS,
    ]
    found = sorted({match[1] for name in names if (match := FAMILY.match(name))})
    # What a launch is made of is known without counters, and not listed among them.
    missing = [
        name
        for name in wanted
        if names and not name.startswith("launch__") and base(name) not in names
    ]
    stalls = [STALL.format(reason) for reason in found or (*WORDS, "selected")]
    return [name for name in wanted if name not in missing] + stalls, missing


def base(metric: str) -> str:
    """A metric without what is taken of it: `a__b.sum` is of `a__b`."""
    return metric.partition(".")[0]


def known(profiler: str, seconds: float) -> list[str]:
    """The base names of the metrics that this version knows for this device; none where it does
    not say."""
    try:
        done = subprocess.run(
            [profiler, "--query-metrics"],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = listed(done.stdout)
    return found if TIME.partition(".")[0] in found else []


def listed(text: str) -> list[str]:
    """The names in a list of metrics, one at the begin of a line."""
    return re.findall(r'^\s*"?([a-z0-9]+__[a-z0-9_]+)', text, re.MULTILINE)


@dataclass(frozen=True)
class Launch:
    """One kernel that was profiled: its name and its metrics, in seconds and bytes."""

    name: str
    metrics: Mapping[str, float]


@dataclass
class Read:
    """What was found in an output of `ncu`, and what was not understood."""

    launches: list[Launch] = field(default_factory=list[Launch])
    notes: list[str] = field(default_factory=list[str])


SCALES: Mapping[str, float] = {
    "ns": 1e-9, "nsecond": 1e-9, "us": 1e-6, "usecond": 1e-6, "ms": 1e-3, "msecond": 1e-3,
    "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
}  # fmt: skip
OWN = {
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
    "Block Size", "Grid Size", "Device", "CC", "Section Name", "Rule Name",
}  # fmt: skip
"""Columns that are no metrics."""
NUMBER = re.compile(r"-?\d[\d,]*(\.\d+)?([eE][-+]?\d+)?|-?\.\d+")


def parse(text: str) -> Read:
    """Read what `ncu --csv` printed, as a page with a column or with a line for each metric."""
    found = Read(notes=said(text))
    lines = text.splitlines()
    head = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if head is None:
        return found
    body = [lines[head], *(line for line in lines[head + 1 :] if line.startswith('"'))]
    rows = _rows(body)
    unread: set[str] = set()
    cells = _long(rows) if rows and "Metric Name" in rows[0] else _wide(rows)
    launches: dict[str, tuple[str, dict[str, float]]] = {}
    for number, kernel, metric, unit, value in cells:
        _, own = launches.setdefault(number, (kernel, {}))
        read = NUMBER.fullmatch(value.strip().partition(" ")[0])
        if read is None:
            unread.add(f"{metric}: {value.strip() or 'empty'}")
        else:
            own[metric] = float(read[0].replace(",", "")) * SCALES.get(unit.partition("/")[0], 1.0)
    found.launches = [Launch(name, own) for name, own in launches.values()]
    found.notes += sorted(unread)
    return found


def _rows(lines: Sequence[str]) -> list[dict[str, str]]:
    """A dictionary for each line; one that is too short has fewer columns."""
    head, *rest = csv.reader(io.StringIO("\n".join(lines)))
    return [dict(zip(head, cells, strict=False)) for cells in rest]


Cell = tuple[str, str, str, str, str]
"""The number of the launch, the kernel, the metric, its unit and its value."""


def _long(rows: Sequence[Mapping[str, str]]) -> Iterator[Cell]:
    """A line for each metric."""
    for row in rows:
        if row.get("Metric Name"):
            unit, value = row.get("Metric Unit") or "", row.get("Metric Value") or ""
            yield row["ID"], row["Kernel Name"], row["Metric Name"], unit, value


def _wide(rows: Sequence[Mapping[str, str]]) -> Iterator[Cell]:
    """A line for each launch, after one with the units."""
    units: Mapping[str, str] = {}
    for row in rows:
        if not row["ID"]:
            units = row
            continue
        for name, value in row.items():
            if name not in OWN:
                yield row["ID"], row["Kernel Name"], name, units.get(name) or "", value


def said(text: str) -> list[str]:
    """What it had to complain about."""
    return [
        line.strip() for line in text.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))
    ]


def refused(notes: Sequence[str], asked: Sequence[str]) -> list[str]:
    """The metrics that a complaint names: without them it may work."""
    errors = " ".join(note for note in notes if note.startswith("==ERROR=="))
    named = {name.rstrip(".") for name in re.findall(r"[a-z0-9]+__[\w.]+", errors)}
    return [name for name in asked if any(f"{name}.".startswith(f"{part}.") for part in named)]


def figures(launch: Launch) -> dict[str, Any]:
    """A launch by our names; what was not counted is not there."""
    own = launch.metrics
    found: dict[str, Any] = {"kernel": launch.name}
    if TIME in own:
        found["ms"] = own[TIME] * 1e3
    for name, group in PERCENT.items():
        if values := [own[metric] for metric in group if metric in own]:
            found[name] = round(max(values), 2)
    for name, group in COUNTED.items():
        if values := [own[metric] for metric in group if metric in own]:
            found[name] = sum(values)
    if own.get(ELAPSED) and ACTIVE in own:
        found["idle"] = round(100 * max(0.0, 1 - own[ACTIVE] / own[ELAPSED]), 2)
    if allowed := {LIMITS[name]: own[name] for name in LIMITS if name in own}:
        found["held_by"] = min(allowed, key=lambda name: allowed[name])
    stalls = {match[1]: own[name] for name in own if (match := FAMILY.match(name))}
    if total := sum(stalls.values()):
        shares = sorted(stalls.items(), key=lambda each: -each[1])
        found["stalls"] = {name: round(100 * ratio / total, 1) for name, ratio in shares if ratio}
    return found


def top_stalls(kernel: Mapping[str, Any], count: int = 3) -> list[tuple[str, float]]:
    """What warps wait for most, in words, with the per cent of their time."""
    stalls: Mapping[str, float] = kernel.get("stalls", {})
    ordered = [(name, share) for name, share in stalls.items() if name != "selected"]
    ordered.sort(key=lambda each: -each[1])
    return [(WORDS.get(name, name), share) for name, share in ordered[:count]]


UNITS: Mapping[str, str] = {
    "dram": "memory", "tensor": "the matrix units", "l2": "the second-level cache",
    "l1": "shared memory and the first-level cache", "xu": "the special functions",
    "fma": "the multiply-add units", "alu": "the integer units", 
    "issue": "the issue of instructions",
}  # fmt: skip


def limit_of(kernels: Sequence[Mapping[str, Any]], moved: int = 0, wall_ms: float = 0.0) -> str:
    """What limits a row, in one sentence, by the thresholds above.

    Args:
        kernels: the figures of its launches.
        moved: bytes that have to be moved.
        wall_ms: what a call takes, as the benchmark measures it.
    """
    total = sum(each.get("ms", 0.0) for each in kernels)
    if not kernels or not total:
        return "not counted"
    worst = max(kernels, key=lambda each: each.get("ms", 0.0))
    parts = [*_busy(worst), *_idle(worst)]
    if not parts:
        parts.append(_waiting(worst))
    if worst.get("local_bytes", 0) >= SPILLED:
        parts.append(f"spilled registers move {worst['local_bytes'] / 1e6:.0f} MB")
    bytes_counted = sum(each.get("read", 0) + each.get("written", 0) for each in kernels)
    if moved and bytes_counted > MORE * moved:
        parts.append(f"memory moves {bytes_counted / moved:.2f} times the bytes that have to be")
    if total < (1 - OUTSIDE / 100) * wall_ms:
        parts.append(f"{1 - total / wall_ms:.0%} of the time is not in kernels, but around them")
    if stalls := top_stalls(worst, 1):
        parts.append(f"warps wait most for {stalls[0][0]} ({stalls[0][1]:.0f}% of their time)")
    begin = ""
    if len(kernels) > 1:
        share = worst["ms"] / total
        begin = f"{len(kernels)} kernels, of which {worst['kernel']} takes {share:.0%}: "
    return begin + "; ".join(parts)


def _busy(kernel: Mapping[str, Any]) -> list[str]:
    """The units that are near their peak, the busiest first."""
    near = [(kernel[name], words) for name, words in UNITS.items() if kernel.get(name, 0.0) >= BUSY]
    return [f"{words} {share:.0f}% busy" for share, words in sorted(near, reverse=True)]


def _idle(kernel: Mapping[str, Any]) -> list[str]:
    """Processors without a program: too few of them, or a last wave that is not full."""
    if kernel.get("idle", 0.0) < IDLE:
        return []
    detail = f"{kernel['grid']:.0f} programs" if "grid" in kernel else ""
    detail += f", {kernel['waves']:.2f} waves" if "waves" in kernel else ""
    return [f"processors have no program {kernel['idle']:.0f}% of the time ({detail})"]


def _waiting(kernel: Mapping[str, Any]) -> str:
    """No unit is near its peak: how near they are, and how many warps hide that."""
    units = [f"{words} {kernel[name]:.0f}%" for name, words in UNITS.items() if name in kernel]
    if not units:
        return "how busy the units are was not counted"
    text = f"latency: no unit is {BUSY:.0f}% busy ({', '.join(units[:3])})"
    if "occupancy" in kernel:
        text += f", {kernel['occupancy']:.0f}% of the warps that a processor has room for"
        text += f", which {kernel['held_by']} set" if "held_by" in kernel else ""
    return text
