"""What the rules for a GPU make of products: views of them, groups, parts of K, float32; and of
pointwise stages that are read more than once."""

from __future__ import annotations

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import interpreted

import tedsl as te
from tedsl.ir.nodes import Dot
from tedsl.ir.visit import walk_stmts
from tedsl.tensor.tensor import Tensor

GPU = "cuda:sm_90"
H = "float16"


def dots(schedule: te.Schedule) -> list[Dot]:
    module = te.lower(schedule, GPU)
    return [s for func in module.funcs for s in walk_stmts(func.body) if isinstance(s, Dot)]


def count(schedule: te.Schedule) -> int:
    return len(te.lower(schedule, GPU).funcs)


def product(a: Tensor, b: Tensor, name: str = "y") -> Tensor:
    k = te.reduce_axis((0, int(a.shape[-1])), name="k")
    return te.compute(
        (*a.shape[:-1], b.shape[-1]),
        lambda *i: te.sum(
            a[(*i[:-1], k)].astype("float32") * b[k, i[-1]].astype("float32"), axis=k
        ),
        name=name,
    )


def tall() -> Tensor:
    a, b = c.p(5000, 24, dtype=H, name="a"), c.p(5000, 20, dtype=H, name="b")
    k = te.reduce_axis((0, 5000), name="k")
    wide = "float32"
    return te.compute(
        (24, 20), lambda i, j: te.sum(a[k, i].astype(wide) * b[k, j].astype(wide), axis=k), name="y"
    )


def grouped() -> Tensor:
    """Groups of 6 results and 4 channels."""
    x, w = c.p(2, 12, 9, 20, dtype=H, name="x"), c.p(18, 4, 3, 3, dtype=H, name="w")
    return te.nn.conv2d(x, w, groups=3, layout="channels_first", name="y")


def channels_first(channels: int = 32) -> Tensor:
    x, w = c.p(channels, 9, 12, dtype=H, name="x"), c.p(3, channels, 3, 3, dtype=H, name="w")
    k, u, v = (
        te.reduce_axis((0, n), name=name) for n, name in zip((channels, 3, 3), "kuv", strict=True)
    )
    return te.compute(
        (3, 7, 10),
        lambda f, i, j: te.sum(
            x[k, i + u, j + v].astype("float32") * w[f, k, u, v].astype("float32"), axis=(k, u, v)
        ),
        name="y",
    )


def viewed() -> Tensor:
    y = product(c.p(256, 32, dtype=H, name="a"), c.p(32, 48, dtype=H, name="b"))
    short = te.compute((256, 48), lambda i, j: y[i, j].astype(H), name="short")
    return te.compute((2, 128, 48), lambda q, i, j: short[q * 128 + i, j] * q, name="z")


def exact() -> Tensor:
    return product(c.p(40, 33, name="a"), c.p(33, 24, name="b"))


PRODUCTS = {
    "parts of K that do not divide it": tall,
    "groups": grouped,
    "channels first": channels_first,
    "a view": viewed,
    "float32": exact,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_use_tensor_cores(name: str) -> None:
    schedule = interpreted(RuleCase(name, PRODUCTS[name]), GPU)
    assert len(dots(schedule)) >= 1


def test_float32_is_multiplied_in_parts() -> None:
    assert {dot.precision for dot in dots(te.schedule_for(exact(), GPU))} == {"tf32x3"}


@pytest.mark.parametrize(
    ("channels", "along"), [(32, "k.inner"), (30, "k.inner"), (3, "k.u.v.fused.inner")]
)
def test_a_step_lies_along_channels_that_are_long_enough(channels: int, along: str) -> None:
    (dot, *_) = dots(te.schedule_for(channels_first(channels), GPU))
    assert dot.contract.axis.name.startswith(along)


def test_what_reads_a_view_of_a_product_is_its_epilogue() -> None:
    assert count(te.schedule_for(viewed(), GPU)) == 1


def test_results_along_a_batch_are_no_tile_of_a_product() -> None:
    """Neighbours in memory would be in different programs."""
    a, b = c.p(4, 64, 32, dtype=H, name="a"), c.p(4, 32, 64, dtype=H, name="b")
    k = te.reduce_axis((0, 32), name="k")
    y = te.compute((4, 64, 64), lambda q, i, j: te.sum(a[q, i, k] * b[q, k, j], axis=k), name="y")
    z = te.compute((64, 64, 4), lambda i, j, q: y[q, i, j] + 1.0, name="z")
    assert count(interpreted(RuleCase("batch last", lambda: z), GPU)) == 2


def attended(projected: bool) -> Tensor:
    """Attention of one head, with its keys as they are or as the product of others."""
    q, v = c.p(64, 32, dtype=H, name="q"), c.p(64, 32, dtype=H, name="v")
    x, w = c.p(64, 32, dtype=H, name="x"), c.p(32, 32, dtype=H, name="w")
    keys = x
    if projected:
        y = product(x, w, "projected")
        keys = te.compute((64, 32), lambda i, j: y[i, j].astype(H), name="keys")
    d = te.reduce_axis((0, 32), name="d")
    scores = te.compute(
        (64, 64),
        lambda i, j: te.sum(q[i, d].astype("float32") * keys[j, d].astype("float32"), axis=d),
        name="scores",
    )
    return product(te.nn.softmax(scores), v, "attention")


@pytest.mark.parametrize(("projected", "kernels"), [(False, 1), (True, 2)])
def test_a_chain_holds_scores_and_no_projections(projected: bool, kernels: int) -> None:
    schedule = interpreted(RuleCase("attention", lambda: attended(projected)), GPU)
    assert count(schedule) == kernels


def differences() -> Tensor:
    """A cheap stage that is read at three places."""
    x = c.p(33, 100, name="x")
    y = te.compute((33, 100), lambda i, j: te.maximum(x[i, j] * 1.5, 0.25), name="y")
    return te.compute(
        (32, 99), lambda i, j: y[i + 1, j] - y[i, j] + te.abs(y[i, j + 1] - y[i, j]), name="z"
    )


def steps() -> list[Tensor]:
    """A result that another one reads, as in an optimiser."""
    w, g, m = (c.p(40, 64, name=name) for name in "wgm")
    n = te.compute((40, 64), lambda i, j: m[i, j] * 0.9 + g[i, j], name="n")
    return [n, te.compute((40, 64), lambda i, j: w[i, j] - n[i, j] * 0.1, name="v")]


@pytest.mark.parametrize("make", [differences, steps])
def test_what_is_cheap_is_computed_again(make: object) -> None:
    schedule = interpreted(RuleCase("pointwise", make), GPU)  # type: ignore[arg-type]
    assert len(te.lower(schedule, GPU).funcs) == 1


def test_tiles_of_two_axes_are_shared() -> None:
    schedule = interpreted(RuleCase("beside", broadcast), GPU)
    assert len(te.lower(schedule, GPU).funcs) == 1


def broadcast() -> list[Tensor]:
    x, r = c.p(64, 4096, name="x"), c.p(64, name="r")
    return [
        te.compute((64, 4096), lambda i, j: x[i, j] - r[i], name="a"),
        te.compute((64, 4096), lambda i, j: x[i, j] * r[i], name="b"),
    ]
