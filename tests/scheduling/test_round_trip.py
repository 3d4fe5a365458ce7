"""Every primitive: as JSON, as Python, replayed, and taken back.

A primitive without a case here fails `test_every_primitive_has_a_case`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import scans
from computations import chain, matmul
from intrinsics import gemm, tiled
from intrinsics import product as square_product

import tedsl as te
from tedsl.scheduling.primitives.stage_handle import primitives_of
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace

Case = Callable[[], tuple[te.Schedule, te.Tensor]]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    """A schedule with a step that is the primitive of the function's name."""
    CASES[function.__name__] = function
    return function


def rows() -> tuple[te.Schedule, te.Tensor, tuple[Any, Any]]:
    """An elementwise stage over two loops, a symbolic one outside."""
    A = te.placeholder((te.size_var("n"), 24), name="A")
    B = te.compute((A.shape[0], 24), lambda i, j: A[i, j] * 2.0, name="B")
    s = te.create_schedule(B)
    i, j = s[B].op.axis
    return s, B, (i, j)


def product() -> tuple[te.Schedule, te.Tensor, te.Tensor]:
    """A matrix product and a stage that reads it."""
    m = matmul(12, 20, 16)
    return te.create_schedule(m.D), m.C, m.D


@case
def split() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, _) = rows()
    s[B].split(i, nparts=s.size("n") // 4 + 1)
    return s, B


@case
def tile() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, j) = rows()
    s[B].tile(i, j, 3, 8)
    return s, B


@case
def env_threads() -> tuple[te.Schedule, te.Tensor]:
    (total,) = scans.running_sum()
    s = te.create_schedule(total)
    s["U"].bind(s["U"].op.axis[1], te.thread_axis("blockIdx.x"))
    s[total].env_threads([te.thread_axis("blockIdx.x"), "threadIdx.x"])
    return s, total


@case
def skew() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, j) = rows()
    s[B].split(s[B].skew(j, i, step=3, modulus=8), 4)
    return s, B


@case
def scatter() -> tuple[te.Schedule, te.Tensor]:
    a, x = te.placeholder((20, 6), name="A"), te.placeholder((20,), "int32", name="X")
    i = te.reduce_axis((0, 20), name="i")
    c = te.compute((4, 6), lambda g, j: te.sum(a[i, j], axis=i, where=x[i] == g), name="C")
    s = te.create_schedule(c)
    s[c].scatter(s[c].op.axis[0])
    return s, c


@case
def fuse() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, j) = rows()
    s[B].fuse(i, j)
    return s, B


@case
def reorder() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, j) = rows()
    s[B].reorder(j, i)
    return s, B


@case
def bind() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, _) = rows()
    s[B].bind(i, te.thread_axis("blockIdx.y"))
    return s, B


@case
def vectorize() -> tuple[te.Schedule, te.Tensor]:
    s, B, (_, j) = rows()
    s[B].vectorize(j)
    return s, B


@case
def tensorize() -> tuple[te.Schedule, te.Tensor]:
    c = square_product(12, 20, 8)
    s, inner = tiled(c, (4, 4, 4))
    s[c].tensorize(inner, gemm(name="of a trace"))
    return s, c


@case
def unroll() -> tuple[te.Schedule, te.Tensor]:
    s, B, (_, j) = rows()
    s[B].unroll(j)
    return s, B


@case
def parallel() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, _) = rows()
    s[B].parallel(i)
    return s, B


@case
def atomic() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    ko, _ = s[C].split(s[C].op.reduce_axis[0], 4)
    s[C].atomic()
    s[C].parallel(ko)
    return s, D


@case
def pipeline() -> tuple[te.Schedule, te.Tensor]:
    s, B, (_, j) = rows()
    s[B].pipeline(j, num_stages=4, flatten=True)
    return s, B


@case
def reverse() -> tuple[te.Schedule, te.Tensor]:
    s, B, (_, j) = rows()
    s[B].reverse(j)
    return s, B


@case
def serial() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, _) = rows()
    s[B].parallel(i)
    s[B].serial(i)
    return s, B


@case
def dot() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s[C].dot(s[C].op.reduce_axis[0], precision="tf32x3")
    return s, D


@case
def pragma() -> tuple[te.Schedule, te.Tensor]:
    s, B, (_, j) = rows()
    s[B].pragma(j, "vectorize")
    return s, B


@case
def compute_at() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s[C].compute_at(s[D], s[D].op.axis[0])
    return s, D


