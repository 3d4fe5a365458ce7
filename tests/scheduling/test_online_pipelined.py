"""A pipelined loop around an online one: what is folded there is folded once for each element."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from rule_cases import random_inputs

import tedsl as te
from tedsl.tensor.tensor import Tensor

pytest.importorskip("triton")


def _chain(softmax: bool, shared: bool) -> tuple[Tensor, Tensor]:
    """A statistic of rows (`shared` by the columns of the results) and a sum that depends on it."""
    x = te.placeholder((3, 5, 9), name="x")
    k, r = te.reduce_axis((0, 9), name="k"), te.reduce_axis((0, 9), name="r")
    if shared:
        q = te.compute(
            (3,), lambda i: (te.max if softmax else te.sum)(x[i, 0, k], axis=k), name="q"
        )
    else:
        q = te.compute(
            (3, 5), lambda i, j: (te.max if softmax else te.sum)(x[i, j, k], axis=k), name="q"
        )

    def term(i: Any, j: Any) -> Any:
        known = q[i] if shared else q[i, j]
        value = x[i, 0, r] - known if shared else x[i, j, r] - known
        return te.sum(te.exp(value) * x[0, j, r] if softmax else value * 0.5, axis=r)

    return q, te.compute((3, 5), term, name="y")


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_numbers(softmax: bool, shared: bool) -> None:
    for piped, lanes, stored in product(("i", "j", "fused", "k"), ("", "i", "j"), (False, True)):
        q, y = _chain(softmax, shared)
        outputs = [y, q] if stored else [y]
        s = te.create_schedule(outputs)
        (i, j), (r,) = s[y].op.axis, s[y].op.reduce_axis
        if piped == "j":
            s[y].reorder(j, i)
        loop = {"i": i, "j": j, "k": r}.get(piped)
        if loop is None:
            if lanes:
                continue
            loop = s[y].fuse(i, j)
        s[y].pipeline(loop, num_stages=2)
        s[y].online(r, casts=True)
        if lanes and lanes != piped:
            s[y].vectorize(i if lanes == "i" else j)
        inputs = random_inputs(outputs, {})
        got = te.build(s, target="triton-interpret", cache=False)(*inputs.values())
        got = got if isinstance(got, tuple) else (got,)
        for mine, want in zip(got, te.evaluate(outputs, inputs), strict=True):
            np.testing.assert_allclose(mine, want, rtol=1e-5, atol=1e-5, err_msg=f"{piped} {lanes}")
