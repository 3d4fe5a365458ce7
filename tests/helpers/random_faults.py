"""Faults at places drawn at random: does the suite notice each of them?

    python tests/helpers/random_faults.py --seed 3 --count 60 --jobs 2 --out FOLDER

`mutate.py` has faults that somebody thought of; these nobody did.  In one copy of the package
every drawn place asks a switch whether its fault is on (`fault_switch.py`).  One run of the suite
with all switches off says which tests pass through which place, and how long each takes; it is kept
in `FOLDER/reached.json`, with which `--reached` begins where another run ended.  Then, `--jobs`
faults at a time, the tests that pass through a fault run with it switched on, near and quick ones
first, until one fails that passes without the fault.

`FOLDER/random_faults.json` has for each fault the place, the change and the test that noticed it.
A fault that no test notices is listed with its line, to be explained or to be tested.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

import mutate

ROOT = mutate.ROOT
ROOMS: dict[str, tuple[str, ...]] = {
    "lowering": ("tedsl/lower",),
    "legality": (
        "tedsl/scheduling/invariants",
        "tedsl/scheduling/primitives/arguments.py",
        "tedsl/scheduling/primitives/graph_rewrites/divide_legality.py",
        "tedsl/scheduling/primitives/graph_rewrites/legality.py",
        "tedsl/scheduling/primitives/kernel_fusion/grid_barrier.py",
        "tedsl/scheduling/primitives/kernel_fusion/horizontal.py",
        "tedsl/scheduling/primitives/kernel_fusion/last_block.py",
        "tedsl/scheduling/primitives/layouts/legality.py",
        "tedsl/scheduling/primitives/loops/legality.py",
        "tedsl/scheduling/primitives/marks/atomic.py",
        "tedsl/scheduling/primitives/online/legality.py",
        "tedsl/scheduling/primitives/online/slices.py",
        "tedsl/scheduling/primitives/placement/legality.py",
        "tedsl/scheduling/primitives/reverse_placement/legality.py",
        "tedsl/scheduling/primitives/scans/legality.py",
        "tedsl/scheduling/primitives/sizes/legality.py",
        "tedsl/scheduling/primitives/stage_facts.py",
        "tedsl/scheduling/primitives/storage/legality.py",
        "tedsl/scheduling/primitives/tensorize/legality.py",
    ),
    "cpu": ("tedsl/backends/cpu",),
    "triton": ("tedsl/backends/triton",),
    "checks of the search": (
        "autotune/measure/bench.py",
        "autotune/measure/guarded_buffers.py",
        "tedsl/checking/expected_outputs.py",
        "tedsl/checking/random_inputs.py",
        "tedsl/checking/step_check.py",
        "tedsl/checking/tolerance.py",
    ),
}
READS_SOURCES = ("style", "lint", "layers", "mutations", "packages", "import_time", "names")
"""Tests that look at the text of the package, which is another one here."""
FIRST, LIMIT = 20.0, 100.0
"""Seconds of tests that are tried at first, and in all, for one fault."""
GRACE = 60.0
"""Seconds that tests may take beyond four times what they took."""
NOTICED = ("noticed", "time was up")
TIME_IS_UP = 124
SWITCH = "from tedsl.fault_switch import on as fault_is_on"

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.FloorDiv,
}


@dataclass
class Fault:
    """A change of one place: in `file`, at `line`, `old` becomes `new`."""

    number: int
    room: str
    file: str
    line: int
    old: str
    new: str
    tests: list[str] = field(default_factory=list)
    verdict: str = "not tried"
    noticed_by: str = ""
    seconds: float = 0.0


def changed(node: ast.AST, rng: random.Random) -> ast.expr | None:
    """Another expression in place of `node`; None where there is nothing to change."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=right) if type(op) in COMPARED:
            return ast.Compare(left, [COMPARED[type(op)]()], right)
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED:
            if any(isinstance(n, ast.JoinedStr) or _text(n) for n in ast.walk(node)):
                return None  # a text: such a fault fails at once
            return ast.BinOp(left, COMPUTED[type(op)](), right)
        case ast.Constant(value=bool() as value):
            return ast.Constant(not value)
        case ast.Constant(value=int() as value):
            return ast.Constant(value + rng.choice((-1, 1)))
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args, keywords=keywords):
            other = ast.Name("max" if name == "min" else "min", ast.Load())
            return ast.Call(other, args, keywords)
        case ast.Call(func=ast.Name(id="any" | "all" as name), args=args, keywords=keywords):
            other = ast.Name("all" if name == "any" else "any", ast.Load())
            return ast.Call(other, args, keywords)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return ast.IfExp(test, orelse, body)
        case _:
            return None


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def droppable(node: ast.stmt) -> bool:
    """Whether a function without the statement is one that somebody could have written."""
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Continue() | ast.Break():
            return True
        case ast.AugAssign():
            return True
        case _:
            return False