@case
def store_at() -> tuple[te.Schedule, te.Tensor]:
    a = te.placeholder((34,), name="A")
    b = te.compute((34,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((32,), lambda i: b[i] + b[i + 2], name="C")
    s = te.create_schedule(c)
    outer, inner = s[c].split(s[c].op.axis[0], 8)
    s[b].compute_at(s[c], inner)
    s[b].store_at(s[c], outer)
    return s, c


@case
def store_root() -> tuple[te.Schedule, te.Tensor]:
    s, c = store_at()
    s["B"].store_root()
    return s, c


@case
def rolling_buffer() -> tuple[te.Schedule, te.Tensor]:
    s, c = store_at()
    s["B"].rolling_buffer()
    return s, c


@case
def compute_with() -> tuple[te.Schedule, te.Tensor]:
    a = te.placeholder((30,), name="A")
    b = te.compute((30,), lambda i: a[i] + 1.0, name="B")
    c = te.compute((30,), lambda i: a[i] * 2.0, name="C")
    d = te.compute((30,), lambda i: b[i] * c[29 - i], name="D")
    s = te.create_schedule(d)
    s[c].compute_with(s[b], s[b].op.axis[0])
    return s, d


@case
def compute_last() -> tuple[te.Schedule, te.Tensor]:
    a = te.placeholder((8, 30), name="A")
    b = te.compute((8, 30), lambda i, j: a[i, j] + 1.0, name="B")
    c = te.compute((8,), lambda i: b[i, 0] * b[i, 29], name="C")
    s = te.create_schedule(c)
    for axis, name in zip(s[b].op.axis, ("blockIdx.x", "blockIdx.y"), strict=True):
        s[b].bind(axis, name)
    s[c].bind(s[c].op.axis[0], "blockIdx.x")
    s[c].compute_last(b)
    return s, c


@case
def compute_across() -> tuple[te.Schedule, te.Tensor]:
    a = te.placeholder((8, 4, 30), name="A")
    b = te.compute((8, 4), lambda i, p: a[i, p, 0] + 1.0, name="B")
    c = te.compute((8, 4), lambda i, p: b[i, p] * b[i, 3 - p], name="C")
    s = te.create_schedule(c)
    i, p = s[c].op.axis
    s[c].reorder(p, i)
    s[c].bind(p, "blockIdx.x")
    s[b].compute_across(s[c], i, s[b].op.axis[1], p)
    return s, c


@case
def compute_inline() -> tuple[te.Schedule, te.Tensor]:
    c = chain(30)
    s = te.create_schedule(c.D)
    s[c.C].compute_inline()
    return s, c.D


@case
def compute_root() -> tuple[te.Schedule, te.Tensor]:
    s, D = compute_inline()
    s["C"].compute_root()
    return s, D


@case
def set_scope() -> tuple[te.Schedule, te.Tensor]:
    s, D = compute_at()
    s["C"].set_scope("shared")
    return s, D


@case
def launch() -> tuple[te.Schedule, te.Tensor]:
    s, B, _ = rows()
    s[B].launch(num_warps=8, maxnreg=128)
    return s, B


@case
def cache_read() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s.cache_read(s["A"].op.outputs[0], "shared", [C])
    return s, D


@case
def recompute() -> tuple[te.Schedule, te.Tensor]:
    c = chain(64)
    s = te.create_schedule(c.D)
    s.recompute(c.B, [c.D])
    return s, c.D


@case
def cache_write() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s.cache_write(C, "local")
    return s, D


@case
def divide() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s.divide(D, s[D].op.axis[1], 3)
    s.divide(C, s[C].op.axis[1], 3)
    return s, D


@case
def rfactor() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    ko, _ = s[C].split(s[C].op.reduce_axis[0], 4)
    s.rfactor(C, ko, factor_axis=-1)
    return s, D


@case
def associative_scan() -> tuple[te.Schedule, te.Tensor]:
    (total,) = scans.running_sum()
    s = te.create_schedule(total)
    s.associative_scan(total, 4, step_axis=-1)
    s["total.prefix"].unroll(s["total.prefix"].op.reduce_axis[0])
    return s, total


@case
def decompose_reduction() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s.decompose_reduction(C, s[C].op.axis[1])
    return s, D


@case
def reverse_compute_at() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s[D].reverse_compute_at(s[C], s[C].op.axis[0])
    return s, D


@case
def reverse_compute_inline() -> tuple[te.Schedule, te.Tensor]:
    c = chain(30)
    s = te.create_schedule(c.D)
    s[c.B].compute_inline()
    s[c.C].split(s[c.C].op.axis[0], 8)
    s[c.D].reverse_compute_inline()
    return s, c.D


@case
def transform_layout() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s[C].transform_layout(lambda i, j: [j // 4, i, j % 4])
    return s, D


@case
def set_precision() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s.set_precision(C, "float64")
    return s, D


@case
def online() -> tuple[te.Schedule, te.Tensor]:
    X = te.placeholder((6, 40), name="X")
    k, r = te.reduce_axis((0, 40), "k"), te.reduce_axis((0, 40), "r")
    top = te.compute((6,), lambda i: te.max(X[i, k], axis=k), name="top")
    total = te.compute((6,), lambda i: te.sum(te.exp(X[i, r] - top[i]), axis=r), name="total")
    s = te.create_schedule(total)
    outer, _ = s[total].split(s[total].op.reduce_axis[0], 8)
    s[total].online(outer, time_limit=4.5)
    return s, total


@case
def split_online() -> tuple[te.Schedule, te.Tensor]:
    X = te.placeholder((6, 40), name="X")
    k, r = te.reduce_axis((0, 40), "k"), te.reduce_axis((0, 40), "r")
    top = te.compute((6,), lambda i: te.max(X[i, k], axis=k), name="top")
    total = te.compute((6,), lambda i: te.sum(te.exp(X[i, r] - top[i]), axis=r), name="total")
    s = te.create_schedule(total)
    outer, _ = s[total].split(s[total].op.reduce_axis[0], 8)
    s.split_online(total, outer, casts=True)
    return s, total


@case
def assume() -> tuple[te.Schedule, te.Tensor]:
    s, B, _ = rows()
    s.assume((s.size("n") % 16 == 0) & ~(s.size("n") < 32))
    return s, B


@case
def specialize() -> tuple[te.Schedule, te.Tensor]:
    s, B, _ = rows()
    s[B].specialize(te.max(s.size("n"), 3) == 24)
    return s, B


@case
def cut() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, _) = rows()
    n = s.size("n")
    s[B].cut(i, 2, n - 2)
    return s, B


@case
def partition() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, _) = rows()
    outer, _ = s[B].split(i, 4)
    s[B].partition(outer)
    return s, B


@case
def blockize() -> tuple[te.Schedule, te.Tensor]:
    s, B, (i, _) = rows()
    _, inner = s[B].split(i, 4)
    s[B].blockize(inner)
    return s, B


@case
def storage_align() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s[C].storage_align(s[C].op.axis[0], 8, 1)
    return s, D


@case
def evict() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s["A"].evict("last", then="first")
    s[C].evict("first")
    return s, D


@case
def double_buffer() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s[C].compute_at(s[D], s[D].op.axis[0])
    s[C].double_buffer()
    return s, D


@case
def prefetch() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    s[C].prefetch(s["A"].op.output(0), s[C].op.reduce_axis[0], 2)
    return s, D


@case
def set_store_predicate() -> tuple[te.Schedule, te.Tensor]:
    s, C, D = product()
    thread = te.thread_axis("threadIdx.x")
    s[C].bind(s[C].op.reduce_axis[0], thread)
    s[C].set_store_predicate(thread.var.equal(0))
    return s, D


def test_every_primitive_has_a_case() -> None:
    known = primitives_of(te.Schedule) | primitives_of(te.Stage)
    assert set(CASES) == known, "write a case in this file for each primitive"


@pytest.mark.parametrize("name", CASES)
def test_round_trip(name: str) -> None:
    s, output = CASES[name]()
    assert name in [step.primitive for step in s.trace.steps]
    text = s.trace.to_json()
    trace = Trace.from_json(text)
    assert trace == s.trace and trace.to_json() == text
    again = replay(output, trace)
    assert again.trace.to_json() == text and str(again) == str(s)
    source = s.as_python("out")
    assert again.as_python("out") == source
    scope: dict[str, Any] = {"te": te, "out": output}
    exec(source, scope)
    made: te.Schedule = scope["s"]
    assert made.as_python("out") == source
    assert made.trace.to_json() == text and str(made) == str(s)


@pytest.mark.parametrize("name", CASES)
def test_undo(name: str) -> None:
    s, output = CASES[name]()
    steps, text = s.trace.steps, str(s)
    first = [step.primitive for step in steps].index(name)
    s.undo(len(steps) - first)
    before = replay(output, s.trace)
    assert str(s) == str(before) and s.as_python() == before.as_python()
    assert [stage.name for stage in s.stages] == [stage.name for stage in before.stages]
    again = replay(output, Trace((*s.trace.steps, *steps[first:])))
    assert str(again) == text
