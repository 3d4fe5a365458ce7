"""Reductions, own reducers, and the stages split off for nested ones."""

from __future__ import annotations

import pytest

import tedsl as te
from tedsl.expr.nodes import BinaryOp, Expr, Reduce
from tedsl.expr.printer import print_reducer
from tedsl.expr.visit import reads, structural_equal
from tedsl.tensor.printer import print_graph
from tedsl.tensor.reduce import Reduction, simple_reducer
from tedsl.tensor.tensor import ComputeOp, Tensor

A = te.placeholder((8, 16), name="A")
H = te.placeholder((8, 16), "float16", name="H")
k = te.reduce_axis((0, 16), name="k")


def text(*tensors: Tensor) -> str:
    """The definitions after the placeholders."""
    return "\n".join(
        line for line in print_graph(tensors).splitlines() if "= placeholder(" not in line
    )


def argmax() -> Reduction:
    return te.comm_reducer(
        lambda x, y: (
            te.select(x[1] >= y[1], x[0], y[0]),
            te.select(x[1] >= y[1], x[1], y[1]),
        ),
        lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
        name="argmax",
    )


def test_sixteen_bit_sums_accumulate_in_float32() -> None:
    for function in (te.sum, te.prod):
        assert function(H[0, k], axis=k).dtype == "float32"
        assert function(H[0, k], axis=k, dtype="float16").dtype == "float16"
    assert te.max(H[0, k], axis=k).dtype == "float16"
    assert te.sum(H[0, k] > 0, axis=k).dtype == "int32"


def test_one_reducer_object_for_each_operator_and_dtype() -> None:
    a, b = te.sum(A[0, k], axis=k), te.sum(A[1, k] * 2, axis=k)
    assert a.reducer is b.reducer
    assert a.reducer.operator is BinaryOp.ADD
    assert te.max(A[0, k] > 0, axis=k).reducer.operator is BinaryOp.OR
    assert te.all(A[0, k] > 0, axis=k).dtype == "bool"


@pytest.mark.parametrize(
    ("op", "dtype", "identity"),
    [
        (BinaryOp.ADD, "float32", "0.0"),
        (BinaryOp.MUL, "int8", "int8(1)"),
        (BinaryOp.MAX, "float32", "-inf"),
        (BinaryOp.MIN, "int32", "2147483647"),
        (BinaryOp.MAX, "uint8", "uint8(0)"),
        (BinaryOp.AND, "bool", "True"),
        (BinaryOp.AND, "uint8", "uint8(255)"),
        (BinaryOp.AND, "int32", "-1"),
    ],
)
def test_identities(op: BinaryOp, dtype: str, identity: str) -> None:
    assert str(simple_reducer(op, te.DType(dtype)).identity[0]) == identity


def test_no_identity() -> None:
    with pytest.raises(te.ExprError, match=r"- is not commutative and associative"):
        simple_reducer(BinaryOp.SUB, te.DType.float32)


def test_max_and_min_of_two_scalars() -> None:
    i = te.compute((8,), lambda i: i).op.axis[0]
    assert str(te.max(i, 3)) == "max(i, 3)"
    assert str(te.min(A[i, 0], i)) == "min(A[i, 0], float32(i))"


def test_bad_axes() -> None:
    i = te.compute((8,), lambda i: i).op.axis[0]
    with pytest.raises(te.ExprError, match=r"sum was given the axis i[\s\S]*te\.reduce_axis"):
        te.sum(A[i, 0], axis=i)
    with pytest.raises(te.ExprError, match=r"sum was given no axis \(1\)"):
        te.sum(A[i, 0], axis=1)  # pyright: ignore[reportArgumentType]
    with pytest.raises(te.ExprError, match=r"sum was given no axis \(\[\]\)"):
        te.sum(A[i, 0], axis=[])
    with pytest.raises(te.ExprError, match=r"sum was given an axis twice: k, k"):
        te.sum(A[i, k], axis=[k, k])


def test_where_and_init() -> None:
    with pytest.raises(te.ExprError, match=r"sum\(where=\): the condition is int32"):
        te.sum(A[0, k], axis=k, where=k)
    with pytest.raises(te.ExprError, match=r"init of sum uses k, which it reduces over"):
        te.sum(A[0, k], axis=k, init=A[1, k])
    assert te.sum(A[0, k], axis=k, where=te.const(True)).where is None
    reduce = te.sum(H[0, k], axis=k, where=k < 3, init=1)
    assert str(reduce) == "sum(k)(float32(H[0, k]), where=k < 3, init=1.0)"


