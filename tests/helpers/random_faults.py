"""Faults at places drawn at random: does the suite notice each of them?

    python tests/helpers/random_faults.py --seed 3 --count 60 --jobs 2 --out FOLDER

`mutate.py` has faults that somebody thought of; these nobody did.  In one copy of the package
every drawn place asks a switch whether its fault is on (`fault_switch.py`).  One run of the suite
with all switches off says which tests pass through which place, and how long each takes; then,
fault by fault, the tests that pass through it run with it switched on, quick ones first, until one
fails.

`FOLDER/random_faults.json` has for each fault the place, the change and the test that noticed it.
A fault that no test notices is listed with its line, to be explained or to be tested.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

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
FIRST, LIMIT = 20.0, 150.0
"""Seconds of tests that are tried at first, and in all, for one fault."""
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

    def run(self, tests: Sequence[str], switched: str, seconds: float, *options: str) -> int:
        """0 where all passed, 1 where some failed; 124 where time was up.

        Raises:
            ValueError: pytest ran nothing.
        """
        with tempfile.TemporaryDirectory() as cache:
            listed = Path(cache) / "tests"
            listed.write_text("\n".join(tests), encoding="utf-8")
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            command += [*self.ignored, *([] if self.ptxas else ["--no-ptxas"]), *options]
            with (Path(cache) / "printed").open("wb") as printed:
                try:
                    done = subprocess.run(
                        [*command, f"@{listed}"] if tests else command,
                        cwd=self.folder,
                        env={
                            **os.environ,
                            "PYTHONPATH": str(self.folder),
                            "TEDSL_CACHE_DIR": f"{cache}/cache",
                            "TEDSL_FAULT": switched,
                            "TEDSL_FAULT_HITS": str(self.folder / "hits"),
                        },
                        stdin=subprocess.DEVNULL,
                        stdout=printed,
                        stderr=subprocess.STDOUT,
                        timeout=seconds,
                        check=False,
                    )
                except subprocess.TimeoutExpired:
                    return 124
            if done.returncode not in (0, 1):
                raise ValueError(Path(printed.name).read_text(encoding="utf-8")[-3000:])
            return done.returncode

    def times(self) -> dict[str, float]:
        """Seconds of each test that passes when nothing is switched on."""
        found: dict[str, float] = {}
        failed: set[str] = set()
        for line in (self.folder / "reports").read_text(encoding="utf-8").splitlines():
            name, outcome, seconds = json.loads(line)
            found[name] = found.get(name, 0.0) + seconds
            if outcome != "passed":
                failed.add(name)
        return {name: seconds for name, seconds in found.items() if name not in failed}

    def reached(self) -> dict[int, set[str]]:
        """The tests that pass through each place."""
        found: dict[int, set[str]] = {}
        for path in (self.folder / "hits").iterdir():
            for line in path.read_text(encoding="utf-8").splitlines():
                number, _, test = line.partition(" ")
                found.setdefault(int(number), set()).add(test.rpartition(" (")[0] or test)
        return found

    def judge(self, fault: Fault, seconds: dict[str, float]) -> Fault:
        """Run the tests that reach the fault with it switched on, quick ones first."""
        began = time.perf_counter()
        own = [name for name in fault.tests if name in seconds]
        files = {name.partition("::")[0] for name in own}
        # What is cached from test to test is reached by the first of them only.
        near = [name for name in seconds if name.partition("::")[0] in files and name not in own]
        left = [*sorted(own, key=seconds.__getitem__), *sorted(near, key=seconds.__getitem__)]
        fault.verdict = "noticed by none" if left else "reached by none"
        for some in (FIRST, self.limit):
            batch: list[str] = []
            while left and (not batch or sum(map(seconds.__getitem__, batch)) < some):
                batch.append(left.pop(0))
            if not batch:
                break
            code = self.run(batch, str(fault.number), 4 * self.limit + 60, "-x", "-p", "noted")
            if code:
                fault.verdict = "time was up" if code == 124 else "noticed"
                fault.noticed_by = f"{len(batch)} tests such as {batch[0]}"
                break
        fault.tests = fault.tests[:5]
        fault.seconds = round(time.perf_counter() - began, 1)
        return fault


NOTED = '''"""A pytest plugin: how each test went, and how long it took."""
import json
from pathlib import Path
def pytest_runtest_logreport(report):
    with open(Path(__file__).parent / "reports", "a") as file:
        file.write(json.dumps([report.nodeid, report.outcome, report.duration]) + "\\n")
'''


def lay_out(folder: Path) -> None:
    """The copy, its switch, and the plugin that notes how long tests take."""
    mutate.layout(folder)
    (folder / "tedsl/fault_switch.py").write_text(
        (Path(__file__).parent / "fault_switch.py").read_text(encoding="utf-8"), encoding="utf-8"
    )
    (folder / "noted.py").write_text(NOTED, encoding="utf-8")
    (folder / "hits").mkdir()


def report(faults: Sequence[Fault], say: Callable[[str], object]) -> int:
    """Say what was not noticed; how many faults those are."""
    missed = [f for f in faults if f.verdict not in ("noticed", "time was up")]
    for fault in missed:
        say(f"{fault.verdict}: {fault.file}:{fault.line}  {fault.old}  ->  {fault.new}\n")
    say(f"{len(faults) - len(missed)} of {len(faults)} faults are noticed\n")
    return len(missed)


def main(arguments: Sequence[str]) -> int:
    """Draw faults, try each; 0 if at least 95% are noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of tests for a fault")
    parser.add_argument("--tests", nargs="*", default=(), help="these only; default: the suite")
    parser.add_argument("--ptxas", action="store_true", help="compile Triton kernels, too")
    parser.add_argument("--out", type=Path, default=Path())
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        lay_out(folder)
        faults = draw(folder, given.count, given.seed)
        suite = Suite(folder, given.limit, given.ptxas)
        began = time.perf_counter()
        code = suite.run(given.tests, "", 3600, "-n", str(given.jobs), "-p", "noted")
        seconds, reached = suite.times(), suite.reached()
        sys.stdout.write(
            f"pytest says {code} with all off: {len(seconds)} tests pass "
            f"in {time.perf_counter() - began:.0f} s\n"
        )
        sys.stdout.flush()
        for fault in faults:
            fault.tests = sorted(reached.get(fault.number, ()))
        with ThreadPoolExecutor(given.jobs) as pool:
            for fault in pool.map(lambda fault: suite.judge(fault, seconds), faults):
                sys.stdout.write(f"{fault.number:3} {fault.verdict:16} {fault.seconds:6.1f} s\n")
                sys.stdout.flush()
    missed = report(faults, sys.stdout.write)
    text = {"seed": given.seed, "count": len(faults), "noticed": len(faults) - missed,
            "faults": [asdict(fault) for fault in faults]}  # fmt: skip
    (given.out / "random_faults.json").write_text(json.dumps(text, indent=1), encoding="utf-8")
    return int(missed * 20 > len(faults))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
