"""The house rules that a program can check."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from typing import TypeGuard

import pytest
from sources import PACKAGES, ROOT, Source, python_files

import tedsl

PACKAGE = python_files(*PACKAGES)
EVERYTHING = [*PACKAGE, *python_files("tests", "tutorials")]
FOLDERS = {"tedsl", "schedules", "autotune", "tests", "tutorials"}
MARKS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3, "HA" + "CK")) + r")\b")


def test_no_file_over_600_lines() -> None:
    long = {s.where: s.text.count("\n") for s in EVERYTHING if s.text.count("\n") > 600}
    assert not long


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_no_function_over_60_lines() -> None:
    long = [
        f"{source.where}:{node.lineno} {node.name}: {lines} lines"
        for source in EVERYTHING
        for node in functions(source)
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > 60
    ]
    assert not long


def test_exceptions_are_named() -> None:
    wrong: list[str] = []
    for source in EVERYTHING:
        for node in source.nodes:
            if not isinstance(node, ast.ExceptHandler):
                continue
            names = ast.unparse(node.type) if node.type else ""
            cleans_up = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
            broad = re.search(r"\b(Base)?Exception\b", names) and not cleans_up
            if not names or (broad and source in PACKAGE):
                wrong.append(f"{source.where}:{node.lineno}")
    assert not wrong, f"a bare `except` or `except Exception`: {wrong}"


READ_BY_TESTS = (" event_of", " from_linear", " print_graph", " print_reducer")
"""Inverses of what the product does, and texts of definitions, for those who work on it."""


def top_level_names(source: Source) -> Iterator[tuple[str, ast.stmt]]:
    """What a module defines by itself; a decorator may hand a function to somebody."""
    for node in source.tree.body:
        match node:
            case ast.FunctionDef(decorator_list=[]) | ast.ClassDef(decorator_list=[]):
                yield node.name, node
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node
            case _:
                pass


def words_of(node: ast.AST) -> Counter[str]:
    """The names that a part of a program reads: also in imports and within texts."""
    found: Counter[str] = Counter()
    for each in ast.walk(node):
        match each:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name):
                found[name] += 1
            case ast.alias(name=name):
                found.update(name.split("."))
            case ast.Constant(value=str(text)):
                found.update(re.findall(r"\w+", text))
            case _:
                pass
    return found


def test_every_top_level_name_has_a_reader() -> None:
    read = Counter(re.findall(r"\w+", (ROOT / "pyproject.toml").read_text(encoding="utf-8")))
    for source in PACKAGE:
        read.update(words_of(source.tree))
    dead = [
        f"{source.where}:{node.lineno} {name}"
        for source in PACKAGE
        for name, node in top_level_names(source)
        if not name.startswith("__") and read[name] == words_of(node)[name]
    ]
    dead = [each for each in dead if not each.endswith(READ_BY_TESTS)]
    assert not dead, f"what nothing in the product reads: {dead}"


CALLED_BY_OTHERS = (
    *("persistent_id", "persistent_load", "find_class", "untyped_storage", "set_"),
    *("prepare_for_serialization", "post_compile", "set_triton_bundle", "relpath"),
)
"""What pickle calls, Triton's interpreter, PyTorch's cache of graphs, TVM's scripts."""


def members(kind: ast.ClassDef) -> Iterator[str]:
    """The fields and methods that a class defines by itself; a decorator may hand them on."""
    for node in kind.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.FunctionDef(name=name, decorator_list=[]):
                yield name
            case _:
                pass


def test_every_member_has_a_reader() -> None:
    """In the package, in its page or in a tutorial; but for classes that are public."""
    read = Counter[str]()
    for folder in ("tutorials", "tedsl/view/assets"):
        for path in sorted((ROOT / folder).rglob("*.[pj][ys]")):
            read.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    for source in PACKAGE:
        for node in source.nodes:
            match node:
                case ast.Attribute(attr=name, ctx=ast.Load()) | ast.Constant(value=str(name)):
                    read[name] += 1
                case ast.MatchClass(kwd_attrs=names):
                    read.update(names)
                case _:
                    pass
    dead = [
        f"{source.where}:{node.lineno} {node.name}.{name}"
        for source in PACKAGE
        for node in source.nodes
        if isinstance(node, ast.ClassDef) and node.name not in tedsl.__all__
        for name in members(node)
        if not name.startswith(("__", "_repr_")) and not read[name]
    ]
    dead = [each for each in dead if not each.endswith(CALLED_BY_OTHERS)]
    assert not dead, f"what nothing reads: {dead}"


def imports(node: ast.AST) -> TypeGuard[ast.Import | ast.ImportFrom]:
    return isinstance(node, (ast.Import, ast.ImportFrom))


def test_no_import_inside_a_function() -> None:
    wrong = [
        f"{source.where}:{node.lineno}"
        for source in EVERYTHING
        if any(imports(node) and node.col_offset for node in source.nodes)
        for function in functions(source)
        for node in ast.walk(function)
        if imports(node)
    ]
    assert not wrong, f"heavy modules load through importlib in a small function: {wrong}"


def test_no_print_in_the_package() -> None:
    wrong = [
        f"{source.where}:{node.lineno}"
        for source in PACKAGE
        for node in source.nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "print"
    ]
    assert not wrong


def test_no_unfinished_business() -> None:
    wrong = [s.where for s in EVERYTHING if MARKS.search(s.text)]
    assert not wrong


def test_every_module_says_what_it_is() -> None:
    wrong = [s.where for s in EVERYTHING if s.text.strip() and not ast.get_docstring(s.tree)]
    assert not wrong


def test_no_catch_all_modules() -> None:
    names = ("utils.py", "util.py", "misc.py", "common.py")
    assert not [s.where for s in EVERYTHING if s.path.name in names]


def test_every_raises_names_its_message() -> None:
    wrong = [
        f"{source.where}:{node.lineno}"
        for source in python_files("tests")
        for node in source.nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "pytest.raises"
        and not any(keyword.arg == "match" for keyword in node.keywords)
    ]
    assert not wrong


def test_top_level_folders() -> None:
    done = subprocess.run(
        ["git", "ls-files", "--cached"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in done.stdout.splitlines() if "/" in line}
    assert top - {".ci"} <= FOLDERS
    assert not {path.suffix for path in (ROOT / "tests").rglob("__init__.py")}


def test_every_folder_of_the_package_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    listed = set(settings["tool"]["setuptools"]["packages"])
    folders = {source.module.rpartition(".")[0] or "tedsl" for source in PACKAGE}
    folders |= {source.module for source in PACKAGE if source.path.name == "__init__.py"}
    assert listed == {name for name in folders if name}
    assert (ROOT / "tedsl" / "py.typed").exists()


def test_folders_are_small_enough_to_be_read() -> None:
    """At most 20 Python files beside each other; an `__init__` says what belongs there."""
    count = Counter(source.path.parent.relative_to(ROOT).as_posix() for source in PACKAGE)
    assert not [folder for folder, files in count.items() if files > 20]
    assert not [folder for folder in count if not (ROOT / folder / "__init__.py").exists()]
