"""Rows that several programs share: one read and one write of each, in programs that wait for each
other, where that is chosen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import compiled, interpreted
from shared_rows import softmax

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.devices import H200
from tedsl.ir.nodes import Meet, Module
from tedsl.ir.visit import walk_stmts
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

CUDA = Target.parse("cuda:sm_90")


def scaled(m: int, n: int) -> Tensor:
    """One fold: rows over the root of their mean square."""
    x = c.p(m, n)
    k = te.reduce_axis((0, n), "k")
    z = te.compute((m,), lambda i: te.sum(x[i, k] * x[i, k], axis=k), name="z")
    return te.compute((m, n), lambda i, j: x[i, j] * te.rsqrt(z[i] / float(n) + 1e-6), name="y")


def of_three(a: int, b: int, n: int) -> Tensor:
    """Rows by two axes."""
    x = c.p(a, b, n)
    k = te.reduce_axis((0, n), "k")
    z = te.compute((a, b), lambda i, j: te.max(x[i, j, k], axis=k), name="z")
    return te.compute((a, b, n), lambda i, j, h: x[i, j, h] - z[i, j], name="y")


def slopes(m: int, n: int) -> list[Tensor]:
    """Losses of rows, and their slopes: a result for each row beside the rows."""
    x, target = c.p(m, n), te.placeholder((m,), "int64", name="target")
    k, r = te.reduce_axis((0, n), "k"), te.reduce_axis((0, n), "r")
    top = te.compute((m,), lambda i: te.max(x[i, k], axis=k), name="top")
    z = te.compute((m,), lambda i: te.sum(te.exp(x[i, r] - top[i]), axis=r), name="z")
    lse = te.compute((m,), lambda i: top[i] + te.log(z[i]), name="lse")
    first = te.compute((m,), lambda i: lse[i] - x[i, 3], name="loss")

    def slope(i: te.Axis, j: te.Axis) -> te.Expr:
        hit = te.select(te.equal(j.astype("int64"), target[i]), 1.0, 0.0)
        return te.exp(x[i, j] - lse[i]) - hit

    return [first, te.compute((m, n), slope, name="y")]


def norm(rows: int, columns: int) -> Tensor:
    """Squares about a mean: sums of three kinds for each part."""
    return te.nn.layer_norm(c.p(rows, columns), c.p(columns, name="w"), name="y")


CASES: dict[str, Callable[[], Tensor | Sequence[Tensor]]] = {
    "softmax": lambda: softmax(5, 40_000),
    "parts that end early": lambda: softmax(3, 33_333),
    "parts of several results": lambda: norm(3, 40_000),
    "one fold": lambda: scaled(3, 40_001),
    "rows by two axes": lambda: of_three(2, 3, 33_000),
    "losses and slopes": lambda: slopes(37, 32_768),
}


def shared(programs: int, resident: int = 2) -> dict[str, object]:
    return {"y.share": programs, "y.share_resident": resident}


def meetings(module: Module) -> int:
    return sum(isinstance(s, Meet) for func in module.funcs for s in walk_stmts(func.body))


@pytest.mark.parametrize("name", CASES)
def test_programs_share_rows(name: str) -> None:
    """Of the loop IR: each program runs until it waits, in turn."""
    case = RuleCase(name, CASES[name])  # pyright: ignore[reportArgumentType]
    s = interpreted(case, "cuda", shared(4))
    module = lower(s.plan, CUDA)
    assert meetings(module) == 1, "one wait for all that is passed on"
    assert len(module.funcs) == (2 if name == "losses and slopes" else 1)


@pytest.mark.parametrize(
    "name, programs", [("softmax", 8), ("parts of several results", 8), ("losses and slopes", 4)]
)
def test_in_tritons_interpreter(name: str, programs: int) -> None:
    case = RuleCase(name, CASES[name])  # pyright: ignore[reportArgumentType]
    compiled(case, "triton-interpret", shared(programs))


def test_more_rows_than_groups() -> None:
    """A group goes from row to row, and the last turn is not all groups'."""
    programs = 2 * H200.sms // 16
    case = RuleCase("turns", lambda: softmax(2 * programs + 3, 32_768))
    s = interpreted(case, "cuda", shared(16, 1))
    assert meetings(lower(s.plan, CUDA)) == 1