def test_logical_reductions_take_one_condition() -> None:
    with pytest.raises(te.ExprError, match=r"te\.all over an axis was given 2 conditions"):
        te.all(A[0, k] > 0, A[1, k] > 0, axis=k)
    with pytest.raises(te.ExprError, match=r"any: the condition is float32"):
        te.any(A[0, k], axis=k)


def test_tuple_reducer() -> None:
    index, value = te.compute((8,), lambda i: argmax()((k.var, A[i, k]), axis=k), name="M")
    assert (index.dtype, value.dtype) == ("int32", "float32")
    op = index.op
    assert isinstance(op, ComputeOp)
    assert op.reduce_axis[0] is k
    assert [body.index for body in op.bodies if isinstance(body, Reduce)] == [0, 1]
    body = op.bodies[0]
    assert isinstance(body, Reduce)
    reducer = body.reducer
    assert reducer.operator is None
    assert print_reducer(reducer) == (
        "argmax: (x0, x1, y0, y1) -> select(x1 >= y1, x0, y0), select(x1 >= y1, x1, y1), "
        "identity -1, -3.4028234663852886e+38"
    )


def test_scalar_reducer() -> None:
    xor = te.comm_reducer(lambda x, y: x ^ y, lambda t: te.const(0, t), name="xor")
    value = xor(te.cast(A[0, k], "int32"), axis=k)
    assert value.reducer.operator is BinaryOp.XOR
    again = xor(te.cast(A[1, k], "int32"), axis=k)
    assert value.reducer is again.reducer


def test_bad_reducers() -> None:
    with pytest.raises(te.ExprError, match=r"reducer 'r' combines two float16 into float32"):
        te.comm_reducer(lambda x, y: x.astype("float32") + y, lambda t: 0, "r")(H[0, k], axis=k)
    with pytest.raises(te.ExprError, match=r"fcombine of reducer 'r' returned[\s\S]*tuple of 2"):
        te.comm_reducer(lambda x, y: x[0], lambda a, b: (0, 0), "r")((k, A[0, k]), axis=k)
    with pytest.raises(te.ExprError, match=r"fidentity of reducer 'r' returned 0"):
        te.comm_reducer(lambda x, y: x, lambda a, b: 0, "r")((k, A[0, k]), axis=k)
    with pytest.raises(te.ExprError, match=r"identity of reducer 'r' is n, not a constant"):
        te.comm_reducer(lambda x, y: x + y, lambda t: te.var("n", t), "r")(A[0, k], axis=k)
    with pytest.raises(te.ExprError, match=r"argmax reduces 2 values and was given 1 for init"):
        argmax()((k, A[0, k]), axis=k, init=(3,))


def test_outputs_of_one_kind() -> None:
    with pytest.raises(te.ExprError, match=r"outputs of compute 'C' are different reductions"):
        te.compute((8,), lambda i: (te.sum(A[i, k], axis=k), te.sum(A[i, k] * 2, axis=k)), name="C")
    with pytest.raises(te.ExprError, match=r"are a reduction and something else"):
        te.compute((8,), lambda i: (te.sum(A[i, k], axis=k), A[i, 0]), name="C")


def test_nested_reductions_become_stages() -> None:
    def body(i: te.Expr, j: te.Expr) -> te.Expr:
        top = te.max(A[i, k], axis=k)
        return te.exp(A[i, j] - top) / te.sum(te.exp(A[i, k] - top), axis=k)

    assert text(te.compute((8, 16), body, name="P")) == "\n".join(
        [
            "P.red[i] = max(k)(A[i, k])  # float32[8], k in 0 .. 16",
            "P.red1[i] = sum(k)(exp(A[i, k] - P.red[i]))  # float32[8], k in 0 .. 16",
            "P[i, j] = exp(A[i, j] - P.red[i]) / P.red1[i]  # float32[8, 16]",
        ]
    )


def test_equal_reductions_share_a_stage() -> None:
    c = te.compute((8,), lambda i: te.sum(A[i, k], axis=k) + te.sum(A[i, k], axis=k) * 2, name="C")
    assert text(c).count("sum(k)") == 1


def test_the_first_stage_keeps_the_axis_object() -> None:
    c = te.compute((8,), lambda i: 1 + te.sum(A[i, k], axis=k) * te.max(A[i, k], axis=k), name="C")
    assert isinstance(c.op, ComputeOp)
    first, second = (read.tensor.op for read in reads(*c.op.bodies))
    assert first.reduce_axis[0] is k
    assert second.reduce_axis[0] is not k
    assert second.reduce_axis[0].name == "k"


