"""What Triton's analysis of addresses and masks says of printed kernels is never wrong.

Where it is wrong of Triton's own text is shown by `analysis_kernels`; what is printed is run in an
interpreter that makes the analysis and refuses what is wrong of it (`interpret_believing`).
"""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from operator import le
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from analysis_kernels import CASES, SIZE, Case, believes
from believing_runs import believing, run_alone
from hypothesis import given, note, settings

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.dividends import plus, shift_dividends
from tedsl.backends.triton.emit.module import emit
from tedsl.errors import BackendError
from tedsl.expr.nodes import Axis, Const
from tedsl.index.facts import Facts
from tedsl.ir.nodes import Func
from tedsl.schedules import default_schedule

triton: Any = importlib.import_module("triton")
VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])
KERNELS = Path(__file__).parents[1] / "helpers" / "analysis_kernels.py"
SCRIPT = Path(__file__).parents[1] / "helpers" / "analysis_on_device.py"
ids = [f"{case.kernel}-{case.n}" for case in CASES]


@pytest.fixture(scope="module", autouse=True)
def _in_the_interpreter_that_believes() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    with believing():
        yield


@pytest.mark.ptxas
@pytest.mark.parametrize("case", CASES, ids=ids)
def test_of_what_triton_is_wrong(case: Case) -> None:
    """Fails with a Triton that has mended one of these: then the contract can be looked at."""
    if VERSION not in ((3, 6), (3, 9)):
        pytest.skip(f"known of Triton 3.6 and 3.9, not of {triton.__version__}")
    kernels: Any = importlib.import_module("analysis_kernels")
    compiler: Any = importlib.import_module("triton.compiler")
    targets: Any = importlib.import_module("triton.backends.compiler")
    aligned = {(place,): [["tt.divisibility", 16]] for place in (0, 1)}
    types = {"X": "*fp32", "Y": "*fp32", "n": "i32"}
    source = compiler.ASTSource(getattr(kernels, case.kernel), types, {}, aligned)
    options = {"enable_fp_fusion": True}  # said, or some versions warn
    compiled = triton.compile(source, target=targets.GPUTarget("cuda", 90, 32), options=options)
    assert believes(compiled.asm["ptx"]) == case.wrong[VERSION >= (3, 9)]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_the_interpreter_that_believes_refuses_it(case: Case) -> None:
    x = np.arange(1, SIZE + 1, dtype="float32")
    want = case.want(x)
    if case.wrong[0]:
        with pytest.raises(BackendError, match=r"WrongWidth\('.* along dimension"):
            run_alone(KERNELS, case.kernel, (x, np.zeros_like(want)), case.n)
    else:
        found = run_alone(KERNELS, case.kernel, (x, np.zeros_like(want)), case.n)
        np.testing.assert_array_equal(found, want)


def agrees(out: te.Tensor | te.Schedule, *arrays: np.ndarray, bound: float = 0.0) -> str:
    """Run a GPU's schedule in the interpreter that believes; its text.  Exact by default."""
    given_one = isinstance(out, te.Schedule)
    s = out if given_one else default_schedule(out, "cuda:sm_90")
    kernel = te.build(s, target="triton-interpret", cache=False)
    found = kernel(*arrays)
    plain = [s.outputs[0]] if given_one else [out]
    want = te.build(te.create_schedule([t.op for t in plain]), target="cpu", cache=False)(*arrays)
    np.testing.assert_allclose(found, want, rtol=0, atol=bound)
    return kernel.source


def normalised(n: int, c: int, h: int) -> te.Tensor:
    """Batch norm with the statistics of the batch: its last loop runs backwards."""
    x = te.placeholder((n, c, h, h), "float32", name="x")

    def axes() -> list[Any]:
        return [te.reduce_axis((0, extent)) for extent in (n, h, h)]

    a, k = axes(), axes()
    m = te.compute((c,), lambda f: te.sum(x[a[0], f, a[1], a[2]], axis=a) / (n * h * h), name="m")

    def apart(f: te.Expr) -> te.Expr:
        return x[k[0], f, k[1], k[2]] - m[f]

    v = te.compute((c,), lambda f: te.sum(apart(f) * apart(f), axis=k) / (n * h * h), name="v")
    return te.compute(
        (n, c, h, h), lambda q, f, r, t: (x[q, f, r, t] - m[f]) * te.rsqrt(v[f] + 1e-5), name="y"
    )


@pytest.mark.parametrize("shape", [(16, 2, 56), (8, 1, 112), (128, 1, 24), (32, 2, 33)])
def test_loops_that_run_backwards(shape: tuple[int, int, int]) -> None:
    """Triton took `r < 0`, of a remainder, for the same over up to 64 neighbours."""
    n, c, h = shape
    x = np.random.default_rng(0).standard_normal((n, c, h, h)).astype("float32")
    source = agrees(normalised(*shape), x, bound=1e-4)
    assert "floor_" not in source, "every dividend has bounds here"


@pytest.mark.ptxas
def test_loops_that_run_backwards_keep_their_width() -> None:
    s = default_schedule(normalised(16, 1024, 56), "cuda:sm_90")
    program = emit(te.lower(s, target="cuda:sm_90"), "cuda:sm_90")
    assert " - q_r_s_fused_outer" in program.source or " - q_" in program.source
    (info,) = compile_offline(program)
    stores = re.findall(r"st\.global[.:\w]*", info.ptx)
    wide = all(store.endswith(".v4.b32") for store in stores)
    assert stores and wide, "whole tiles are stored 16 bytes a time"


