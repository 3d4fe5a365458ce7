"""Imports run one way, heavy modules load late."""

from __future__ import annotations

import re

import pytest
from sources import PACKAGES, Source, python_files, run_python

import tedsl

FIRST = (
    "counterparts",
    "deep",
    "detect",
    "devices",
    "dtypes",
    "errors",
    "folders",
    "late",
    "once",
    "packages",
    "processor",
    "saving",
    "shown",
    "slips",
    "target",
    "ufuncs",
)
ROOMS = (
    "expr",
    "index",
    "tensor",
    "reference",
    "gradient",
    "nn",
    "ir",
    "scheduling",
    "lower",
    "backends",
    "runtime",
    "workload",
    "cost",
    "build",
    "checking",
    "tvm",
    "",
    "schedules",
    "autotune",
    "explaining",
    "view",
    "torch",
    "cli",
)
UPWARDS = {
    ("tedsl.build", "tedsl.schedules"),
    ("tedsl.tensor.signatures", "tedsl"),
    ("tedsl.tensor.tensor", "tedsl.nn.matmul"),
    ("tedsl.runtime.kernel", "tedsl.explaining.explain"),
    ("tedsl.shown", "tedsl.view"),
    ("tedsl.tvm", "tedsl"),
    ("tedsl.tvm.tir", "tedsl"),
    ("tedsl.runtime.like_module", "tedsl.tvm.saved"),
    ("tedsl.scheduling.handles.tvm_schedule", "tedsl.build"),
    ("tedsl.ufuncs", "tedsl"),
}
"""What a low room loads by name from a high one."""
HEAVY = ("triton", "llvmlite", "sympy", "torch", "rich", "sqlite3", "matplotlib", "scipy")
FILES = python_files(*PACKAGES)


def rank(module: str) -> int:
    """The place of a module in the order of the rooms; a module imports none of higher rank."""
    room = (*module.split(".")[1:], "")[0]
    if room in FIRST:
        return -1
    room = "cli" if room == "__main__" else room
    return ROOMS.index(room if room in ROOMS else "")


def module_of(name: str, known: frozenset[str]) -> str:
    """The module that an imported name lives in: `tedsl.expr.nodes.Axis` is `tedsl.expr.nodes`."""
    while name not in known and "." in name:
        name = name.rpartition(".")[0]
    return name


def test_imports_run_one_way() -> None:
    """What is imported with a file or by name is of a lower room, or of the same."""
    known = frozenset(source.module for source in FILES)
    wrong: list[str] = []
    upwards: set[tuple[str, str]] = set()
    for source in FILES:
        if source.module == "tedsl":
            continue  # the list of public names, loaded last
        by_name = set(source.loads_by_name())
        for name, line in (*source.imports(), *source.late_imports(), *by_name):
            if name.split(".")[0] == "tedsl":
                target = module_of(name, known)
                if rank(target) <= rank(source.module) or is_public(source, target):
                    continue
                if (name, line) in by_name and (source.module, target) in UPWARDS:
                    upwards.add((source.module, target))
                else:
                    wrong.append(f"{source.where}:{line} imports {target}")
    assert not wrong, "against the order of the rooms:\n" + "\n".join(wrong)
    assert upwards == UPWARDS, "no longer needed: take it out of the list"


def is_public(source: Source, target: str) -> bool:
    """The rules and the search are written with the public names of `tedsl` itself."""
    return target == "tedsl" and source.where.startswith(("schedules/", "autotune/"))


def test_plans_are_lowered_without_what_users_call() -> None:
    """Passes are made of functions over plans, not of primitives, their checks and their calls."""
    above = ("primitives", "methods", "checks", "call", "schedule", "stage")
    wrong = [
        f"{source.where}:{line} imports {name}"
        for source in FILES
        for name, line in (*source.imports(), *source.late_imports())
        if source.module.split(".")[1:2] in (["lower"], ["backends"])
        and name.startswith("tedsl.scheduling.")
        and name.split(".")[2] in above
    ]
    assert not wrong


@pytest.mark.parametrize("name", ["schedules", "autotune"])
def test_folders_are_never_imported_by_their_own_name(name: str) -> None:
    line = re.compile(rf"^ *(?:from|import) {name}\b.*", re.MULTILINE)
    files = python_files(*PACKAGES, "tests", "tutorials")
    wrong = [f"{s.where}: {found}" for s in files for found in line.findall(s.text)]
    assert not wrong, f"write `from tedsl.{name} import ...`: a second copy of the classes: {wrong}"


def test_sympy_stays_in_its_places() -> None:
    allowed = ("tedsl/index/", "tedsl/scheduling/algebra")
    wrong = [s.where for s in FILES if "sympy" in s.text and not s.where.startswith(allowed)]
    assert not wrong


def test_import_loads_nothing_heavy() -> None:
    loaded = run_python(
        f"import tedsl, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    ).strip()
    assert loaded == "[]", "`import tedsl` must stay quick; load these at first use"


def test_type_checkers_know_what_is_loaded_late() -> None:
    """Each name that is loaded late is, for a type checker, the thing of the module named."""
    for source in FILES:
        told = source.typing_imports()
        if source.module == "tedsl":
            late = {name: module_and_name(place) for name, place in tedsl._LATE.items()}
            assert told == late
            continue
        named = {name for name, _ in source.late_imports()}
        assert named <= {module_and_name(place).replace(":", ".") for place in told.values()}, (
            f"{source.where}: import under TYPE_CHECKING what `late` loads"
        )


def module_and_name(place: str) -> str:
    """`a.b:c` for `a.b:c`, and for the module `a.b.c`."""
    return place if ":" in place else ":".join(place.rsplit(".", 1))
