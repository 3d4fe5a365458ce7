"""The project's own source files, as text and as syntax trees."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("tedsl", "schedules", "autotune")


@dataclass(frozen=True)
class Source:
    """One Python file: where it is in the repository and what it is called when installed."""

    path: Path

    @property
    def where(self) -> str:
        """The path within the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @property
    def module(self) -> str:
        """The dotted name of an installed module: `schedules/cpu/select.py` is
        `tedsl.schedules.cpu.select`."""
        parts = list(self.path.relative_to(ROOT).with_suffix("").parts)
        if parts[0] in ("schedules", "autotune"):
            parts.insert(0, "tedsl")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.where)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """All of the tree: tests look at each file many times."""
        return list(ast.walk(self.tree))

    def imports(self) -> Iterator[tuple[str, int]]:
        """Modules imported when the file is (not those under TYPE_CHECKING), with the line."""
        for node in run_at_import(self.tree.body):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module:
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)

    def late_imports(self) -> Iterator[tuple[str, int]]:
        """Modules named in `late("...")`, loaded at their first use, with the line."""
        for node in self.nodes:
            match node:
                case ast.Call(func=ast.Name(id="late"), args=[ast.Constant(value=str() as name)]):
                    yield name, node.lineno
                case _:
                    pass

    def loads_by_name(self) -> Iterator[tuple[str, int]]:
        """Modules named in `import_module("...")`, with the line."""
        for node in self.nodes:
            match node:
                case ast.Call(
                    func=ast.Attribute(attr="import_module"),
                    args=[ast.Constant(value=str() as name)],
                ):
                    yield name, node.lineno
                case _:
                    pass

    def typing_imports(self) -> dict[str, str]:
        """What a type checker is told that names are: from a name to `module:attribute`."""
        found: dict[str, str] = {}
        for node in self.tree.body:
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                for line in node.body:
                    if isinstance(line, ast.ImportFrom):
                        for alias in line.names:
                            found[alias.asname or alias.name] = f"{line.module}:{alias.name}"
        return found


def run_at_import(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module that run when it is imported."""
    for node in body:
        yield node
        if isinstance(node, ast.If):
            if not ast.unparse(node.test).endswith("TYPE_CHECKING"):
                yield from run_at_import(node.body)
            yield from run_at_import(node.orelse)
        elif isinstance(node, (ast.Try, ast.With)):
            yield from run_at_import(node.body)


def python_files(*folders: str) -> list[Source]:
    """Every Python file below the folders, sorted."""
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [Source(path) for path in found if "__pycache__" not in path.parts]


def run_python(code: str) -> str:
    """What a fresh interpreter prints for `code`, away from the repository's root."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "tests",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