SHARES = {
    (1024, 131072, "bfloat16"): 16,
    (2048, 65536, "bfloat16"): 8,
    (256, 524288, "bfloat16"): 32,
    (128, 1 << 20, "bfloat16"): 1,  # 64 programs wait too long for each other
    (1000, 128256, "bfloat16"): 1,  # parts do not fill their lanes
    (24, 131072, "bfloat16"): 1,  # too few rows for all processors
    (1024, 131072, "float32"): 1,
}


@pytest.mark.parametrize(("rows", "length", "dtype"), SHARES)
def test_rows_are_shared_where_that_gains(rows: int, length: int, dtype: str) -> None:
    x = te.placeholder((rows, length), dtype, name="x")
    knobs = {k.name: k.chosen for k in schedule_for([te.nn.softmax(x)], "cuda:sm_90").knobs}
    assert knobs.get("softmax.share", 1) == SHARES[rows, length, dtype]  # not asked for few rows


def test_it_is_a_choice_for_long_rows_alone() -> None:
    def offered(y: Tensor) -> list[str]:
        return [k.name for k in schedule_for([y], CUDA).knobs if ".share" in k.name]

    assert offered(softmax(64, 131_072)) == ["y.share"], "1 by default"
    assert not offered(softmax(64, 8192))
    x = c.p(64, 131_072)
    k = te.reduce_axis((0, 131_072), "k")
    assert not offered(te.compute((64,), lambda i: te.sum(x[i, k], axis=k), name="y"))


@pytest.mark.ptxas
@pytest.mark.uncompiled("compiled here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_row_is_read_once(arch: str) -> None:
    """Parts stay in registers while programs wait, and those of the next row are fetched: 16 of
    8192 elements, two on an SM, and as many rows for each group of 16 programs."""
    target = Target.parse(f"cuda:{arch}")
    y = softmax(64 * (2 * target.resolve_gpu().sms // 16), 131_072, "bfloat16")
    s = schedule_for([y], target, {**shared(16), "y.share_warps": 16})
    program = emit(lower(s.plan, target), target)
    assert program.source.count("tl.load(x") == 2, "of the first row, and of the one after each"
    assert program.kernels[0].options()["launch_cooperative_grid"] is True
    (info,) = compile_offline(program, arch)
    assert info.stack == 0, "nothing is spilled"
    assert info.registers is not None
    assert info.registers <= 64, "two programs of 512 threads fit"
    order = re.findall(
        r"(?:red|atom)\.global\.gpu\.release\.add|ld\.global\.gpu\.acquire|bar\.sync"
        r"|ld\.global\S*v4",
        info.ptx,
    )
    (count,) = [n for n, each in enumerate(order) if each.endswith(".release.add")]
    assert order[count - 1] == "bar.sync", "the stores of all threads are behind it"
    wait = order.index("ld.global.gpu.acquire")
    assert order[wait + 1] == "bar.sync"
    assert any("v4" in each for each in order[count + 1 : wait]), "fetched between the two"


def test_no_more_programs_than_a_processor_takes() -> None:
    y = softmax(1024, 131_072, "bfloat16")
    for resident in (1, 2, 4, 8):
        s = schedule_for([y], CUDA, shared(16, resident))
        (spec,) = emit(lower(s.plan, CUDA), CUDA).kernels
        grid = spec.grid_for({})
        assert 0 < grid[0] * grid[1] <= resident * H200.sms
        assert resident * spec.num_warps * 32 <= 2048
        most = spec.launch.maxnreg or 255
        assert most * spec.num_warps * 32 * resident <= 65536, "registers of a processor"
