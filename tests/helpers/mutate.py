"""Faults made by hand, one at a time, in a copy of the package: does the suite notice?

    python tests/helpers/mutate.py               # all of them, in parts that take a few minutes
    python tests/helpers/mutate.py union tail    # those whose name contains one of the words

Each fault is a replacement of source text that stands exactly once, so a change of that line shows
up here.  Every one of them is caught by the tests named with it; a fault that is not is a test that
is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 600
"""Seconds for the tests of one fault."""


@dataclass(frozen=True)
class Fault:
    """One change for the worse: in `file`, `old` becomes `new`; some of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


LOOPS = "scheduling/primitives/loops/legality.py"
PLACES = "scheduling/primitives/placement/legality.py"
EXTENTS = "scheduling/regions/loop_bounds.py"
TREE = "scheduling/kernels/tree.py"
BOXES = "scheduling/regions/boxes.py"
REFUSED = "tests/scheduling/test_illegal_requests.py"
MEANING = ("tests/scheduling/test_meaning.py", "tests/lower/test_meaning.py")

FAULTS: tuple[Fault, ...] = (
    # Legality: what must be refused is accepted.
    Fault(
        "fuse accepts loops that are not adjacent",
        LOOPS,
        "if order == list(range(order[0], order[0] + len(axes))):",
        "if len(order) > 1:",
        ("tests/scheduling/test_loops.py", REFUSED),
    ),
    Fault(
        "parallel accepts a reduce axis",
        LOOPS,
        "    if axis.kind is AxisKind.DATA or stage.atomic:\n        return\n",
        "    if axis.kind:\n        return\n",
        ("tests/scheduling/test_marks.py", REFUSED),
    ),
    Fault(
        "lanes of a reduction that depends on the order",
        LOOPS,
        "    if result.verdict is Verdict.PROVED:\n        return\n    raise not_any_order(",
        "    if result.verdict is not None:\n        return\n    raise not_any_order(",
        ("tests/scheduling/test_marks.py", REFUSED),
    ),
    Fault(
        "two loops bound to one dimension of the grid",
        LOOPS,
        "        if mark.kind is LoopKind.PROGRAM and mark.program == program:",
        "        if mark.kind is LoopKind.PROGRAM and mark.program > program:",
        ("tests/scheduling/test_marks.py",),
    ),
    Fault(
        "rfactor takes what was not decided as consent",
        "scheduling/primitives/graph_rewrites/legality.py",
        "(result.verdict is Verdict.UNKNOWN and consent is True)",
        "result.verdict is Verdict.UNKNOWN",
        ("tests/scheduling/test_rewrites.py", "tests/scheduling/test_algebra.py"),
    ),
    Fault(
        "a reader one loop outside the attach point",
        PLACES,
        "            return rank[own] >= at\n",
        "            return rank[own] >= at - 1\n",
        ("tests/scheduling/test_places.py", "tests/scheduling/test_several_readers.py"),
    ),
    Fault(
        "a stage attached at a vectorized loop",
        PLACES,
        "    if target.mark(axis).kind is LoopKind.VECTORIZED:",
        "    if target.mark(axis).kind is LoopKind.VECTORIZED and not stage.op.shape:",
        ("tests/scheduling/test_places.py", REFUSED),
    ),
    Fault(
        "what an init reads, computed inside the reduce loop",
        PLACES,
        "for outer in reader.loop_order[: at + 1]:\n                if outer.kind is",
        "for outer in reader.loop_order[:at]:\n                if outer.kind is",
        ("tests/scheduling/test_places.py",),
    ),
    Fault(
        "an epilogue inside an unfinished reduction",
        "scheduling/primitives/reverse_placement/legality.py",
        "        if axis.kind is AxisKind.REDUCE:\n            raise _unfinished(",
        "        if axis.kind is AxisKind.REDUCE and not outer:\n            raise _unfinished(",
        ("tests/scheduling/test_moves.py",),
    ),
    Fault(
        "an output of the schedule is inlined or attached",
        "scheduling/primitives/placement/rewrite.py",
        "    if is_output(plan, stage.op):\n        raise call.refuse(",
        "    if is_output(plan, stage.op) and not stage.op.shape:\n        raise call.refuse(",
        ("tests/scheduling/test_places.py", REFUSED),
    ),
    # Region inference.
    Fault(
        "a region leaves out its second reader",
        BOXES,
        "    for r in ranges[1:]:",
        "    for r in ranges[2:]:",
        ("tests/scheduling/test_several_readers.py", *MEANING),
    ),
    Fault(
        "a region is one element short",
        BOXES,
        "    return Range(low, add(sub(high, low), 1))",
        "    return Range(low, sub(high, low))",
        MEANING,
    ),
    Fault(
        "loops around a stage without the one it is attached at",
        TREE,
        "*running(plan, parent)[: position[axis] + 1])",
        "*running(plan, parent)[: position[axis]])",
        MEANING,
    ),
    Fault(
        "split rounds the outer extent down: the tail is lost",
        EXTENTS,
        "    other = simplify(ceil_div(parent, fixed), facts)",
        "    other = simplify(floordiv(parent, fixed), facts)",
        MEANING,
    ),
    Fault(
        "fuse divides by the extent of the outer loop",
        EXTENTS,
        "                values[outer] = floordiv(values[fused], extents[inner])",
        "                values[outer] = floordiv(values[fused], extents[outer])",
        MEANING,
    ),
    Fault(
        "a split has no guard",
        EXTENTS,
        "        elif not isinstance(relation, Split) or relation.parent in skewed:",
        "        elif not isinstance(relation, Split) or relation.nparts is None:",
        MEANING,
    ),
    Fault(
        "a skewed loop has no guard at its start",
        EXTENTS,
        "            needed.append(at_most(ZERO, place))",
        "            continue",
        ("tests/scheduling/test_skew.py",),
    ),
    Fault(
        "a skew counts rows from the start of the region",
        EXTENTS,
        "                ahead = skew_of(relation, add(starts[along], values[along]))",
        "                ahead = skew_of(relation, values[along])",
        ("tests/scheduling/test_skew.py",),
    ),
    Fault(
        "a region that reaches outside its tensor has no lower guard",
        EXTENTS,
        "            needed += [less(index, size), at_most(ZERO, index)]",
        "            needed += [less(index, size)]",
        (*MEANING, "tests/scheduling/test_places.py"),
    ),
    # Rewrites of the graph.
    Fault(
        "inlining swaps the indices",
        "scheduling/plan/inline.py",
        "at(source.axes, node.indices)",
        "at(source.axes, node.indices[::-1])",
        MEANING,
    ),
    Fault(
        "rfactor folds what lies past the end of a split",
        "scheduling/primitives/graph_rewrites/cache.py",
        "        return both(*conditions) if conditions else None",
        "        return None",
        ("tests/scheduling/test_rewrites.py", *MEANING),
    ),
    Fault(
        "rfactor forgets the init",
        "scheduling/primitives/graph_rewrites/rfactor.py",
        "Reduce(reduce.reducer, sources, (axis,), init=reduce.init, finish=reduce.finish)",
        "Reduce(reduce.reducer, sources, (axis,), init=None, finish=reduce.finish)",
        ("tests/scheduling/test_rewrites.py", *MEANING),
    ),
    # Passes.
    Fault(
        "the part of a loop without guards is one iteration too long",
        "lower/passes/partition_loops.py",
        "ceil_div(sub(high, rest), size), exact=not moving)",
        "ceil_div(sub(high, rest), size) + 1, exact=not moving)",
        MEANING,
    ),
    Fault(
        "padded lanes are not masked",
        "lower/passes/vectorize_loops.py",
        "        conditions = (*conditions, less(loop.axis, size))",
        "        conditions = (*conditions,)",
        MEANING,
    ),
    Fault(
        "lanes fold what the where of a reduction leaves out",
        "lower/passes/vectorize_loops.py",
        "        own = list(conjuncts(place.masked(stmt.mask)))",
        "        own = list(conjuncts(place.masked(stmt.mask)))[:0]",
        MEANING,
    ),
    Fault(
        "masked lanes may read below 0",
        "lower/passes/masks.py",
        "        tests += [at_most(ZERO, wide), less(wide, size)]",
        "        tests += [less(wide, size)]",
        (*MEANING, "tests/agreement/test_agreement_found.py"),
    ),
    Fault(
        "an online reduction is not repaired",
        "lower/nests/reduction.py",
        "        if self.reduce.repair is None:",
        "        if self.reduce.repair is None or len(buffers) == 1:",
        ("tests/autotune/test_steps.py", "tests/scheduling/test_together.py"),
    ),
    Fault(
        "masked lanes are a Triton reduction's 0, whatever its identity",
        "backends/triton/emit/reduction.py",
        "        p for p in update.parts if not (op is BinaryOp.ADD and zero_outside(",
        "        p for p in update.parts if not (op is not None and zero_outside(",
        ("tests/backends/test_triton_interpret.py", "tests/backends/test_triton_emit.py"),
    ),
    # Calls.
    Fault(
        "a call against an assumption runs",
        "runtime/arguments/signature.py",
        "            if not evaluate(condition, values):",
        "            if not evaluate(condition, values) and not values:",
        ("tests/scheduling/test_sizes.py", "tests/runtime/test_arguments.py"),
    ),
    Fault(
        "undo keeps the knobs",
        "scheduling/handles/schedule.py",
        "        self._state = self._before[-count]\n",
        "        self._state = replace(self._before[-count], knobs=self._state.knobs)\n",
        ("tests/scheduling/test_undo.py",),
    ),
)


