"""The README's first picture: attention defined once, and the kernels that three schedules make.

    python tests/benchmarks/fusion_picture.py      # writes tutorials/fusion.svg

Which stages share a kernel, and the bytes that are moved, are read off the built kernels
(`kernel.explain()`); nothing is timed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tedsl as te

HEADS, TOKENS, DEPTH = 8, 1024, 64
STAGES = {
    "S": "Q Kᵀ",
    "m": "max S",
    "p": "exp(S - m)",
    "l": "sum p",
    "P": "p / l",
    "O": "sum P V",
}
FILE = Path(__file__).parent.parent.parent / "tutorials" / "fusion.svg"


@dataclass(frozen=True)
class Line:
    """One schedule: the kernel of each stage, how many kernels there are, the bytes they move."""

    name: str
    kernel_of: dict[str, int]
    kernels: int
    nbytes: int


def attention() -> te.Tensor:
    """softmax(Q K^T) V per head, in six stages."""
    q, k, v = (te.placeholder((HEADS, TOKENS, DEPTH), name=name) for name in "QKV")
    d = te.reduce_axis((0, DEPTH), name="d")
    a, b, c = (te.reduce_axis((0, TOKENS), name="j") for _ in range(3))
    rows, whole = (HEADS, TOKENS), (HEADS, TOKENS, TOKENS)
    S = te.compute(whole, lambda h, i, j: te.sum(q[h, i, d] * k[h, j, d], axis=d), name="S")
    m = te.compute(rows, lambda h, i: te.max(S[h, i, a], axis=a), name="m")
    p = te.compute(whole, lambda h, i, j: te.exp(S[h, i, j] - m[h, i]), name="p")
    total = te.compute(rows, lambda h, i: te.sum(p[h, i, b], axis=b), name="l")
    P = te.compute(whole, lambda h, i, j: p[h, i, j] / total[h, i], name="P")
    shape = (HEADS, TOKENS, DEPTH)
    return te.compute(shape, lambda h, i, e: te.sum(P[h, i, c] * v[h, c, e], axis=c), name="O")


def inlined() -> te.Schedule:
    """What is no reduction is computed where it is read."""
    s = te.create_schedule(attention())
    for name in ("p", "P"):
        s[name].compute_inline()
    return s


def one_pass() -> te.Schedule:
    """Everything inside one loop over blocks of keys."""
    s = te.create_schedule(attention())
    out = s["O"]
    h, i, e = out.op.axis
    block, i = out.split(i, 64)
    j, inner = out.split(out.op.reduce_axis[0], 64)
    out.reorder(h, block, j, i, e, inner)
    s["P"].compute_inline()
    out.online(j)
    s["S"].compute_at(out, j)
    return s


def line(name: str, made: te.Schedule | te.Tensor) -> Line:
    """What a schedule makes of the stages."""
    kernel = te.build(made, "cpu")
    cost = kernel.explain()
    kernel_of: dict[str, int] = {}
    for number, each in enumerate(cost.kernels):
        for place in each.stages:
            kernel_of.setdefault(place.stage.split(".")[0].split("_")[0], number)
    for stage in reversed(STAGES):  # an inlined stage is computed where it is read: by the next one
        later = list(STAGES)[list(STAGES).index(stage) + 1 :]
        if stage not in kernel_of:
            kernel_of[stage] = kernel_of[later[0]]
    return Line(name, kernel_of, len(cost.kernels), cost.nbytes)


def draw(lines: Sequence[Line], path: Path) -> None:
    """A row for each schedule: stages in order, a frame around those of one kernel."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    matplotlib.rcParams["svg.hashsalt"] = "tedsl"
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    patches: Any = importlib.import_module("matplotlib.patches")
    figure, axes = pyplot.subplots(figsize=(11.5, 2.9), layout="constrained")
    most = max(each.nbytes for each in lines)
    for row, each in enumerate(lines):
        y = -row
        axes.text(-0.7, y, each.name, ha="right", va="center", fontsize=10)
        for place, (name, what) in enumerate(STAGES.items()):
            kernel = each.kernel_of[name]
            joins = (
                place + 1 < len(STAGES)
                and kernel == list(each.kernel_of[s] for s in STAGES)[place + 1]
            )
            box = patches.Rectangle((place - 0.47, y - 0.3), 1.0 if joins else 0.94, 0.6,
                                    color=f"C{kernel}", alpha=0.3, linewidth=0)  # fmt: skip
            axes.add_patch(box)
            axes.text(place, y, f"{name} = {what}", ha="center", va="center", fontsize=8)
        axes.barh(y, 2.0 * each.nbytes / most, left=6.0, height=0.6, color="0.55")
        count = f"{each.kernels} kernel{'s' if each.kernels > 1 else ''}"
        text = f"{count}, {each.nbytes / 1e6:.0f} MB"
        axes.text(6.05 + 2.0 * each.nbytes / most, y, text, va="center", fontsize=9)
    axes.text(
        2.5, 0.62, "stages of the definition; one colour: one kernel", ha="center", fontsize=9
    )
    axes.text(6.0, 0.62, "memory read and written", fontsize=9)
    axes.set_xlim(-2.6, 9.9)
    axes.set_ylim(-len(lines) + 0.5, 0.9)
    axes.set_axis_off()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(path: Path = FILE) -> int:
    """Build, draw, and say what was drawn."""
    lines = [
        line("every stage alone", te.create_schedule(attention())),
        line("formulas inlined", inlined()),
        line("one pass, by hand", one_pass()),
    ]
    draw(lines, path)
    for each in lines:
        print(f"{each.name}: {each.kernels} kernels, {each.nbytes / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