def test_reduction_inside_a_reduction() -> None:
    r = te.reduce_axis((2, 8), name="r")
    c = te.compute((), lambda: te.sum(te.max(A[r, k], axis=k), axis=r), name="C")
    assert text(c) == "\n".join(
        [
            "C.red[r] = max(k)(A[r + 2, k])  # float32[6], k in 0 .. 16",
            "C[] = sum(r)(C.red[r - 2])  # float32[], r in 2 .. 8",
        ]
    )


def test_one_value_of_a_tuple_reduction() -> None:
    c = te.compute((8,), lambda i: argmax()((k, A[i, k]), axis=k)[0], name="C")
    assert text(c).splitlines()[-1] == "C[i] = C.red.v0[i]  # int32[8]"


def test_conditions_go_into_where() -> None:
    r = te.reduce_axis((0, 3), name="r")
    c = te.compute(
        (8, 4),
        lambda i, j: te.if_then_else(
            te.all(i >= 2, j > 1), te.sum(A[i - r, j], axis=r, where=r > 0, init=5), 0
        ),
        name="C",
    )
    assert text(c).splitlines()[0] == (
        "C.red[i, j] = sum(r)(A[i - r, j], where=(i >= 2) & (j > 1) & (r > 0), "
        "init=if_then_else((i >= 2) & (j > 1), 5.0, 0.0))  # float32[8, 4], r in 0 .. 3"
    )


def test_conditions_over_other_axes_add_no_work() -> None:
    c = te.compute(
        (8, 4), lambda i, j: te.if_then_else(j > 1, te.sum(A[i, k], axis=k), 0), name="C"
    )
    assert text(c).splitlines()[0].startswith("C.red[i] = sum(k)(A[i, k])")
    d = te.compute(
        (8, 20),
        lambda i, j: te.if_then_else(
            j < 16, te.if_then_else(i > 0, te.sum(A[i - 1, k], axis=k), 0), 1
        ),
        name="D",
    )
    assert text(d).splitlines()[0].startswith("D.red[i] = sum(k)(A[i - 1, k], where=i > 0)")
    e = te.compute(
        (8, 8), lambda i, j: te.if_then_else(i >= j, te.sum(A[i - j, k], axis=k), 0), name="E"
    )
    assert "where=i >= j" in text(e).splitlines()[0]


def test_the_else_side_is_guarded_too() -> None:
    c = te.compute(
        (8,), lambda i: te.if_then_else(i == 0, 0.0, te.sum(A[i - 1, k], axis=k)), name="C"
    )
    assert "where=i != 0" in text(c).splitlines()[0]


def test_guards_that_read_stay_in_order() -> None:
    mask = te.placeholder((4,), "bool", name="mask")
    r = te.reduce_axis((0, 3), name="r")
    c = te.compute(
        (8,),
        lambda i: te.if_then_else(i < 4, te.sum(A[i, r], axis=r, where=mask[i]), 0),
        name="C",
    )
    assert "where=if_then_else(i < 4, mask[i], False)" in text(c).splitlines()[0]


def test_a_sum_that_says_what_it_leaves_out_is_finite():
    a, b = te.placeholder((8, 8), name="a"), te.placeholder((8, 8), name="b")
    k = te.reduce_axis((0, 8), name="k")

    def product(finite: bool) -> te.Tensor:
        return te.compute(
            (8, 8),
            lambda i, j: te.sum(a[i, k] * b[k, j], axis=k, where=k <= i, finite=finite),
            name="c",
        )

    sure, plain = product(True), product(False)
    assert "where=k <= i, finite=True" in str(sure.op)
    assert "finite" not in str(plain.op)
    one, other = sure.op, plain.op
    assert isinstance(one, ComputeOp) and isinstance(other, ComputeOp)
    axes: dict[Expr, Expr] = dict(zip(one.axes, other.axes, strict=True))
    assert not structural_equal(one.bodies[0], other.bodies[0], axes)


def test_finite_without_a_condition_is_refused():
    a, k = te.placeholder((8,), name="a"), te.reduce_axis((0, 8), name="k")
    with pytest.raises(te.errors.ExprError, match=r"finite=True and no where="):
        te.compute((), lambda: te.sum(a[k], axis=k, finite=True))