def layout(folder: Path) -> None:
    """The package as it is when installed, and its tests, as a copy."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("tedsl", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    for name in ("schedules", "autotune"):
        shutil.copytree(ROOT / name, folder / "tedsl" / name, ignore=skip, dirs_exist_ok=True)
    shutil.copy(ROOT / "pyproject.toml", folder)


def caught(fault: Fault, folder: Path) -> str:
    """The first test that fails under the fault; empty when all pass, or have no end in `LIMIT`
    seconds: what a slow machine may do as well has noticed nothing.

    Raises:
        ValueError: the text of the fault does not stand exactly once in its file.
    """
    path = folder / "tedsl" / fault.file
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: {text.count(fault.old)} times in {fault.file}")
    tests = [name for name in fault.tests if (folder / name).exists()]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), "HYPOTHESIS_PROFILE": "dev"},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return ""
    finally:
        path.write_text(text, encoding="utf-8")
    lines = [s for s in done.stdout.splitlines() if s.startswith("FAILED")]
    if done.returncode not in (0, 1):
        raise ValueError(f"{fault.name}: pytest says {done.returncode}\n{done.stdout[-2000:]}")
    return "" if not done.returncode else lines[0] if lines else "failed"


def main(words: list[str]) -> int:
    """Try the faults; the number of those that nothing noticed."""
    chosen = [f for f in FAULTS if not words or any(word in f.name for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        layout(folder)
        for fault in chosen:
            begin = time.perf_counter()
            found = caught(fault, folder)
            missed += not found
            seconds = time.perf_counter() - begin
            shown = found.split(" - ")[0].removeprefix("FAILED ")
            sys.stdout.write(f"{shown or 'NOT CAUGHT':<70} {seconds:5.1f} s  {fault.name}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} faults are caught\n")
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
