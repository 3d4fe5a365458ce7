"""Tables and a chart from the recorded results: the figures of the front page, the page `speed.md`
of the documentation, and `results/README.md` in full."""

from __future__ import annotations

import importlib
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import limits_page
import summary
from workload import (
    AUTOGRAD,
    BEYOND,
    COMPILED,
    COPY,
    CUDNN,
    EAGER,
    FLASH,
    FLEX,
    FOREACH,
    FUSED,
    LIMIT,
    NUMPY,
    OURS,
    SCALED,
    TUNED,
)

HERE = Path(__file__).parent
README = HERE.parent.parent / "README.md"
PAGE = HERE.parent.parent / "tutorials" / "docs" / "speed.md"
FRONT = (
    ("pointwise", COMPILED),
    ("rows 4096", COMPILED),
    ("gemm gelu", COMPILED),
    ("attention", FLEX),
    ("swiglu", COMPILED),
)
"""The lines of the front page, and the peer that is named there."""
PEERS = (
    EAGER, COMPILED, TUNED, AUTOGRAD, FLEX, CUDNN, FLASH, SCALED, FOREACH, FUSED, NUMPY, COPY,
    LIMIT,
)  # fmt: skip
CHARTED = (EAGER, COMPILED, TUNED, FLEX, CUDNN, FOREACH, NUMPY, COPY, LIMIT)
FIGURES = "figures"
"""The block of the front page."""
SHORT = 20
"""Rows up to which the page has them all."""
MANY_ROWS = 40
"""Rows from which the chart has their lines instead."""
BAR, GAP = 0.1, 1.0
"""Inches of a bar of the chart, and bars between two groups."""
Report = Mapping[str, Any]


def write(results: Path, page: Path = PAGE, front: Path = README) -> None:
    """Everything that is made from the files of a folder."""
    reports = {
        target: summary.as_judged_now(json.loads(path.read_text(encoding="utf-8")))
        for target in ("cpu", "cuda")
        if (path := results / f"{target}.json").exists()
    }
    text = page.read_text(encoding="utf-8")
    for target, report in reports.items():
        text = between(text, target, section(report))
    page.write_text(text, encoding="utf-8")
    if "cuda" in reports:
        text = between(front.read_text(encoding="utf-8"), FIGURES, figures(reports["cuda"]))
        front.write_text(text, encoding="utf-8")
    parts = ["# Results\n\nWritten by `python tests/benchmarks/run.py --table`.\n"]
    for target, report in reports.items():
        parts += [f"\n## {target}\n\n", whole(report)]
    static = results / "static_sm_90.json"
    if static.exists():
        parts += [
            "\n## Compiled for sm_90, not run\n\n",
            static_table(json.loads(static.read_text(encoding="utf-8"))),
        ]
    (results / "README.md").write_text("".join(parts), encoding="utf-8")
    for target, report in reports.items():
        chart(report, results / f"{target}")
    if "cuda" in reports:
        limits_page.write(results)


def between(text: str, target: str, table: str) -> str:
    """The text with a table between the target's markers."""
    begin, end = f"<!-- benchmark {target} -->", f"<!-- end {target} -->"
    if begin not in text or end not in text:
        return text
    head, rest = text.split(begin)
    return head + begin + "\n" + table + end + rest.split(end)[1]


def section(report: Report) -> str:
    """What the page shows: each line of the table, and the rows where they are few."""
    lines = report.get("summary") or []
    judged = [line for line in lines if line["bars"]]
    parts = [where(report)]
    if judged:
        parts.append(summary_table(judged))
    if len(report["rows"]) <= SHORT:
        parts.append(row_table(report["rows"]))
    elif beyond := [row for row in report["rows"] if row["line"] == BEYOND]:
        parts.append("Beyond what was asked, and not judged:\n\n" + row_table(beyond))
    return "\n".join(parts)


