"""placeholder, compute, reading, axes, and every message they refuse with."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import tedsl as te
from tedsl.expr.nodes import AxisKind, Const, Range, TensorRead
from tedsl.tensor.tensor import ComputeOp, TensorSlice


def op_of(tensor: te.Tensor) -> ComputeOp:
    assert isinstance(tensor.op, ComputeOp)
    return tensor.op


A = te.placeholder((8, 16), name="A")


def test_placeholder_defaults() -> None:
    p = te.placeholder((3,))
    assert (p.dtype, p.name, p.ndim) == ("float32", "placeholder", 1)
    assert isinstance(p.shape[0], Const)
    assert p.shape[0].dtype == "int32"
    assert te.placeholder((2**40,)).shape[0].dtype == "int64"
    assert te.placeholder(te.var("n")).ndim == 1


def test_argument_names_become_axis_names() -> None:
    c = op_of(te.compute((8, 16), lambda row, col: A[row, col], name="C"))
    assert [axis.name for axis in c.axes] == ["row", "col"]
    assert c.axis == c.axes
    assert all(axis.kind is AxisKind.DATA for axis in c.axes)


def test_varargs() -> None:
    c = op_of(te.compute((8, 16), lambda *i: A(*i), name="C"))
    assert [axis.name for axis in c.axes] == ["i0", "i1"]
    d = op_of(te.compute((4, 8, 16), lambda b, *i: A(*i), name="D"))
    assert [axis.name for axis in d.axes] == ["b", "i0", "i1"]
    e = op_of(te.compute((8, 16), lambda *i: A(*i), varargs_names=["y", "x"]))
    assert [axis.name for axis in e.axes] == ["y", "x"]
    with pytest.raises(te.ExprError, match=r"1 varargs_names for 2 axes"):
        te.compute((8, 16), lambda *i: A(*i), varargs_names=["y"])


def test_rank_zero() -> None:
    c = te.compute((), lambda: 1.5, name="C")
    assert c.ndim == 0
    assert isinstance(c(), TensorRead)
    assert isinstance(c[()], TensorRead)
    d = te.compute((4,), lambda i: i * c[()] + te.max(c, 2), name="D")
    assert d.dtype == "float32"


def test_bare_extent() -> None:
    assert te.compute(4, lambda i: i).ndim == 1


def test_reads() -> None:
    i, j = op_of(te.compute((8, 16), lambda i, j: A[i, j])).axes
    assert te.structural_equal(A[i, j], A(i, j))
    assert te.structural_equal(A[i][j], A[i, j])
    assert isinstance(A[i], TensorSlice)
    assert te.structural_equal(A[i, 3], A[i][3])


def test_rank_of_reads() -> None:
    with pytest.raises(te.ExprError, match=r"A has 2 dimensions and is read with 1 indices"):
        A(3)
    with pytest.raises(te.ExprError, match=r"A has 2 dimensions and is read with 3 indices"):
        A[1, 2, 3]
    with pytest.raises(te.ExprError, match=r"A has 2 dimensions and is read with 1"):
        te.compute((8,), lambda i: te.exp(A[i]))
    with pytest.raises(te.ExprError, match=r"tensor A has 2 dimensions and stands where one"):
        te.max(A, 3)
    with pytest.raises(te.ExprError, match=r"A: float32\[8, 16\] is not a sequence"):
        list(A)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (1.5, r"index 0 of A is 1\.5, not an integer"),
        (slice(0, 3), r"index 0 of A is slice\(0, 3, None\)[\s\S]*ranges and masks"),
        (True, r"index 0 of A is True"),
        (None, r"index 0 of A is None"),
        (te.const(1.0), r"the index is float32; cast it"),
        (te.placeholder((3,), "int32", "I"), r"read it: I\[i\]"),
    ],
)
def test_indices_are_integers(index: Any, message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        A[index, 0]


def test_several_outputs() -> None:
    result = te.compute((8, 16), lambda i, j: (A[i, j] + 1, te.cast(A[i, j], "int32")), name="C")
    assert isinstance(result, tuple)
    first, second = result
    assert first.op is second.op
    assert (first.dtype, second.dtype) == ("float32", "int32")
    assert (first.name, second.name) == ("C.v0", "C.v1")
    assert op_of(first).output(1) is second


def test_fewer_arguments_than_dimensions() -> None:
    with pytest.raises(te.ExprError, match=r"takes 1 axes, the shape has 2[\s\S]*lambda \*i"):
        te.compute((8, 16), lambda i: A[i, 0], name="C")
    with pytest.raises(te.ExprError, match=r"takes 3 axes, the shape has 2"):
        te.compute((8, 16), lambda i, j, k: A[i, j], name="C")


def test_defaults_and_keywords_are_refused() -> None:
    with pytest.raises(te.ExprError, match=r"argument 'scale' of the function of compute 'C'"):
        te.compute((8,), lambda i, scale=2: i * scale, name="C")
    with pytest.raises(te.ExprError, match=r"argument 'x' .* is a keyword"):
        te.compute((8,), lambda i, *, x: i, name="C")
    with pytest.raises(te.ExprError, match=r"argument 'rest' "):
        te.compute((8,), lambda i, **rest: i, name="C")
    bound = functools.partial(lambda scale, i: i * scale, 2)
    assert te.compute((8,), bound).ndim == 1


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((-1,), r"extent 0 is -1, below 0"),
        ((4, 2.5), r"2\.5 \(float\) is no size"),
        ((True,), r"True \(bool\) is no size"),
        ((te.const(1.0),), r"1\.0 \(float32 expression\) is no size"),
        (("n",), r"'n' \(str\) is no size[\s\S]*te\.var"),
    ],
)
def test_bad_shapes(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        te.placeholder(shape, name="P")
    with pytest.raises(te.ExprError, match=message):
        te.compute(shape, lambda *i: 0, name="P")


def test_sizes_do_not_depend_on_axes() -> None:
    i = op_of(te.compute((8,), lambda i: i)).axes[0]
    with pytest.raises(te.ExprError, match=r"a size depends on the axis i[\s\S]*where="):
        te.placeholder((i + 1,))


def test_the_range_of_a_reduction_may_depend_on_axes() -> None:
    """Its domain holds all of them, and what is outside is left out."""

    def window(i: te.Expr) -> te.Expr:
        r = te.reduce_axis((te.max(i - 2, 0), i + 1), name="r")
        return te.sum(A[i, r], axis=r, where=r != 1)

    (body,) = op_of(te.compute((8,), window, name="W")).bodies
    assert str(body).count("<") == 2 and "r != 1" in str(body)
    i = op_of(te.compute((8,), lambda i: i)).axes[0]
    k = te.reduce_axis((0, i + 1), name="k")
    with pytest.raises(te.ExprError, match=r"uses the axis i, which is not one of its own"):
        te.compute((8,), lambda j: te.sum(A[j, k], axis=k))


def test_zero_and_one_extents_are_legal() -> None:
    c = te.compute((0, 1), lambda i, j: A[i, j + 100], name="C")
    assert c.ndim == 2


def test_attrs_are_notes() -> None:
    assert op_of(te.compute((8,), lambda i: i, attrs={"a": 1})).attrs == {"a": 1}
    assert op_of(te.compute((8,), lambda i: i, tag="note")).tag == "note"


def test_foreign_axes() -> None:
    other = op_of(te.compute((8,), lambda other: other)).axes[0]
    with pytest.raises(te.ExprError, match=r"uses the axis other, which is not one of its own"):
        te.compute((8,), lambda i: A[i, other], name="C")
    k = te.reduce_axis((0, 4), name="k")
    with pytest.raises(te.ExprError, match=r"uses the reduction axis k outside a reduction"):
        te.compute((8,), lambda i: A[i, k], name="C")
    with pytest.raises(te.ExprError, match=r"uses the axis other, which is not one of its own"):
        te.compute((8,), lambda i: 1 + te.sum(A[other, k], axis=k), name="C")


def test_no_outputs() -> None:
    with pytest.raises(te.ExprError, match=r"compute 'C' has no outputs"):
        te.compute((8,), lambda i: (), name="C")


def test_too_deep() -> None:
    def chain(i: te.Expr) -> te.Expr:
        total: te.Expr = A[i, 0]
        for _ in range(300):
            total = total + A[i, 1]
        return total

    with pytest.raises(te.ExprError, match=r"nested 30\d deep[\s\S]*te\.sum"):
        te.compute((8,), chain, name="C")


def test_reduce_axis() -> None:
    k = te.reduce_axis((2, 7), name="k")
    assert k.kind is AxisKind.REDUCE
    assert k.domain is k.dom
    assert k.domain is not None
    assert [str(k.domain.min), str(k.domain.extent)] == ["2", "5"]
    assert k.var is k
    again = te.reduce_axis(Range(te.const(2), te.const(5)))
    assert again.domain is not None
    assert str(again.domain.extent) == "5"
    n = te.var("n", "int64")
    assert te.reduce_axis((0, n)).dtype == "int64"
    assert te.reduce_axis((0, 2**40)).dtype == "int64"
    with pytest.raises(te.ExprError, match=r"reduce_axis 'k' has the range 3 \.\. 2"):
        te.reduce_axis((3, 2), name="k")
    with pytest.raises(te.ExprError, match=r"reduce_axis 'k' was given 5[\s\S]*pair"):
        te.reduce_axis(5, name="k")  # pyright: ignore[reportArgumentType]


def test_variables() -> None:
    assert te.var("n").lower is None
    assert te.size_var("n").lower == 0
    assert te.var("x", "float32").dtype == "float32"
