"""Sums of products as everybody writes them, at real sizes: those of 16-bit floats are matrix
products, and no default kernel takes the compilers long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import narrow_cases
import pytest

import tedsl as te
from tedsl import schedules
from tedsl.autotune.measure.pruning import PATIENCE, Tiers
from tedsl.backends.triton.compile import compile_time
from tedsl.errors import LowerError
from tedsl.ir.nodes import Accumulate, Dot, For, LoopKind, Module
from tedsl.ir.visit import tile_axes, walk_stmts
from tedsl.lower import pipeline
from tedsl.schedules.analysis.nests import contraction, products
from tedsl.schedules.gpu import compile_time as fitting
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp

HOPPER = Target.parse("cuda:sm_90")
EVERY = {**narrow_cases.PRODUCTS, **narrow_cases.OTHERS}
NO_DOT = {"linear of one row"}
"""One row, and products in which an operand has an index of both sides."""
QUICK = ("linear", "attention", "conv nchw", "dequantised", "rounded", "product f64", "channels")


def lowered(make: Callable[[], Any], target: str = "cuda:sm_90") -> Module:
    made = make()
    return te.lower(list(made) if isinstance(made, tuple) else made, target=target)


def dots(module: Module) -> list[Dot]:
    return [s for f in module.funcs for s in walk_stmts(f.body) if isinstance(s, Dot)]


def largest(module: Module) -> int:
    """Elements of the largest value that a program computes by itself."""
    found = [s for f in module.funcs for s in walk_stmts(f.body)]
    sizes = [math.prod(t.extent for t in tile_axes(s)) for s in found if type(s) is not Dot]
    return max(sizes, default=1)


@pytest.mark.uncompiled("looked at, not compiled")
@pytest.mark.parametrize("name", sorted(narrow_cases.PRODUCTS))
def test_products_of_narrow_floats_are_matrix_products(name: str) -> None:
    found = dots(lowered(narrow_cases.PRODUCTS[name]))
    assert bool(found) is (name not in NO_DOT)
    wide = {"dequantised", "squared weights"}  # an operand is computed, which is done in float32
    for dot in found:
        narrow = dot.lhs.dtype.nbytes <= 2 and dot.rhs.dtype.nbytes <= 2
        assert narrow is (name not in wide)


@pytest.mark.uncompiled("looked at, not compiled")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", sorted(EVERY))
def test_default_kernels_are_small_enough_to_compile(name: str, arch: str) -> None:
    module = lowered(EVERY[name], f"cuda:{arch}")
    assert compile_time.seconds(module) <= compile_time.LIMIT
    assert largest(module) <= 1 << 15


@pytest.mark.uncompiled("looked at, not compiled")
@pytest.mark.parametrize(
    ("dtype", "within"),
    [
        ("float64", None),
        ("int32", None),
        ("int16", None),
        ("uint8", "int32"),
        ("float32", "float64"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_what_no_unit_multiplies_has_small_tiles(dtype: str, within: str | None) -> None:
    made = narrow_cases.product_of(dtype, within)
    assert isinstance(made.op, ComputeOp)
    shape = contraction(made.op)
    assert shape is not None
    assert shape.unit is None
    module = lowered(lambda: made)
    assert dots(module) == []
    folds = [s for f in module.funcs for s in walk_stmts(f.body) if isinstance(s, Accumulate)]
    assert max(math.prod(t.extent for t in fold.tile) for fold in folds) <= 8192


@pytest.mark.parametrize(
    ("term", "unit"),
    [
        (lambda a, b: a * b, "bfloat16"),
        (lambda a, b: (a * b).astype("bfloat16"), None),
        (lambda a, b: (a * b).astype("float32"), None),
        (lambda a, b: te.exp(a) * b, "float32"),
        (lambda a, b: a * b.astype("float32"), "bfloat16"),
        (lambda a, b: a.astype("float8_e5m2") * b, "bfloat16"),
    ],
)
def test_rules_ask_what_lowering_does(term: Callable[[Any, Any], Any], unit: str | None) -> None:
    a, b = (te.placeholder((256, 256), "bfloat16", name=name) for name in "ab")
    k = te.reduce_axis((0, 256), name="k")
    c = te.compute((256, 256), lambda i, j: te.sum(term(a[i, k], b[k, j]), axis=k), name="c")
    assert isinstance(c.op, ComputeOp)
    shape = products(c.op)
    assert shape is not None
    assert shape.unit == unit
    assert [dot.lhs.dtype for dot in dots(lowered(lambda: c))] == ([] if unit is None else [unit])


@pytest.mark.uncompiled("looked at, not compiled")
@pytest.mark.parametrize("count", [8, 16, 61, 64])
def test_long_terms_are_not_all_written_out(count: int) -> None:
    module = lowered(lambda: narrow_cases.channels(count))
    loops = [s for f in module.funcs for s in walk_stmts(f.body) if isinstance(s, For)]
    turns = [int(str(loop.end)) for loop in loops if loop.kind is LoopKind.UNROLLED]
    assert math.prod(turns) <= 49
    assert compile_time.seconds(module) <= compile_time.LIMIT


@pytest.mark.uncompiled("looked at, not compiled")
def test_reads_alone_are_written_out_as_before() -> None:
    x = te.placeholder((64, 64, 126, 126), name="x")
    k = te.reduce_axis((0, 64), name="k")
    made = te.compute((64, 126, 126), lambda n, i, j: te.sum(x[n, k, i, j], axis=k), name="z")
    loops = [s for f in lowered(lambda: made).funcs for s in walk_stmts(f.body)]
    turns = [s for s in loops if isinstance(s, For) and s.kind is LoopKind.UNROLLED]
    assert [str(loop.end) for loop in turns] == ["64"]


@pytest.mark.uncompiled("looked at, not compiled")
def test_choices_become_smaller_until_the_compilers_are_done_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = narrow_cases.correlation()
    plain = compile_time.seconds(pipeline.lower(schedules.schedule_for(made, HOPPER).plan, HOPPER))
    monkeypatch.setattr(compile_time, "LIMIT", 0.9 * plain)
    module = te.lower(made, target="cuda:sm_90")
    assert compile_time.seconds(module) <= 0.9 * plain
    again = schedules.default_schedule(made, HOPPER)
    assert compile_time.seconds(pipeline.lower(again.plan, HOPPER)) <= 0.9 * plain
    monkeypatch.setattr(compile_time, "LIMIT", 0.0)  # which no choices lead to: the best are taken
    assert compile_time.seconds(te.lower(made, target="cuda:sm_90")) <= 0.9 * plain


def test_what_cannot_be_lowered_is_no_smaller_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    made = narrow_cases.correlation()
    first = schedules.schedule_for(made, HOPPER)
    lower = pipeline.lower

    def only_the_first(plan: Any, target: Target) -> Module:
        if plan is not first.plan:
            raise LowerError("not this one")
        return lower(plan, target)

    monkeypatch.setattr(fitting.pipeline, "lower", only_the_first)
    monkeypatch.setattr(compile_time, "LIMIT", 0.0)
    names = [stage.name for stage in first.stages]
    rules = partial(schedules.schedule_for, made, HOPPER)
    assert fitting.in_time(first, HOPPER, names, rules) == {}


@pytest.mark.uncompiled("looked at, not compiled")
def test_a_search_leaves_out_what_would_take_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    module = lowered(lambda: narrow_cases.product_of("int32"))
    tiers = Tiers.of("cuda:sm_90", {}, "NVIDIA H200")
    assert tiers.refusal(module) is None
    monkeypatch.setattr(compile_time, "LIMIT", compile_time.seconds(module) / PATIENCE / 2)
    reason = tiers.refusal(module)
    assert reason is not None
    assert "compilers would take some" in reason


@pytest.mark.uncompiled("looked at, not compiled")
def test_effort_follows_what_is_written_out() -> None:
    def said(tile: int, turns: int, unrolled: bool, warps: int = 4) -> compile_time.Effort:
        x = te.placeholder((turns, 1 << 16), name="x")
        k = te.reduce_axis((0, turns), name="k")
        y = te.compute((1 << 16,), lambda i: te.sum(te.exp(x[k, i]), axis=k), name="y")
        s = te.create_schedule(y)
        inside = s.cache_write(y, "local")
        outer, inner = s[y].split(s[y].op.axis[0], tile)
        s[y].bind(outer, "blockIdx.x")
        s[y].vectorize(inner)
        s[inside].compute_at(s[y], outer)
        if unrolled:
            s[inside].unroll(s[inside].op.reduce_axis[0])
        s[y].launch(num_warps=warps)
        (func,) = te.lower(s, "cuda:sm_90").funcs
        return compile_time.effort(func)

    looped, written = said(1024, 32, False), said(1024, 32, True)
    assert written.instructions > 16 * looped.instructions
    assert said(1024, 64, False).instructions == looped.instructions
    assert said(2048, 32, True).instructions > 1.8 * written.instructions
    assert said(2048, 32, True, 8).instructions == written.instructions
    assert (looped.chain, written.chain, said(256, 32, True).chain) == (1, 32, 0)
    # What compilers would take minutes over is not unrolled.
    assert said(1024, 64, True).instructions == looped.instructions


def _compiles(name: str, arch: str) -> None:
    begin = time.process_time()
    made = EVERY[name]()
    te.build(list(made) if isinstance(made, tuple) else made, target=f"cuda:{arch}", cache=False)
    assert time.process_time() - begin < compile_time.LIMIT


@pytest.mark.ptxas
@pytest.mark.uncompiled("compiled by the test itself")
@pytest.mark.parametrize("name", QUICK)
def test_default_kernels_compile_in_time(name: str) -> None:
    _compiles(name, "sm_90")


@pytest.mark.slow
@pytest.mark.ptxas
@pytest.mark.uncompiled("compiled by the test itself")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", sorted(EVERY))
def test_every_default_kernel_compiles_in_time(name: str, arch: str) -> None:
    _compiles(name, arch)


@pytest.mark.uncompiled("looked at, not compiled")
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_tiles_by_hand_are_matrix_products(dtype: str) -> None:
    a, b = (te.placeholder((512, 512), dtype, name=name) for name in "ab")
    k = te.reduce_axis((0, 512), name="k")
    c = te.compute((512, 512), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    d = te.compute((512, 512), lambda i, j: te.relu(c[i, j]).astype(dtype), name="d")
    s = te.create_schedule(d)
    rows, columns, _, _ = s[d].tile(*s[d].op.axis, 128, 128)
    block = s[d].fuse(rows, columns)
    s[d].bind(block, "blockIdx.x")
    s[c].compute_at(s[d], block)
    outer, _ = s[c].split(s[c].op.reduce_axis[0], 64)
    s[c].pipeline(outer, num_stages=3)
    (dot,) = dots(te.lower(s, "cuda:sm_90"))
    assert dot.lhs.dtype == dtype