def places(tree: ast.Module) -> Iterator[ast.AST]:
    """Expressions and statements in functions that could be another one.

    Not the words of a refusal, types, patterns and defaults.
    """

    def below(node: ast.AST, inside: bool) -> Iterator[ast.AST]:
        match node:
            case ast.FunctionDef(body=body):
                for line in body:
                    yield from below(line, True)
                return
            case ast.Raise() if inside:
                yield node
                return
            case ast.JoinedStr() | ast.Assert():
                return
            case ast.AnnAssign(value=value):
                if value is not None:
                    yield from below(value, inside)
                return
            case ast.match_case(guard=guard, body=body):
                for part in (*([guard] if guard else []), *body):
                    yield from below(part, inside)
                return
            case _:
                pass
        if inside and isinstance(node, (ast.expr, ast.stmt)):
            yield node
        for child in ast.iter_child_nodes(node):
            yield from below(child, inside)

    yield from below(tree, False)


class Switched(ast.NodeTransformer):
    """Puts the chosen faults of one file behind their switches."""

    def __init__(self, chosen: dict[int, tuple[int, ast.expr | None]]) -> None:
        self.chosen = chosen  # from id(node) to the number and what stands there when it is on

    def visit(self, node: ast.AST) -> ast.AST:
        found = self.chosen.get(id(node))
        node = self.generic_visit(node)
        if found is None:
            return node
        number, new = found
        test = ast.parse(f"fault_is_on({number})", mode="eval").body
        if new is not None:
            assert isinstance(node, ast.expr)
            return ast.IfExp(test, new, node)
        assert isinstance(node, ast.stmt)
        return ast.If(ast.UnaryOp(ast.Not(), test), [node], [])


def draw(folder: Path, count: int, seed: int) -> list[Fault]:
    """Draw faults and write the package in `folder` anew, with a switch for each."""
    rng = random.Random(seed)
    found: list[Fault] = []
    trees: dict[str, ast.Module] = {}
    chosen: dict[str, dict[int, tuple[int, ast.expr | None]]] = {}
    files = {room: list(_files(folder, names)) for room, names in ROOMS.items()}
    sizes = {room: [path.stat().st_size for path in paths] for room, paths in files.items()}
    while len(found) < count:
        room = list(ROOMS)[len(found) % len(ROOMS)]
        path = rng.choices(files[room], sizes[room])[0]
        name = path.relative_to(folder).as_posix()
        tree = trees.setdefault(name, ast.parse(path.read_text(encoding="utf-8")))
        options = list(places(tree))
        if not options:
            continue
        node = rng.choice(options)
        taken = chosen.setdefault(name, {})
        if any(id(n) in taken for n in ast.walk(node)):
            continue
        new = changed(node, rng) if isinstance(node, ast.expr) else None
        if new is None and not (isinstance(node, ast.stmt) and droppable(node)):
            continue
        assert isinstance(node, (ast.expr, ast.stmt))
        old_text, new_text = ast.unparse(node), "(nothing)" if new is None else ast.unparse(new)
        taken[id(node)] = len(found), new
        found.append(Fault(len(found), room, name, node.lineno, old_text, new_text))
    for name, tree in trees.items():
        if chosen.get(name):
            Switched(chosen[name]).visit(tree)
            _write(folder / name, tree)
    return found


