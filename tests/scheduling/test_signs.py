"""Signs of values and of folds, and the operator of one component of a reducer."""

from __future__ import annotations

from typing import Any

import pytest

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, BinaryOp, Var
from tedsl.scheduling.algebra.associativity import component_operator
from tedsl.scheduling.algebra.rescaling import Sign
from tedsl.scheduling.algebra.signs import fold_sign, sign_of

k = te.reduce_axis((0, 64), name="k")
i = Axis("i")
X = te.placeholder((8, 64), name="X")
V = te.placeholder((64,), name="V")
c, v = X[i, k], V[k]
den = Var("l", DType.float32)
ADD, MAX = BinaryOp.ADD, BinaryOp.MAX
causal = k <= i


@pytest.mark.parametrize(
    ("expr", "sign"),
    [
        (te.exp(c), Sign.POSITIVE),
        (te.exp(c) + te.abs(v), Sign.POSITIVE),
        (c * c, Sign.NONNEGATIVE),
        (X[i, k] * X[i, k] + 1e-5, Sign.POSITIVE),
        (te.abs(c) / te.exp(v), Sign.NONNEGATIVE),
        (te.max(c, 0.0), Sign.NONNEGATIVE),
        (te.max(te.abs(c), 1e-6), Sign.POSITIVE),
        (te.select(causal, te.exp(c), 0.0), Sign.NONNEGATIVE),
        (te.sqrt(c * c + 1.0), Sign.POSITIVE),
        (c - v, Sign.ANY),
        (te.floor(te.exp(c)), Sign.NONNEGATIVE),
        (te.exp(c).astype("int32"), Sign.NONNEGATIVE),
        (te.tanh(te.exp(c)), Sign.POSITIVE),
        (causal.astype("float32"), Sign.NONNEGATIVE),
    ],
    ids=repr,
)
def test_signs(expr: Any, sign: Sign) -> None:
    assert sign_of(expr) is sign


def test_signs_of_folds_and_of_tags() -> None:
    assert sign_of(te.sqrt(den) + 1.0, {den: Sign.NONNEGATIVE}) is Sign.POSITIVE
    assert fold_sign(ADD, Sign.POSITIVE, DType.float32) is Sign.POSITIVE
    assert fold_sign(MAX, Sign.NONNEGATIVE, DType.float32) is Sign.NONNEGATIVE
    assert fold_sign(None, Sign.POSITIVE, DType.float32) is Sign.ANY


def argmax(a: Any, b: Any) -> Any:
    first = (a[1] > b[1]) | ((a[1] == b[1]) & (a[0] <= b[0]))
    return te.select(first, a[0], b[0]), te.select(first, a[1], b[1])


def test_the_value_of_an_argmax_is_a_maximum() -> None:
    def identity(*types: Any) -> Any:
        return tuple(te.const(0, t) for t in types)

    made: Any = te.comm_reducer(argmax, identity, name="argmax")((te.cast(k, "int32"), c), axis=k)
    assert component_operator(made[0].reducer, 0) is None
    assert component_operator(made[0].reducer, 1) is MAX
    total: Any = te.sum(c, axis=k)
    assert component_operator(total.reducer, 0) is ADD
