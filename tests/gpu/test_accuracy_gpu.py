"""Cheaper forms of functions on a GPU, against float64: the bounds of
`backends/triton/math/functions.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tedsl as te

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")

N = 1 << 16
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(
    ("name", "function", "exact", "absolute"),
    [
        ("tanh", te.tanh, torch.tanh, 0.0),
        ("sigmoid", te.sigmoid, torch.sigmoid, 0.0),
        ("1 + tanh", lambda x: 1.0 + te.tanh(x), lambda x: 1.0 + torch.tanh(x), 2.0**-20),
        ("1 + erf", lambda x: 1.0 + te.erf(x), lambda x: 1.0 + torch.erf(x), 2.0**-20),
    ],
)
def test_functions_are_as_accurate_as_what_is_stored(
    name: str,
    function: Callable[[Any], Any],
    exact: Callable[[Any], Any],
    absolute: float,
    dtype: str,
) -> None:
    """Within the rounding of the dtype and a quarter of it; float16 keeps its smallest numbers."""
    x = te.placeholder((N,), "float32", name="x")
    y = te.compute((N,), lambda i: function(x[i]).astype(dtype), name="y")
    given = torch.linspace(-9.0, 9.0, N, device="cuda")
    want = exact(given.double())
    got = te.build(y, "cuda")(given).double()
    allowed = 1.25 * ROUNDING[dtype] * want.abs() + absolute + 2.0**-25
    worst = ((got - want).abs() / allowed).max().item()
    assert worst <= 1.0, f"{name}: {worst:.3f} of what is allowed"


@pytest.mark.parametrize("scale", [1.5, -0.3])
def test_exp_of_a_product(scale: float) -> None:
    x = te.placeholder((N,), "float32", name="x")
    y = te.compute((N,), lambda i: te.exp(x[i] * scale), name="y")
    given = torch.linspace(-40.0, 40.0, N, device="cuda")
    factor = torch.tensor(scale).double().item()
    want = torch.exp(given.double() * factor)
    got = te.build(y, "cuda")(given).double()
    allowed = ((given.double() * factor).abs() + 2.0) * 2.0**-23
    assert ((got / want - 1.0).abs() / allowed).max().item() <= 1.0


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("source", ["bfloat16", "float32"])
@pytest.mark.parametrize("factor", [1.0, 0.75], ids=["at once", "later"])
@pytest.mark.parametrize(("function", "exact"), [(te.sin, torch.sin), (te.cos, torch.cos)])
def test_waves_of_all_bfloat16_numbers(
    function: Callable[[Any], Any],
    exact: Callable[[Any], Any],
    factor: float,
    source: str,
    dtype: str,
) -> None:
    """The far ones among them; rounded at once, and after something else."""

    def body(i: Any) -> te.Expr:
        wave = function(x[i].astype("float32"))
        return (wave if factor == 1.0 else wave * factor).astype(dtype)

    x = te.placeholder((N,), source, name="x")
    kernel = te.build(te.compute((N,), body, name="y"), "cuda")
    assert "quarter_turns" in kernel.source
    bits = (torch.arange(N, dtype=torch.int64, device="cuda") << 16).to(torch.int32)
    given = bits.view(torch.float32)
    given = torch.where(given.isfinite(), given, torch.ones_like(given))
    want = exact(given.double()) * factor
    got = kernel(given.to(getattr(torch, source))).double()
    allowed = 1.01 * ROUNDING[dtype] * want.abs() + (2.0**-133 if dtype == "bfloat16" else 2.0**-25)
    worst = ((got - want).abs() / allowed).max().item()
    assert worst <= 1.0, f"{worst:.3f} of what is allowed"
