"""What LLVM may assume of the text that it is given, and what it gets wrong in it."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te
from tedsl.expr.nodes import Axis, Expr

pytestmark = pytest.mark.cpu


@pytest.mark.parametrize("columns", [1, 2])
def test_quotients_behind_a_condition(columns: int) -> None:
    """LLVM 22.1 takes the remainder, which is one for all of a row's iterations, from the first of
    them, where the condition does not hold and nothing was computed."""
    n = te.size_var("n")
    rows = te.placeholder((n, columns), name="rows")
    turned = te.compute((n, columns), lambda j, k: rows[(j + 8) % n, k], name="turned")
    s = te.create_schedule(turned)
    j, k = s[turned].op.axis
    s[turned].skew(k, j, step=9, modulus=4)
    kernel = te.build(s, "cpu")
    given = np.random.default_rng(1).random((7, columns), dtype=np.float32)
    assert np.array_equal(kernel(given), given[(np.arange(7) + 8) % 7])
    hints = [line for line in str(kernel.source).splitlines() if "vectorize.enable" in line]
    assert hints == [hint for hint in hints if hint.endswith("i1 false}")] != []


def test_quotients_without_a_condition_leave_loops_to_llvm() -> None:
    n = te.size_var("n")
    rows = te.placeholder((n, 64), name="rows")
    turned = te.compute((n, 64), lambda j, k: rows[(j + 8) % n, k], name="turned")
    kernel = te.build(te.create_schedule(turned), "cpu")
    assert "sdiv" in str(kernel.source)
    inner = [line for line in str(kernel.source).splitlines() if "br i1" in line]
    assert any("!llvm.loop" not in line for line in inner)


@pytest.mark.parametrize(
    ("read", "inside"),
    [
        (lambda a, i, j: a[i, j], True),
        (lambda a, i, j: a[i % 5, j // 2 * 2], True),
        (lambda a, i, j: a[15 - i, j], False),
        (lambda a, i, j: a[i, 7 - j], False),
    ],
)
def test_parts_of_an_address_that_may_lie_outside(read: object, inside: bool) -> None:
    """`getelementptr inbounds` is undefined for a sum of some terms of an address that is outside
    of the tensor, even where the sum of all is inside."""
    a = te.placeholder((16, 8), name="a")

    def body(i: Axis, j: Axis) -> Expr:
        assert callable(read)
        value = read(a, i, j)
        assert isinstance(value, Expr)
        return value

    out = te.compute((16, 8), body, name="out")
    text = str(te.build(te.create_schedule(out), "cpu").source)
    loads = text[: text.index("load float")].rsplit("loop", 1)[-1]
    steps = [line for line in loads.splitlines() if "getelementptr" in line]
    assert steps
    assert all(("inbounds" in line) == inside for line in steps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("extent", [3, 4, 9])
def test_a_choice_between_nothing_and_a_quotient_by_it(
    extent: int, factor: int, dtype: str
) -> None:
    """LLVM believes that 0 / 0 is 0, and leaves out the choice that says so."""
    zero, one = te.const(0, dtype), te.const(1, dtype)

    def both(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> tuple[Expr, ...]:
        none = te.all(*(each == zero for each in (*a, *b)))
        mean = (a[0] * a[1] + b[0] * b[1]) / (a[1] + b[1])
        return te.select(none, zero, mean), a[1] + b[1]

    means = te.comm_reducer(both, lambda *_: (zero, zero), "means", believed=True)
    x, k = te.placeholder((extent, extent), dtype, name="x"), te.reduce_axis((0, extent), name="k")
    made = te.compute((extent,), lambda i: means((x[i, k], one), k, where=k <= i), name="mean")
    s = te.create_schedule(made)
    s["mean"].vectorize(s["mean"].split(k, factor)[1])
    data = np.linspace(-1, 1, extent**2).astype(dtype).reshape(extent, extent)
    counts = np.arange(1, extent + 1)
    found, counted = te.build(s, "cpu", cache=False)(data)
    np.testing.assert_allclose(found, np.tril(data).sum(1) / counts, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(counted, counts)
