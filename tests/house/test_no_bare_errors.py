"""Slips over the public objects: none ends in an exception of Python's own.  Each is an error of
tedsl that says what to do, and what Python's habits expect of it besides."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tedsl
from tedsl.errors import TedslError

te: Any = tedsl

OF_ELEMENTS = """
round(x[0, 0], 2)
len(x)
len(x[0, 0])
len(x[0])
x[0, 0][1]
x[0, 0] @ x[0, 0]
x[0, 0] + "a"
"a" + x[0, 0]
x[0, 0] * None
x[0, 0] - [1]
x[0, 0] < "a"
x[0, 0] ** "a"
x + "a"
list(x)
list(x[0, 0])
list(k)
[0 for _ in k]
1 in x
1 in x[0, 0]
range(k)
int(x[0, 0])
float(k)
math.exp(x[0, 0])
sum(x)
min(x)
max(x[0, 0], x[1, 1])
bool(x > 0)
f"{x[0, 0]:.2f}"
f"{k:3d}"
f"{x:d}"
x.__setitem__(0, 3)
x[0].__setitem__(0, 3)
x[0, 0].__setitem__(0, 3)
np.dot(x, x)
np.where(x > 0, x, 0)
np.sum(x)
np.concatenate([x, x])
np.asarray(x)
x.T
k.domain.stop
x.op.foo
y.op.axis[0].foo
"%d" % k
x[0, 0](1)
k(1)
y.op.axis[9]
y.op.body[1]
y.op.input_tensors[3]
y.op.output(3)
"""
OF_FUNCTIONS = """
te.comm_reducer(lambda x: x, lambda t: te.const(0, t))(x[0, k], axis=k)
te.comm_reducer(lambda x, y: x + y, lambda: 0)(x[0, k], axis=k)
te.evaluate(z, {x: 3})
te.evaluate(z, {"x": a})
te.runtime.measure(3)
te.runtime.measure()
te.runtime.measure(lambda: 1, repeats="a")
te.runtime.compare(3)
te.runtime.set_cache_dir(3)
te.Target("cuda", "sm_1")
te.Target(3)
te.compute((2, 2), lambda i: x[i, 0])
te.decl_tensor_intrin(y.op)(x)
te.schedule.foo
te.auto.foo
te.hypot
te.nn.foo
te.Target()
te.autotune(y, sizes=3)
te.nn.rotary(x)
"""
OF_SCHEDULES = """
s[z][0]
s[z].rfactor(k)
s[z].vectorise
len(s)
len(s[z])
s.trace[0]
len(kernel)
kernel[0:2][1].foo
kernel.foo
kernel.measure()
s["q"]
s[z].split(k, "4")
s[z].pragma(k, "foo")
s(z)
s[z](1)
s.stages[99]
s[z].leaf_iter_vars[9]
"""


@pytest.fixture(scope="module")
def space() -> dict[str, Any]:
    x = te.placeholder((16, 16), name="x")
    y = te.compute((16, 16), lambda i, j: x[i, j] * 2, name="y")
    k = te.reduce_axis((0, 16), "k")
    z = te.compute((16,), lambda i: te.sum(y[i, k], axis=k), name="z")
    made = {"te": te, "np": np, "math": math, "x": x, "y": y, "k": k, "z": z}
    kernel = te.build(z, target="cpu")
    return {**made, "a": np.ones((16, 16), "f4"), "s": te.create_schedule(z), "kernel": kernel}


@pytest.mark.cpu
@pytest.mark.parametrize("slips", [OF_ELEMENTS, OF_FUNCTIONS, OF_SCHEDULES])
def test_a_slip_says_what_to_do(slips: str, space: dict[str, Any]) -> None:
    for slip in slips.strip().splitlines():
        with pytest.raises(TedslError, match=r"\n  do +\S") as told:
            eval(slip, dict(space))
        assert "\n" not in told.value.reason, slip


def test_what_python_asks_of_numbers_is_what_te_has(space: dict[str, Any]) -> None:
    x, k = space["x"], space["k"]
    element = x[0, 0]
    for python, ours in (
        (round(element), te.round(element)),
        (math.floor(element), te.floor(element)),
        (math.ceil(element), te.ceil(element)),
        (math.trunc(element), te.trunc(element)),
        (divmod(k, 3)[0], k // 3),
        (divmod(k, 3)[1], k % 3),
        (divmod(7, k)[1], 7 % k),
        (pow(k, 2, 3), k**2 % 3),
    ):
        assert te.structural_equal(python, ours)
    assert round(x).shape == x.shape and f"{x.shape[0]:4d}" == "  16"
    assert (
        f"{element:>9}" == "  x[0, 0]" and bool(x) and bool(space["s"]) and np.prod(x.shape) == 256
    )


def test_tensors_of_pytorch_that_cannot_be_traced_say_why() -> None:
    torch = pytest.importorskip("torch")
    tt: Any = pytest.importorskip("tedsl.torch")
    x = torch.ones(4, 4)
    for slip, match in (
        (lambda: tt.trace(3), "3 cannot be called"),
        (lambda: tt.trace(lambda a: a), "cannot be called with 0 arguments"),
        (lambda: tt.trace(lambda a: a + 1, x, x), "cannot be called with 2 arguments"),
        (lambda: tt.trace(lambda a: a + 1, np.ones(3)), "torch.from_numpy"),
        (lambda: tt.trace(lambda a: a + 1, x.to_sparse()), "to_dense"),
        (lambda: tt.trace(lambda a: a if a.sum() > 0 else a + 1, x), "torch.where"),
        (lambda: tt.trace(lambda a: a.nonzero(), x), "depends on values"),
        (lambda: tt.trace(lambda a: torch.sort(a), x), "torch.compile"),
        (lambda: tt.trace(lambda a: 3, x), "torch.compile"),
        (lambda: tt.op("a"), "missing"),
        (lambda: tt.tracee, "trace"),
    ):
        with pytest.raises(TedslError, match=rf"(?s){match}") as told:
            slip()
        assert "\n  do " in str(told.value)
