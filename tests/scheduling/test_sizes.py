"""assume and specialize: what is known of runtime sizes, and kernels made for some of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from computations import chain, matmul, row_sum
from refusals import refused

import tedsl as te
from tedsl.expr.nodes import Var
from tedsl.ir.nodes import Allocate
from tedsl.ir.printer import print_stmt
from tedsl.ir.visit import buffers_written, walk_stmts
from tedsl.lower.pipeline import lower
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace
from tedsl.target import Target

SIZES = (0, 1, 7, 33, 64, 1000)
TARGETS = [
    pytest.param("cpu", marks=pytest.mark.cpu),
    pytest.param("triton-interpret", marks=pytest.mark.ptxas),
]


def blocked(n: Any, factor: int = 16) -> tuple[te.Schedule, Any]:
    """A chain in one kernel, split by `factor` into block axes."""
    c = chain(n)
    s = te.create_schedule(c.D)
    for tensor in (c.B, c.C):
        s[tensor].compute_inline()
    outer, inner = s[c.D].split(s[c.D].op.axis[0], factor)
    s[c.D].bind(outer, "blockIdx.x")
    s[c.D].vectorize(inner)
    return s, c.D


def contraction(sizes: tuple[Any, Any, Any]) -> te.Schedule:
    """A matrix product with its epilogue in one kernel of blocks."""
    m = matmul(*sizes)
    s = te.create_schedule(m.D)
    io, jo, ii, ji = s[m.D].tile(*s[m.D].op.axis, 16, 32)
    block = s[m.D].fuse(io, jo)
    s[m.D].bind(block, "blockIdx.x")
    s[m.D].vectorize(ii)
    s[m.D].vectorize(ji)
    s[m.C].compute_at(s[m.D], block)
    _ko, ki = s[m.C].split(s[m.C].op.reduce_axis[0], 16)
    for axis in (*s[m.C].op.axis, ki):
        s[m.C].vectorize(axis)
    return s


def masks(s: te.Schedule, target: str) -> list[bool]:
    """Whether each kernel has masks or guards."""
    module = lower(s.plan, Target.parse(target), check=True)
    return [" < " in print_stmt(func.body) for func in module.funcs]


def test_assume(golden):
    n = te.size_var("n")
    s, _ = blocked(n)
    s.assume(n % 16 == 0)
    s.assume((n >= 64) & ~(n == 80))
    golden(f"{s}\n\n{s.as_python()}")
    for target in ("cpu", "triton-interpret"):
        assert masks(s, target) == [False]


def test_an_assumption_replays():
    n = te.size_var("n")
    s, D = blocked(n)
    s.assume((n % 16 == 0) & ~(te.max(n, 8) < 16))
    s[D].specialize(n >= 1024)
    again = replay(D, Trace.from_json(s.trace.to_json()))
    assert again.trace == s.trace and str(again) == str(s)
    scope: dict[str, Any] = {"te": te, "D": D}
    exec(s.as_python(), scope)
    assert scope["s"].trace == s.trace and str(scope["s"]) == str(s)


@pytest.mark.parametrize("target", TARGETS)
def test_a_call_against_an_assumption(target: str):
    n = te.size_var("n")
    s, _ = blocked(n)
    s.assume(n % 16 == 0)
    kernel = te.build(s, target)
    x = np.arange(32, dtype=np.float32)
    np.testing.assert_allclose(kernel(x), x + 1)
    with pytest.raises(te.BackendError, match=r"(?s)assumes n % 16 == 0.*n = 24.*pass arrays"):
        kernel(x[:24])


def test_an_assumption_over_another_size_is_checked():
    """The guard on n vanishes by way of m, which the kernel itself does not use."""
    m, n = te.size_var("m"), te.size_var("n")
    A, B = te.placeholder((n,), name="A"), te.placeholder((m,), name="B")
    C = te.compute((16,), lambda i: te.if_then_else(i < n, A[i], 0.0), name="C")
    D = te.compute((m,), lambda i: B[i], name="D")
    s = te.create_schedule([C, D])
    s.assume(m >= 16)
    s.assume(n >= m)
    kernel = te.build(s, "cpu")
    kernel(np.zeros(20, np.float32), np.zeros(16, np.float32))
    with pytest.raises(te.BackendError, match=r"(?s)assumes n >= m.*n = 3, m = 16"):
        kernel(np.zeros(3, np.float32), np.zeros(16, np.float32))


def test_assumptions_that_are_refused():
    n = te.size_var("n")
    s, D = blocked(n)
    s.assume(n % 16 == 0)
    other = te.size_var("q")
    A = s["A"].op.output(0)
    x = te.var("x", "float32")
    cases: Any = (
        (n % 16 == 1, "n % 16 == 1 never holds", "assumed n % 16 == 0"),
        (n < 0, "n < 0 never holds"),
        (other > 2, "uses q, which is no size of the computation", "sizes   n"),
        (A[0] > 1.0, "uses A[0], whose value is not known at the call"),
        (x > 1.0, "uses x, which is no size of the computation"),
        (abs(n) > 4, "uses abs, which is no size"),
        (n + 1, "n + 1 is int32, not a condition"),
        (3, "expected a condition on sizes, got 3 of type int"),
        (False, "the condition is False"),
    )
    for condition, *texts in cases:
        with refused(s, "assume(", *texts):
            s.assume(condition)
    s.assume(True)
    assert len(s.plan.assumptions) == 1
    assert s[D].plan.placement.kernel.versions == ()


def test_signs_and_negations_of_sizes_are_conditions():
    n = te.size_var("n")
    s, _ = blocked(n)
    for condition in (-n < -4, ~((n > 99) & (n % 2 == 0))):
        s.assume(condition)
    assert len(s.plan.assumptions) == 2


def test_specialize(golden):
    n = te.size_var("n")
    s, D = blocked(n)
    s[D].specialize(n >= 1024)
    s[D].specialize(n % 16 == 0)
    golden(f"{s}\n\n{te.lower(s, 'cpu')}\n\n{te.lower(s, 'triton-interpret')}")
    assert masks(s, "triton-interpret") == [True, False, True]


@pytest.mark.parametrize("target", TARGETS)
def test_the_first_condition_that_holds_decides(target: str):
    n = te.size_var("n")
    s, D = blocked(n)
    s[D].specialize(n >= 64)
    s[D].specialize(n % 16 == 0)
    kernel = te.build(s, target)
    for size in SIZES:
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_allclose(kernel(x), x + 1)
        np.testing.assert_allclose(kernel(x), x + 1)
    hits = [(each.kernel, each.hits) for each in kernel.specializations]
    assert hits == [("D.v1", 4), ("D.v2", 2), ("D", 6)]
    assert str(kernel.specializations[0]) == "D.v1 when n >= 64: 4 calls"
    assert [k.name for k in kernel.explain(n=80).kernels] == ["D.v1"]


@pytest.mark.parametrize("kept", ["loop", "root"])
def test_a_version_holds_what_it_stores_outside_of_loops_and_no_other(kept: str):
    n = te.size_var("n")
    c = chain(n)
    s = te.create_schedule(c.D)
    outer, inner = s[c.D].split(s[c.D].op.axis[0], 16)
    s[c.B].compute_inline()
    s[c.C].compute_at(s[c.D], inner)
    if kept == "loop":
        s[c.C].store_at(s[c.D], outer)
    else:
        s[c.C].store_root()
    s[c.D].specialize(n % 16 == 0)
    s[c.D].specialize(n < 16)
    for func in te.lower(s, "cpu", check=True).funcs:
        held = [each.buffer for each in walk_stmts(func.body) if isinstance(each, Allocate)]
        assert len(held) == 1 and held[0] in buffers_written(func.body)


def test_specializations_that_are_refused():
    n = te.size_var("n")
    s, D = blocked(n)
    s.assume(n % 8 == 0)
    s[D].specialize(n >= 64)
    for condition, *texts in (
        (n >= 128, "no call would take this version", "earlier version", "versions n >= 64"),
        (n % 8 == 1, "no call would take this version", "assumed n % 8 == 0"),
        (n < 64, "n < 64 holds at every call that no earlier version takes"),
        (te.size_var("q") > 1, "uses q, which is no size of the computation"),
    ):
        with refused(s, "specialize(D", *texts):
            s[D].specialize(condition)
    for bound in range(1, 8):
        s[D].specialize(n == 8 * bound)
    with refused(s, "specialize(D", "has 8 versions already"):
        s[D].specialize(n == 0)


def test_only_a_kernel_has_versions():
    n = te.size_var("n")
    c = chain(n)
    s = te.create_schedule(c.D)
    outer, _ = s[c.D].split(s[c.D].op.axis[0], 16)
    s[c.C].compute_at(s[c.D], outer)
    with refused(s, "specialize(C", "inside the kernel of D", "s[D]"):
        s[c.C].specialize(n >= 64)
    s[c.B].specialize(n >= 64)
    with refused(s, "compute_at(B", "B has versions", "a kernel of its own"):
        s[c.B].compute_at(s[c.D], outer)


@pytest.mark.parametrize("target", TARGETS)
def test_versions_of_a_contraction(target: str):
    sizes = te.size_var("m"), te.size_var("n"), te.size_var("k")
    s = contraction(sizes)
    kernel = te.build(s, target)
    rng = np.random.default_rng(3)
    sizes = ((0, 5, 3), (1, 1, 1), (7, 33, 16), (32, 32, 32), (33, 7, 0), (16, 64, 48), (7, 36, 20))
    for m, n, k in sizes:
        a, b = (rng.standard_normal(e).astype(np.float32) for e in ((m, k), (k, n)))
        bias = rng.standard_normal(n).astype(np.float32)
        want = np.maximum(a @ b + bias, 0)
        np.testing.assert_allclose(kernel(a, b, bias), want, atol=1e-4)
    if target == "cpu":
        assert kernel.specializations == ()  # its loops have parts with and without guards
        return
    full, rows, rest = kernel.specializations
    assert full.condition == "(k % 16 == 0) & (m % 16 == 0) & (n % 32 == 0)" and full.hits == 2
    assert rows.condition.startswith("(n % 4 == 0) & (k % 4 == 0)") and rows.hits == 1
    assert masks(s, target) == [False, True, True]
    assert rest.hits == 4


def doubled(dtype: str) -> te.Schedule:
    """Tiles of 64 along rows of symbolic length."""
    x = te.placeholder((te.size_var("m"), te.size_var("n")), dtype, name="X")
    y = te.compute(x.shape, lambda i, j: x[i, j] + x[i, j], name="Y")
    s = te.create_schedule(y)
    outer, inner = s[y].split(y.op.axis[1], 64)
    s[y].bind(y.op.axis[0], "blockIdx.y")
    s[y].bind(outer, "blockIdx.x")
    s[y].vectorize(inner)
    return s


@pytest.mark.parametrize(("dtype", "factor"), [("float64", 2), ("float32", 4), ("bfloat16", 8)])
def test_rows_that_begin_at_sixteen_bytes_have_a_version(dtype: str, factor: int):
    s = doubled(dtype)
    full, rows, rest = lower(s.plan, Target.parse("triton-interpret")).funcs
    aligned = f"n % {factor} == 0"
    assert str(full.when) == "n % 64 == 0"
    assert str(rows.when) == f"({aligned}) & ~(n % 64 == 0)"
    assert f"~({aligned})" in str(rest.when)
    source = te.build(s, "cuda:sm_90").source
    assert f"n = n // {factor} * {factor}" in source  # what Triton reads the width from
    n = next(v for v in s.plan.outputs[0].shape if isinstance(v, Var) and v.name == "n")
    s.assume(n % factor == 0)
    assert len(masks(s, "triton-interpret")) == 2  # known of all calls


def test_only_what_some_calls_take_is_lowered():
    s, target = doubled("float32"), Target.parse("triton-interpret")
    whole = lower(s.plan, target)
    for call, taken in (({"m": 3, "n": 128}, 0), ({"m": 3, "n": 20}, 1), ({"m": 3, "n": 21}, 2)):
        some = lower(s.plan, target, calls=[call])
        pairs = zip(some.funcs, whole.funcs, strict=True)
        same = [print_stmt(a.body) == print_stmt(b.body) for a, b in pairs]
        assert same == [n == taken for n in range(3)]
    both = lower(s.plan, target, calls=[{"m": 3, "n": 128}, {"m": 3, "n": 21}])
    assert print_stmt(both.funcs[0].body) == print_stmt(whole.funcs[0].body)
    assert print_stmt(both.funcs[1].body) != print_stmt(whole.funcs[1].body)


def test_of_single_bytes_the_launch_asks_itself():
    assert len(masks(doubled("int8"), "triton-interpret")) == 2


def test_a_version_is_found_only_where_it_removes_masks():
    n = te.size_var("n")
    s, _ = blocked(n)
    assert masks(s, "triton-interpret") == [False, True]
    assert masks(s, "cpu") == [True]
    s.assume(n % 32 == 0)
    assert masks(s, "triton-interpret") == [False]
    fixed, _ = blocked(1000)
    assert len(masks(fixed, "triton-interpret")) == 1
    whole, out = blocked(te.size_var("q"))
    q = next(iter(whole.plan.stage_of(whole.outputs[0].op).op.shape))
    assert isinstance(q, Var)
    whole[out].specialize(q % 16 == 0)
    assert masks(whole, "triton-interpret") == [False, True]  # the same as what would be found


def test_a_row_of_any_length():
    rows, columns = te.size_var("r"), te.size_var("c")
    X, B = row_sum(rows, columns)
    s = te.create_schedule(B)
    _outer, inner = s[B].split(s[B].op.reduce_axis[0], 32)
    s[B].vectorize(inner)
    s[B].bind(s[B].op.axis[0], "blockIdx.x")
    kernel = te.build(s, "triton-interpret")
    for shape in ((3, 0), (1, 1), (2, 33), (2, 64)):
        x = np.ones(shape, np.float32)
        np.testing.assert_allclose(kernel(x), x.sum(1))
    assert [each.hits for each in kernel.specializations] == [2, 0, 2]
    assert X.name == "X"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("how", ["specialize", "assume"])
@pytest.mark.parametrize("known", ["n < 4", "n == 3"])
def test_a_tile_that_is_all_of_a_small_size(target: str, how: str, known: str):
    """What is known of n makes one block of all loops; the tile attached there stays constant."""
    n = te.size_var("n")
    A = te.placeholder((n,), name="A")
    C = te.compute((n,), lambda i: A[i] * 2.0, name="C")
    D = te.compute((n,), lambda i: C[i] + 1.0, name="D")
    s = te.create_schedule(D)
    outer, inner = s[D].split(s[D].op.axis[0], 4)
    s[D].vectorize(inner)
    s[C].compute_at(s[D], outer)
    condition = n < 4 if known == "n < 4" else n == 3
    if how == "assume":
        s.assume(condition)
    else:
        s[D].specialize(condition)
    kernel = te.build(s, target)
    for size in (3,) if how == "assume" else (1, 3, 4, 9):
        x = np.arange(size, dtype=np.float32)
        np.testing.assert_allclose(kernel(x), x * 2 + 1)