def _files(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    for name in names:
        path = folder / (name if name.startswith("tedsl") else f"tedsl/{name}")
        yield from [path] if path.is_file() else sorted(path.rglob("*.py"))


def _write(path: Path, tree: ast.Module) -> None:
    """The tree as text, with the switch imported after the docstring and `__future__`."""
    at = next(
        n for n, line in enumerate(tree.body)
        if not isinstance(line, ast.Expr) and getattr(line, "module", "") != "__future__"
    )  # fmt: skip
    tree.body[at:at] = ast.parse(SWITCH).body
    path.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")


def _outside() -> dict[str, str]:
    """The environment without what a process of `pytest -n` has: this may run in one."""
    inner = ("PYTEST_XDIST_", "PYTEST_CURRENT_TEST")
    return {name: value for name, value in os.environ.items() if not name.startswith(inner)}


class Suite:
    """The tests of a copy of the package."""

    def __init__(self, folder: Path, limit: float, ptxas: bool) -> None:
        self.folder = folder
        self.limit = limit
        self.ptxas = ptxas
        self.ignored = [
            f"--ignore={path.relative_to(folder)}"
            for path in sorted((folder / "tests").rglob("test_*.py"))
            if path.stem.removeprefix("test_") in READS_SOURCES
        ]

    def run(self, tests: Sequence[str], seconds: float, *options: str, **switches: object) -> Ran:
        """Run tests, in their order where pytest has one process."""
        with tempfile.TemporaryDirectory() as cache:
            listed, reports = Path(cache) / "tests", Path(cache) / "reports"
            listed.write_text("\n".join(tests), encoding="utf-8")
            reports.touch()
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            command += ["-p", "fault_notes", "-m", "not slow and not gpu", f"--basetemp={cache}/t"]
            command += [*self.ignored, *([] if self.ptxas else ["--no-ptxas"]), *options]
            own = {
                "PYTHONPATH": f"{self.folder}{os.pathsep}{self.folder / 'tests/helpers'}",
                "TEDSL_CACHE_DIR": f"{cache}/cache",
                "TEDSL_FAULT_REPORTS": str(reports),
                **{f"TEDSL_FAULT{name}": str(value) for name, value in switches.items()},
            }
            if switches:
                own["TEDSL_FAULT_ORDER"] = str(listed)
            with (Path(cache) / "printed").open("wb") as printed:
                process = subprocess.Popen(
                    [*command, f"@{listed}"] if tests else command,
                    cwd=self.folder,
                    env={**_outside(), **own},
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                try:
                    code = process.wait(seconds)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                    code = TIME_IS_UP
            text = Path(printed.name).read_text(encoding="utf-8", errors="replace")
            return Ran(code, _outcomes(reports), text[-3000:])

    def reached(self) -> dict[int, set[str]]:
        """The tests that pass through each place."""
        found: dict[int, set[str]] = {}
        for path in (self.folder / "hits").iterdir():
            for line in path.read_text(encoding="utf-8").splitlines():
                number, _, test = line.partition(" ")
                found.setdefault(int(number), set()).add(test.rpartition(" (")[0] or test)
        return found

    def judge(self, fault: Fault, seconds: dict[str, float]) -> Fault:
        """Run the tests that reach the fault with it switched on, near and quick ones first."""
        began = time.perf_counter()
        own = [name for name in fault.tests if name in seconds]
        files = {name.partition("::")[0] for name in own}
        # What is cached from test to test is reached by the first of them only.
        near = [name for name in seconds if name.partition("::")[0] in files and name not in own]
        room = fault.file.removeprefix("tedsl/").split("/")[:-1]

        def cost(name: str) -> float:
            pairs = zip(room, name.split("/")[1:-1], strict=False)
            return seconds[name] / 10 ** len([*takewhile(lambda two: two[0] == two[1], pairs)])

        left = [*sorted(own, key=cost), *sorted(near, key=cost)]
        fault.verdict = "noticed by none" if left else "reached by none"
        for some in (FIRST, self.limit):
            batch: list[str] = []
            while left and (not batch or sum(map(seconds.__getitem__, batch)) < some):
                batch.append(left.pop(0))
            if self.noticed(fault, batch, seconds):
                break
        fault.tests = fault.tests[:5]
        fault.seconds = round(time.perf_counter() - began, 1)
        return fault

    def noticed(self, fault: Fault, batch: list[str], seconds: dict[str, float]) -> bool:
        """Whether one of these tests fails, hangs or ends with the fault on, and passes without.

        Raises:
            ValueError: pytest says nothing of a test that fails.
        """
        while batch:
            longest = max(map(seconds.__getitem__, batch))
            most = [f"--timeout={GRACE + 4 * longest:.0f}"]
            allowed = 2 * GRACE + 4 * sum(map(seconds.__getitem__, batch))
            ran = self.run(batch, allowed, "-x", *most, _PLACE=fault.number, **{"": fault.number})
            if ran.code == 0:
                return False
            named = ran.failed() or [name for name in batch if name not in ran.outcomes]
            if not named:
                raise ValueError(ran.printed)
            alone = GRACE + 4 * seconds[named[0]]
            if self.run(named[:1], alone, *most, _PLACE=fault.number).code == 0:
                fault.verdict = "time was up" if ran.code == TIME_IS_UP else "noticed"
                fault.noticed_by = named[0]
                return True
            batch.remove(named[0])  # it fails by itself
        return False


@dataclass
class Ran:
    """What pytest ends with, how each test that ended went, and the last of what was printed."""

    code: int
    outcomes: dict[str, tuple[str, float]]
    printed: str

    def failed(self) -> list[str]:
        """The names of tests that failed."""
        return [name for name, (outcome, _) in self.outcomes.items() if outcome == "failed"]


def _outcomes(reports: Path) -> dict[str, tuple[str, float]]:
    """How each test went, whose last part is there or failed, and its seconds."""
    parts: dict[str, list[tuple[str, str, float]]] = {}
    for line in reports.read_text(encoding="utf-8").splitlines():
        name, *part = json.loads(line)
        parts.setdefault(name, []).append((part[0], part[1], part[2]))
    found: dict[str, tuple[str, float]] = {}
    for name, own in parts.items():
        worst = next((outcome for _, outcome, _ in own if outcome != "passed"), "passed")
        if worst == "failed" or own[-1][0] == "teardown":
            found[name] = worst, sum(seconds for *_, seconds in own)
    return found


def lay_out(folder: Path) -> None:
    """The copy and its switch."""
    mutate.layout(folder)
    switch = (Path(__file__).parent / "fault_switch.py").read_text(encoding="utf-8")
    (folder / "tedsl/fault_switch.py").write_text(switch, encoding="utf-8")
    (folder / "hits").mkdir()


def look(suite: Suite, tests: Sequence[str], jobs: int, faults: Sequence[Fault]) -> dict[str, Any]:
    """Run the suite with all off: seconds of what passes, and the numbers of what reaches a place.

    Raises:
        ValueError: pytest ran nothing.
    """
    ran = suite.run(tests, 3600, "-n", str(jobs), **{"_HITS": suite.folder / "hits"})
    if ran.code not in (0, 1):
        raise ValueError(ran.printed)
    passed = {name: round(s, 4) for name, (what, s) in ran.outcomes.items() if what == "passed"}
    number = {name: n for n, name in enumerate(passed)}
    reached = suite.reached()
    return {
        "faults": [_change(fault) for fault in faults],
        "seconds": passed,
        "reached": [
            sorted(number[name] for name in reached.get(fault.number, ()) if name in number)
            for fault in faults
        ],
        "failed": ran.failed(),
    }


def _change(fault: Fault) -> list[Any]:
    return [fault.file, fault.line, fault.old, fault.new]


def report(faults: Sequence[Fault], say: Callable[[str], object]) -> int:
    """Say what was not noticed; how many faults those are."""
    missed = [f for f in faults if f.verdict not in NOTICED]
    for fault in missed:
        say(f"{fault.verdict}: {fault.file}:{fault.line}  {fault.old}  ->  {fault.new}\n")
    say(f"{len(faults) - len(missed)} of {len(faults)} faults are noticed\n")
    return len(missed)


def asked(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of tests for a fault")
    parser.add_argument("--tests", nargs="*", default=(), help="these only; default: the suite")
    parser.add_argument("--reached", type=Path, help="that file of an earlier run of these faults")
    parser.add_argument("--ptxas", action="store_true", help="compile Triton kernels, too")
    parser.add_argument("--commit", default="", help="what is tested")
    parser.add_argument("--out", type=Path, default=Path())
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Draw faults, try each; 0 if at least 95% are noticed."""
    given = asked(arguments)
    given.out.mkdir(parents=True, exist_ok=True)

    def say(text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        lay_out(folder)
        faults = draw(folder, given.count, given.seed)
        suite = Suite(folder, given.limit, given.ptxas)
        if given.reached:
            found = json.loads(given.reached.read_text(encoding="utf-8"))
        else:
            found = look(suite, given.tests, given.jobs, faults)
            (given.out / "reached.json").write_text(json.dumps(found), encoding="utf-8")
        if found["faults"] != [_change(fault) for fault in faults]:
            raise SystemExit(f"{given.reached} is of other faults: another seed, count or commit")
        seconds, names = found["seconds"], list(found["seconds"])
        say(f"{len(names)} tests pass with all off, after {time.perf_counter() - began:.0f} s\n")
        for fault, reached in zip(faults, found["reached"], strict=True):
            fault.tests = [names[number] for number in reached]
        with ThreadPoolExecutor(given.jobs) as pool:
            trying = [pool.submit(suite.judge, fault, seconds) for fault in faults]
            for done in as_completed(trying):
                fault = done.result()
                by = fault.noticed_by or f"{fault.file}:{fault.line}"
                say(f"{fault.number:3} {fault.verdict:16} {fault.seconds:6.1f} s  {by}\n")
                _write_down(given, faults, time.perf_counter() - began)
    missed = report(faults, say)
    return int(missed * 20 > len(faults))


def _write_down(given: argparse.Namespace, faults: Sequence[Fault], seconds: float) -> None:
    """What is known so far."""
    noticed = sum(fault.verdict in NOTICED for fault in faults)
    text = {"commit": given.commit, "seed": given.seed, "count": len(faults), "noticed": noticed,
            "limit": given.limit, "jobs": given.jobs, "seconds": round(seconds),
            "faults": [asdict(fault) for fault in faults]}  # fmt: skip
    path = given.out / "random_faults.json"
    path.write_text(json.dumps(text, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
