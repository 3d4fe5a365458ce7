"""The cache key: equal for equal programs, different as soon as anything differs."""

from __future__ import annotations

from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from fake_kernels import buffer
from irs import load, loop

import tedsl
from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Var
from tedsl.ir.nodes import Func, Launch, LoopKind, Module, Store
from tedsl.runtime.cache.fingerprint import (
    PACKAGE,
    code_version,
    fingerprint,
    package_version,
    sources_below,
    tool_versions,
    version_of,
)


def program(
    op: BinaryOp = BinaryOp.ADD, *, crossed: bool = False, num_warps: int | None = None
) -> Module:
    n = Var("n", DType.int32, 0)
    a, c = buffer("A", n, n), buffer("C", n, n)
    i, j = Axis("i"), Axis("i")  # they print alike
    value = Binary(op, load(a, j if crossed else i, i if crossed else j), Const(1.0, a.dtype))
    body = loop(i, n, loop(j, n, Store(c, (i, j), value)), LoopKind.PARALLEL)
    func = Func("f", (a, c), (n,), body, Launch(num_warps=num_warps))
    return Module("m", (a,), (c,), (), (n,), (func,))


def test_equal_programs_have_equal_keys() -> None:
    assert fingerprint(program()) == fingerprint(program())


def test_any_difference_shows() -> None:
    base = program()
    variants = [
        base,
        program(BinaryOp.SUB),
        program(crossed=True),
        program(num_warps=8),
        replace(base, name="other"),
        replace(base, inputs=base.outputs, outputs=base.inputs),
    ]
    keys = [fingerprint(variant) for variant in variants]
    keys.append(fingerprint(base, target="cpu"))
    keys.append(fingerprint(base, target="cuda"))
    assert len(set(keys)) == len(keys)


def test_values_of_different_types_differ() -> None:
    values = [
        (1,),
        (1.0,),
        (True,),
        ("1",),
        (None,),
        ((1,),),
        (-0.0,),
        (0.0,),
        ("a", "b"),
        ("a b",),
    ]
    assert len({fingerprint(value) for value in values}) == len(values)


def test_what_has_no_fingerprint() -> None:
    with pytest.raises(InternalError, match=r"list has no fingerprint"):
        fingerprint([1])


def test_versions() -> None:
    assert len(code_version()) == 64
    assert "python" in tool_versions("numpy", "no-such-thing")
    assert "no-such-thing absent" in tool_versions("numpy", "no-such-thing")


def test_the_version_follows_the_sources(tmp_path: Path) -> None:
    """Whether it was looked up or read, and not what only runs code."""
    for name in ("lower/a.py", "runtime/run.py"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("one = 1\n")
    first = version_of(tmp_path)
    assert version_of(tmp_path) == first
    (tmp_path / "runtime/run.py").write_text("two = 2\n")
    assert version_of(tmp_path) == first
    (tmp_path / "lower/a.py").write_text("two = 2\n")
    second = version_of(tmp_path)
    assert second != first
    (tmp_path / "lower/a.py").write_text("one = 1\n")
    assert version_of(tmp_path) == first
    (tmp_path / "lower/b.py").write_text("")
    assert version_of(tmp_path) not in (first, second)


def test_the_version_is_that_of_the_whole_compiler() -> None:
    """Each file of the package counts, but for those of folders that make no code."""
    package = Path(tedsl.__file__).parent
    files = {path.relative_to(package).as_posix() for path in package.rglob("*.py")}
    counted = {name for name, _ in sources_below(str(PACKAGE))}
    assert counted >= {"lower/pipeline.py", "processor.py", "runtime/cache/fingerprint.py"}
    left_out = {name.partition("/")[0] for name in files - counted}
    assert left_out == {"runtime", "cli", "checking", "cost", "workload"}


def test_versions_are_those_of_the_metadata():
    assert package_version("numpy") == metadata.version("numpy")
    assert package_version("no such package") == ""