def figures(report: Report) -> str:
    """What the front page shows: a few lines, each beside one peer."""
    lines = {line["line"]: line for line in report.get("summary") or []}
    columns = ("workloads", "rows", "times as fast as", "geomean", "worst")
    text = [where(report), f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, peer in FRONT:
        for bar in lines[name]["bars"] if name in lines else ():
            if peer in bar["peer"] and bar["geomean"] is not None:
                shown = (f"{bar['geomean']:.2f}x", f"{bar['worst']:.2f}x")
                cells = (lines[name]["title"], str(lines[name]["rows"]), bar["peer"], *shown)
                text.append(f"| {' | '.join(cells)} |")
    return "\n".join(text) + "\n"


def whole(report: Report) -> str:
    """Every row, by class."""
    parts = [where(report)]
    if report.get("summary"):
        parts.append(summary_table([line for line in report["summary"] if line["bars"]]))
    families = dict.fromkeys(row.get("class", "") for row in report["rows"])
    for family in families:
        rows = [row for row in report["rows"] if row.get("class", "") == family]
        parts.append(f"### {family}\n\n" + row_table(rows) if family else row_table(rows))
    if report.get("left_out"):
        parts.append("No time was left for: " + "; ".join(report["left_out"]) + ".\n")
    return "\n".join(parts)


def where(report: Report) -> str:
    """The machine, the versions, and which classes were measured at which commit."""
    found = report["machine"]
    tools = ", ".join(f"{k} {found[k]}" for k in ("torch", "numpy", "triton", "llvmlite"))
    classes: dict[str, list[str]] = {}
    for row in report["rows"]:
        classes.setdefault(row.get("commit", found["commit"]), []).append(row.get("class", ""))
    commits = f"commit {found['commit']}"
    if len(classes) > 1:
        most = max(classes, key=lambda commit: len(classes[commit]))
        others = [c for c in classes if c != most]
        said = [f"{', '.join(dict.fromkeys(classes[c]))} at {c}" for c in others]
        commits = "; ".join((f"commit {most}", *said))
    return f"{found.get('gpu') or found.get('cpu')}; {tools}; {commits}.\n"


def summary_table(lines: Sequence[Mapping[str, Any]]) -> str:
    """A line for each bar: asked, reached, the worst row, the verdict."""
    text = [
        "| workloads | rows | times as fast as | asked | geomean | worst | verdict |",
        "|---" * 7 + "|",
    ]
    for line in lines:
        count = str(line["rows"]) + (f", {line['failed']} failed" if line["failed"] else "")
        count += f", {line['lacking']} lacking" if line["lacking"] else ""
        count += f", {line['disturbed']} disturbed" if line.get("disturbed") else ""
        for bar in line["bars"]:
            asked = f"{bar['asked']}x" + (f", each {bar['least']}x" if bar["least"] else "")
            got = f"{bar['geomean']:.2f}x" if "geomean" in bar else ""
            worst = f"{bar['worst']:.2f}x, {bar['worst_row']}" if "worst" in bar else ""
            cells = [line["title"], count, bar["peer"], asked, got, worst, bar["verdict"]]
            text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def row_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Milliseconds of ours, and how many times longer each peer took."""
    used = [name for name in PEERS if any(name in row.get("times", {}) for row in rows)]
    text = ["| workload | tedsl, ms | " + " | ".join(f"vs {name}" for name in used) + " | from |"]
    text.append("|---" * (len(used) + 3) + "|")
    for row in rows:
        if "times" not in row:
            why = row.get("lacks") or short(row.get("failed", ""))
            text.append(f"| {row['name']} | " + " | ".join([""] * (len(used) + 1)) + f" | {why} |")
            continue
        times = row["times"]
        ours = times[OURS]["ms"]
        cells = [f"{times[name]['ms'] / ours:.2f}x" if name in times else "" for name in used]
        text.append(f"| {row['name']} | {ours:.4f} | " + " | ".join(cells) + f" | {row['how']} |")
    return "\n".join(text) + "\n"


def short(reason: str) -> str:
    """A reason in one cell."""
    first = reason.strip().splitlines()[0] if reason.strip() else ""
    return first[:120].replace("|", "/")


def static_table(report: Report) -> str:
    """What every row's kernels ask for, and the predicted time beside what the bar allows."""
    text = [
        "| workload | kernels | registers | spills, B | shared, KiB | tl.dot | descriptors "
        "| workspace, MiB | floor, ms | predicted, ms | allowed, ms | remarks |",
        "|---" * 12 + "|",
    ]
    for row in report["rows"]:
        if "kernels" not in row:
            why = row.get("lacks") or short(row.get("failed", ""))
            text.append(f"| {row['name']} |" + " |" * 10 + f" {why} |")
            continue
        kernels = row["kernels"]
        allowed = row["allowed_ms"]
        cells = [
            row["name"],
            str(len(kernels)),
            "/".join(str(k["registers"]) for k in kernels[:4]),
            str(max((k["spills"] or 0 for k in kernels), default=0)),
            f"{max((k['shared'] for k in kernels), default=0) / 1024:.0f}",
            str(row["dots"]),
            "yes" if any(k["descriptors"] for k in kernels) else "no",
            f"{row['workspace'] / 2**20:.0f}",
            f"{row['floor_ms']:.4f}",
            f"{row['predicted_ms']:.4f}",
            "" if allowed is None else f"{allowed:.4f}",
            "; ".join(row["remarks"]),
        ]
        text.append("| " + " | ".join(cells) + " |")
    return "\n".join(text) + "\n"


def chart(report: Report, path: Path) -> None:
    """Bars of how many times longer the peers took, as SVG and PNG; they start at 1, on a scale
    where half and twice are equally far from it."""
    try:
        pyplot: Any = plotting()
    except ImportError:
        return  # the tables do without
    groups = grouped(report)
    if not groups:
        return
    thick = BAR * (sum(map(len, groups.values())) + GAP * len(groups))
    figure, axes = pyplot.subplots(figsize=(9, 1.3 + thick), layout="constrained")
    colours: dict[str, Any] = dict(zip(CHARTED, pyplot.get_cmap("tab10").colors, strict=False))
    middles: list[float] = []
    y = 0.0
    for ratios in groups.values():
        for number, (peer, ratio) in enumerate(ratios.items()):
            axes.barh(y + number, ratio - 1.0, left=1.0, height=1.0, color=colours[peer])
        middles.append(y + (len(ratios) - 1) / 2)
        y += len(ratios) + GAP
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set_yticks(middles, list(groups), fontsize=7)
    axes.set_ylim(y - GAP, -1.0)
    axes.set_xscale("log", base=2)
    shown = [1.0, *(ratio for ratios in groups.values() for ratio in ratios.values())]
    low, high = math.floor(math.log2(min(shown))), math.ceil(math.log2(max(shown)))
    ticks = range(low, high + 1)
    axes.set_xticks(
        [2.0**n for n in ticks], [f"{2**n}x" if n >= 0 else f"1/{2**-n}x" for n in ticks]
    )
    axes.set_xlabel("time of a peer over that of tedsl: right of 1x tedsl is faster")
    axes.set_title(where(report).strip().replace("; commit", "\ncommit"), fontsize=7)
    used = [peer for peer in CHARTED if any(peer in ratios for ratios in groups.values())]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=colours[peer]) for peer in used]
    figure.legend(handles, used, fontsize=7, ncols=4, loc="outside lower center")
    # Without the date, so that the same results give the same file.
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    figure.savefig(path.with_suffix(".png"), dpi=120)
    pyplot.close(figure)


def grouped(report: Report) -> dict[str, dict[str, float]]:
    """What to draw: for each row its peers with their times over ours; where there are many rows,
    for each line of the summary the geometric means over its rows.

    A copy stands only where it is asked for: it says nothing about what computes.
    """
    lines = {line["line"]: line for line in report.get("summary") or []}
    rows = [row for row in report["rows"] if "times" in row]
    found: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        line = lines.get(row.get("line"))
        many = len(rows) > MANY_ROWS and line is not None
        asked = {bar["peer"] for bar in line["bars"]} if line else {COPY}
        own = found.setdefault(line["title"] if line and many else row["name"], {})
        for peer in CHARTED:
            if peer in row["times"] and (peer != COPY or peer in asked):
                ratio = row["times"][peer]["ms"] / row["times"][OURS]["ms"]
                own.setdefault(peer, []).append(ratio)
    means = {
        title: {peer: statistics.geometric_mean(ratios) for peer, ratios in peers.items()}
        for title, peers in found.items()
    }
    return {title: peers for title, peers in means.items() if peers}


def plotting() -> Any:
    """matplotlib's pyplot, drawing to files only; names in SVG do not change from run to run."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tedsl"
    return importlib.import_module("matplotlib.pyplot")