def reversed_rows(columns: int) -> te.Schedule:
    """Rows from the last on, of an odd number of elements, a tile of 32 by 32 at a time."""
    x = te.placeholder((65, columns), "float32", name="x")
    y = te.compute((64, columns), lambda i, j: x[64 - i, j] * 2.0, name="y")
    s = te.create_schedule(y)
    i, j = s[y].op.axis
    io, ii = s[y].split(i, 32)
    jo, ji = s[y].split(j, 32)
    s[y].reorder(io, jo, ii, ji)
    s[y].bind(io, "blockIdx.x")
    s[y].bind(ii, "threadIdx.y")
    s[y].bind(ji, "threadIdx.x")
    return s


@pytest.mark.parametrize("columns", [33, 65, 96])
def test_rows_read_backwards(columns: int) -> None:
    """Of 64 - i Triton (3.6) said that 64 divides it, and loaded four elements from odd places."""
    x = np.arange(65 * columns, dtype="float32").reshape(65, columns)
    assert "tl.multiple_of(" in agrees(reversed_rows(columns), x)


def test_rows_that_are_no_plain_sum() -> None:
    """By default rules; of i + i % 2 * 8 Triton said that 8 divides it."""
    x = te.placeholder((4096,), "float32", name="x")
    y = te.compute((64, 64), lambda i, j: x[i + i % 2 * 8 + j], name="y")
    assert "tl.multiple_of(" in agrees(y, np.arange(4096, dtype="float32"))


@st.composite
def places(draw: st.DrawFn, axes: tuple[te.Expr, ...], depth: int) -> te.Expr:
    """An integer expression over axes, as often below zero as above."""
    kind = draw(st.sampled_from(("axis", "sum", "less", "times", "quotient", "rest", "choice",
                                 "extreme", "back"))) if depth else "axis"  # fmt: skip
    if kind == "axis":
        return draw(st.sampled_from(axes))

    def part() -> te.Expr:
        return draw(places(axes, depth - 1))

    number = draw(st.sampled_from((1, 2, 3, 4, 7, 8, 12, 16, 24, 33, 56, 64)))
    if kind in ("quotient", "rest"):
        low = draw(st.sampled_from((0, 1, 8, 24, 64, 128)))
        trunc = draw(st.booleans())
        inner = part() - low
        if kind == "quotient":
            return te.truncdiv(inner, te.const(number, "int32")) if trunc else inner // number
        return te.truncmod(inner, te.const(number, "int32")) if trunc else inner % number
    if kind == "choice":
        return te.select(part() % 3 < draw(st.integers(0, 3)), part(), part() + number)
    forms = {
        "sum": lambda: part() + part(),
        "less": lambda: part() - part(),
        "times": lambda: part() * number,
        "extreme": lambda: te.minimum(part(), number),
        "back": lambda: number - part(),
    }
    return forms[kind]()


@pytest.mark.uncompiled("the analysis is made by the interpreter")
@pytest.mark.parametrize("shape", [(256,), (32, 32), (40, 33), (8, 16, 16)])
def test_drawn_places(shape: tuple[int, ...]) -> None:
    """Elements at drawn places, where a drawn condition holds, and the place itself as a number."""

    @settings(max_examples=settings().max_examples // 4)
    @given(st.data())
    def right(data: st.DataObject) -> None:
        x = te.placeholder((4096,), "float32", name="x")

        def element(*axes: te.Expr) -> te.Expr:
            place = data.draw(places(axes, 3)) + data.draw(st.sampled_from(axes))
            there = x[place % 4096]
            limit = data.draw(st.integers(-9, 99))
            guarded = te.if_then_else(data.draw(places(axes, 2)) < limit, there, 0.0)
            return guarded + te.cast(data.draw(places(axes, 2)), "float32")

        y = te.compute(shape, element, name="y")
        note(str(y.op))
        agrees(y, np.arange(4096, dtype="float32"))

    right()


def test_dividends_are_moved_up_as_far_as_fits() -> None:
    x = Axis("i")
    assert str(plus(x - 3, 5)) == str(x + 2)
    assert str(plus(Const(3, x.dtype) - x, 5)) == str(8 - x)
    facts = Facts.of({x: (-(2**31), 2**32)})
    out = te.compute((4,), lambda i: te.cast(i, "float32"), name="y")
    func: Func = te.lower(te.create_schedule(out), target="cuda:sm_90").funcs[0]
    assert shift_dividends(func, facts) is func


@pytest.mark.gpu
def test_on_the_device(tmp_path: Path) -> None:
    """Triton's own kernels are wrong where they are said to be; what tedsl prints is right."""
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=280, capture_output=True)
    lines = (tmp_path / "analysis.txt").read_text().splitlines()
    alone = [line for line in lines if line.startswith(("triton alone", "alone"))]
    wrong = [line for line in lines if "right" not in line and line not in alone]
    assert not wrong, "\n".join(wrong)
    if VERSION in ((3, 6), (3, 9)):
        found = ["right" not in line for line in alone]
        believed = [case.wrong[VERSION >= (3, 9)] for case in CASES]
        assert any(found), "\n".join(alone)
        # What is believed may be of no consequence: two lanes that share a condition may agree.
        assert all(map(le, found, believed)), "\n".join(alone)
