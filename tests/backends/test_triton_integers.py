"""Integers below 32 bits in Triton's text: operations stay in their type, beside bare numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import hypothesis.strategies as st
import numpy as np
import pytest
import triton_irs as t
from hypothesis import given, note, settings
from triton_check import agree, both, draw

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.dtypes import DType
from tedsl.expr.nodes import (
    Binary,
    BinaryOp,
    Cast,
    Compare,
    CompareOp,
    Const,
    Expr,
    Select,
    Unary,
    UnaryOp,
)
from tedsl.expr.numerics import numpy_dtype

SMALL = (DType.int8, DType.uint8, DType.int16, DType.uint16)
ANY = (*SMALL, DType.int32, DType.uint32, DType.float32, DType.bool)
DIVISIONS = (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD, BinaryOp.TRUNCDIV, BinaryOp.TRUNCMOD)
SHIFTS = (BinaryOp.SHL, BinaryOp.SHR)
PLAIN = (
    BinaryOp.ADD,
    BinaryOp.SUB,
    BinaryOp.MUL,
    BinaryOp.MIN,
    BinaryOp.MAX,
    BinaryOp.AND,
    BinaryOp.OR,
    BinaryOp.XOR,
)
UNARY = (UnaryOp.NEG, UnaryOp.ABS, UnaryOp.SIGN, UnaryOp.NOT, UnaryOp.POPCOUNT)


def constants(dtype: DType, lowest: int | None = None) -> st.SearchStrategy[Expr]:
    """Numbers near the ends of the type and near 0."""
    low, high = int(dtype.info.lowest), int(dtype.info.highest)
    numbers = [n for n in (low, -3, -1, 0, 1, 2, 5, 100, high) if low <= n <= high]
    kept = [n for n in numbers if lowest is None or n >= lowest]
    return st.sampled_from(kept).map(lambda n: Const(n, dtype))


@st.composite
def values(draw: st.DrawFn, dtype: DType, leaves: tuple[Expr, ...], depth: int) -> Expr:
    """An expression of `dtype` over `leaves`, which are of that type, too."""

    def part() -> Expr:
        return draw(values(dtype, leaves, depth - 1))

    kind = draw(st.sampled_from(("leaf", *("op",) * 4, *("more",) * 3))) if depth else "leaf"
    if kind == "leaf":
        return draw(st.one_of(st.sampled_from(leaves), constants(dtype)))
    op = draw(st.sampled_from((*PLAIN, *DIVISIONS, *SHIFTS)))
    if kind == "op" and op in DIVISIONS:
        return Binary(op, part(), draw(constants(dtype, 1)))
    if kind == "op" and op in SHIFTS:
        return Binary(op, part(), Const(draw(st.integers(0, dtype.bits - 1)), dtype))
    if kind == "op":
        return Binary(op, part(), part())
    form = draw(st.sampled_from(("unary", "choice", "cast")))
    if form == "unary":
        return Unary(draw(st.sampled_from(UNARY)), part())
    if form == "choice":
        compared = Compare(draw(st.sampled_from(list(CompareOp))), part(), part())
        return Select(compared, part(), part())
    other = draw(st.sampled_from([d for d in ANY if d is not dtype and d is not DType.float32]))
    return Cast(Cast(part(), other), dtype)


@pytest.mark.uncompiled("Triton's interpreter has the types of its compiler")
@pytest.mark.parametrize("dtype", SMALL)
def test_drawn_expressions(dtype: DType) -> None:
    """Drawn: a value that went on in 32 bits shows in what is made of it."""

    @settings(max_examples=settings().max_examples // 4)
    @given(st.data())
    def agrees(data: st.DataObject) -> None:
        def value(x: Expr, y: Expr) -> Expr:
            return data.draw(values(dtype, (x, y), 4))

        module = t.pointwise(60, 64, (dtype, dtype), dtype, value)
        note(emit(module, "triton-interpret").source)
        inputs = draw(module, {})
        rng = np.random.default_rng(3)
        for array in inputs.values():
            array[...] = rng.integers(int(dtype.info.lowest), int(dtype.info.highest), array.shape)
        agree(both(module, inputs), 0)

    agrees()


def _all_of(dtype: DType, x: te.Expr, y: te.Expr) -> list[te.Expr]:
    """Each operation on a value and a number, on either side, and on two values."""
    found: list[te.Expr] = []
    three, seven = te.const(3, dtype.value), te.const(7, dtype.value)
    for op in PLAIN:
        found += [Binary(op, x, three), Binary(op, three, x), Binary(op, x, y)]
    found += [Binary(op, x, b) for op in DIVISIONS for b in (three, Binary(BinaryOp.MAX, y, seven))]
    found += [Binary(op, x, three) for op in SHIFTS]
    found += [Select(Compare(CompareOp.LT, x, y), a, b) for a, b in ((x, three), (three, seven))]
    return found


@pytest.mark.ptxas
@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("scalar", [True, False])
def test_every_operation_keeps_its_type(dtype: DType, scalar: bool) -> None:
    """As variables of a loop, whose types Triton does not let change: if one of them had another
    type, what combines them had it, too."""

    def combine(a: te.Expr, b: te.Expr) -> te.Expr:
        first, *rest = _all_of(dtype, a, b)
        return functools.reduce(lambda x, y: Binary(BinaryOp.XOR, x, y), rest, first)

    fold = te.comm_reducer(combine, lambda kind: te.const(0, kind), name="fold")
    k = te.reduce_axis((0, 5), name="k")
    shape = () if scalar else (64,)
    x = te.placeholder((5, *shape), dtype.value, name="x")
    y = te.compute(shape, lambda *i: fold(x[(k, *i)], axis=k), name="y")
    s = te.create_schedule(y)
    if not scalar:
        s[y].bind(s[y].op.axis[0], "threadIdx.x")
    program = emit(te.lower(s, target="cuda:sm_90"), "cuda:sm_90")
    assert f"tl.full({'()' if scalar else (64,)}, 0, tl.{dtype.value})" in program.source
    compile_offline(program)


def extreme_of_numbers(op: Callable[..., te.Expr], dtype: str) -> te.Schedule:
    """An extreme of a stage that is one number, written where it is read."""
    zero = te.compute((33, 17), lambda i, j: te.const(0, dtype), name="z")
    k = te.reduce_axis((0, 17), name="k")
    m = te.compute((33,), lambda i: op(zero[i, k], axis=k), name="m")
    s = te.create_schedule(te.compute((33, 17), lambda i, j: zero[i, j] - m[i], name="y"))
    s[zero].compute_inline()
    return s


@pytest.mark.ptxas
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("op", [te.max, te.min, te.sum])
def test_an_extreme_of_numbers(op: Callable[..., te.Expr], dtype: str) -> None:
    """Triton: loop-carried variable has initial type int8 but is re-assigned to int32."""
    s = extreme_of_numbers(op, dtype)
    te.build(s, target="cuda:sm_90", cache=False)
    found = te.build(s, target="triton-interpret", cache=False)()
    np.testing.assert_array_equal(found, np.zeros((33, 17), dtype))


def chain_of_bytes() -> te.Schedule:
    """Sums of uint8 in registers, of which quotients, products and extremes are taken."""

    def u(value: int) -> te.Expr:
        return te.const(value, "uint8")

    n = te.size_var("n")
    a = te.placeholder((n, 17), "uint8", name="a")
    r, c = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, 17), name="c")
    rows = te.compute((17,), lambda i: te.sum(a[r, i], axis=r, dtype="uint8"), name="rows")
    total = te.compute((), lambda: te.sum(rows[c], axis=c, dtype="uint8"), name="total")

    def element() -> te.Expr:
        x = total[()]
        again = te.cast(te.cast(x, "int8"), "uint8")
        return te.min(te.max(u(1), x) * (x // u(5)), te.max(x // u(5), again))

    s = te.create_schedule(te.compute((), element, name="out"))
    s["total"].specialize(s.size("n") < 4)
    return s


def chain_in_numpy(a: np.ndarray) -> np.ndarray:
    total = int(a.sum()) & 255
    fifth = total // 5
    return np.asarray(min(max(1, total) * fifth & 255, max(fifth, total)), np.uint8)


@pytest.mark.uncompiled("Triton's interpreter has the types of its compiler")
def test_a_chain_of_bytes() -> None:
    """A product of an extreme was one of 32 bits: 74 for 12."""
    kernel = te.build(chain_of_bytes(), target="triton-interpret", cache=False)
    rng = np.random.default_rng(0)
    for rows in (1, 2, 3, 4, 9, 5, 7, 1, 3):
        a = rng.integers(0, 256, (rows, 17)).astype("uint8")
        np.testing.assert_array_equal(kernel(a), chain_in_numpy(a))


@pytest.mark.uncompiled("Triton's interpreter has the types of its compiler")
@pytest.mark.parametrize("source", ["uint8", "uint16", "int32"])
def test_a_quotient_of_what_became_negative(source: str) -> None:
    """A cast to a smaller type may be negative, and a wrapped product, too."""
    target = {"uint8": "int8", "uint16": "int16", "int32": "int8"}[source]
    x = te.placeholder((64,), source, name="x")
    three = te.const(3, target)

    def element(i: te.Expr) -> te.Expr:
        small = te.cast(x[i] & te.const(255 if target == "int8" else 65535, source), target)
        return (
            small // three + small % three + (te.max(small, three) * te.max(small, three)) // three
        )

    y = te.compute((64,), element, name="y")
    a = np.random.default_rng(1).integers(0, 250, 64).astype(source) * numpy_dtype(
        DType(source)
    ).type(1 if source == "uint8" else 131)
    found = te.build(y, target="triton-interpret", cache=False)(a)
    np.testing.assert_array_equal(found, te.build(y, target="cpu", cache=False)(a))


@pytest.mark.gpu
def test_small_integers_on_the_device() -> None:
    torch = pytest.importorskip("torch")
    found = te.build(extreme_of_numbers(te.max, "int8"), target="cuda", cache=False)()
    assert not found.cpu().numpy().any()
    kernel = te.build(chain_of_bytes(), target="cuda", cache=False)
    for rows in (1, 3, 9):
        a = np.random.default_rng(rows).integers(0, 256, (rows, 17)).astype("uint8")
        got = kernel(torch.from_numpy(a).cuda()).cpu().numpy()
        np.testing.assert_array_equal(got, chain_in_numpy(a))
