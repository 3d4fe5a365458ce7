"""Loops of the rules on the CPU: what is read at a stride, chains of reductions, masks in sums of
products, and inputs that two kernels read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import rule_cases as c
from attentions import attention
from rule_cases import RuleCase
from rule_checks import interpreted

import tedsl as te
from tedsl.ir.nodes import Allocate
from tedsl.ir.visit import walk_stmts
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.schedules.cpu import shared_inputs
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.relations import constant, extents
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

CPU = Target.parse("cpu")


def kernels(s: Schedule) -> int:
    return len(lower(s.plan, CPU).funcs)


# What is read at a stride ---------------------------------------------------------------------


def transposed(m: int, n: int) -> Tensor:
    x = c.p(n, m)
    return te.compute((m, n), lambda i, j: x[j, i], name="y")


def channels_last(n: int, side: int, channels: int) -> Tensor:
    x = c.p(n, channels, side, side)
    return te.compute((n, side, side, channels), lambda b, i, j, k: x[b, k, i, j] * 2.0, name="y")


def linear(m: int, n: int, k: int) -> Tensor:
    x, w = c.p(m, k), c.p(n, k, name="w")
    r = te.reduce_axis((0, k), name="r")
    return te.compute((m, n), lambda i, j: te.sum(x[i, r] * w[j, r], axis=r), name="y")


@pytest.mark.cpu
@pytest.mark.parametrize(
    "made",
    [lambda: transposed(256, 192), lambda: channels_last(2, 32, 64), lambda: linear(96, 64, 128)],
)
def test_what_lies_across_the_lanes_is_turned_in_registers(made: Callable[[], Tensor]) -> None:
    """Elements that lie a stride apart would be loaded one by one."""
    source = te.build(made(), "cpu", cache=False).source
    assert "gather" not in source and "scatter" not in source
    assert "shufflevector" in source


@pytest.mark.parametrize("shape", [(33, 70), (7, 130), (1, 65), (65, 1)])
def test_odd_transposes_agree(shape: tuple[int, int]) -> None:
    interpreted(RuleCase("transposed", lambda: transposed(*shape)), "cpu")


# Chains of reductions -------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys"), [(30, 100), (1, 130), (3, 40)])
def test_a_chain_around_sums_of_products_is_one_kernel(rows: int, keys: int, causal: bool) -> None:
    case = RuleCase("chain", lambda: [attention(1, rows, keys, 12, causal=causal).result])
    small = {"out.depth": 64, **({"out.block": 12} if rows > 12 else {})}
    assert kernels(interpreted(case, "cpu", small)) == 1


def test_scores_of_a_chain_are_held_for_a_block_only() -> None:
    """No row of the 65,536 scores is ever stored."""
    module = lower(schedule_for(attention(4, 1, 65536, 64).result, "cpu").plan, CPU)
    (func,) = module.funcs
    held = [stmt.buffer for stmt in walk_stmts(func.body) if isinstance(stmt, Allocate)]
    sizes = [math.prod(int(str(extent)) for extent in buffer.shape) for buffer in held]
    assert sizes and max(sizes) <= 512 and not module.workspaces


def test_reductions_that_are_no_chain_are_computed_once_a_row() -> None:
    """Not for each of the columns that are made of them."""
    case = RuleCase("apart", lambda: [attention(2, 1, 40, 8, causal=True).result])
    s = interpreted(case, "cpu", {"out.chain": False})
    assert "m" in {stage.name for stage in s.stages}
    place = s["m"].plan.placement
    assert place.axis is not None and place.host
    assert constant(extents(s[place.host].plan)[place.axis]) == 2


@pytest.mark.cpu
def test_rows_of_results_that_have_no_constant_size_are_not_kept() -> None:
    """A row of weights and its product with symbolic columns: the statistics by themselves."""
    n, m = te.size_var("n"), te.size_var("m")
    given, values = te.placeholder((1, n), name="given"), te.placeholder((n, m), name="values")
    x = te.compute((1, n), lambda i, j: given[i, j] * 2, name="x")
    k = te.reduce_axis((0, n), name="k")
    most = te.compute((1,), lambda i: te.max(x[i, k], axis=k), name="most")
    y = te.compute(
        (1, m), lambda i, j: te.sum(te.exp(x[i, k] - most[i]) * values[k, j], axis=k), name="y"
    )
    kernel = te.build(schedule_for([y, x], "cpu"), "cpu")
    rng = np.random.default_rng(0)
    a, v = rng.normal(size=(1, 37)).astype("float32"), rng.normal(size=(37, 21)).astype("float32")
    got, doubled = kernel(a, v)
    np.testing.assert_allclose(got, np.exp(doubled - doubled.max()) @ v, rtol=1e-5, atol=1e-6)


# Masks in sums of products --------------------------------------------------------------------


def triangle(m: int, n: int) -> Tensor:
    a, b = c.p(m, m, name="a"), c.p(m, n, name="b")
    k = te.reduce_axis((0, m), name="k")
    return te.compute(
        (m, n), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k, where=k <= i), name="y"
    )


@pytest.mark.cpu
def test_points_that_a_mask_leaves_out_are_not_read_as_zeros() -> None:
    """What is not seen may be infinite: it is left out, not multiplied by 0."""
    s = interpreted(RuleCase("triangle", lambda: triangle(50, 70)), "cpu")
    assert "y.pack" in {knob.name for knob in s.knobs}
    a, b = np.ones((50, 50), np.float32), np.ones((50, 70), np.float32)
    a[np.triu_indices(50, 1)] = np.inf
    found = te.build(s, "cpu", cache=False)(a, b)
    np.testing.assert_array_equal(found, np.broadcast_to(np.arange(1, 51)[:, None], (50, 70)))


# What windows read ----------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "stored"), [(te.sigmoid, True), (te.abs, False)])
def test_what_windows_read_is_stored_where_it_is_dear(
    function: Callable[[te.Expr], te.Expr], stored: bool
) -> None:
    """Each element is in nine windows."""

    def pooled() -> Tensor:
        x = c.p(64, 92)
        y = te.compute((64, 92), lambda i, j: function(x[i, j]), name="y")
        p, q = (te.reduce_axis((0, 3), name=n) for n in "pq")
        body = lambda i, j: te.max(y[i + p, j + q], axis=[p, q])  # noqa: E731
        return te.compute((62, 90), body, name="out")

    assert kernels(schedule_for(pooled(), "cpu")) == 1 + stored
    interpreted(RuleCase("pooled", pooled), "cpu")


# Products in groups ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "each", "wide"), [(8, 5, {5}), (4, 24, {8, 24}), (3, 48, {16}), (2, 6, {6})]
)
def test_tiles_hold_whole_groups(groups: int, each: int, wide: set[int]) -> None:
    """A vector of all results of a short group, or of parts of a long one that fill vectors, of 8
    or 16 lanes."""

    def grouped() -> Tensor:
        x, w = c.p(60, groups * 12), c.p(groups * each, 12, name="w")
        k = te.reduce_axis((0, 12), name="k")
        return te.compute(
            (60, groups * each),
            lambda i, f: te.sum(x[i, f // each * 12 + k] * w[f, k], axis=k),
            name="out",
        )

    s = schedule_for(grouped(), "cpu")
    tile = s["out"].plan.leaf_axes[-1]
    assert constant(extents(s["out"].plan)[tile]) in wide
    interpreted(RuleCase("grouped", grouped), "cpu")


# Inputs that two kernels read -----------------------------------------------------------------


def two_folds(m: int, n: int, axes: Sequence[int]) -> list[Tensor]:
    """The sum and the largest of one tensor, over `axes`."""
    x = c.p(m, n)
    kept = [d for d in range(2) if d not in axes]

    def fold(how: Callable[..., te.Expr], name: str) -> Tensor:
        folded = {d: te.reduce_axis((0, (m, n)[d]), name=f"k{d}") for d in axes}

        def body(*i: te.Axis) -> te.Expr:
            at = dict(zip(kept, i, strict=True)) | folded
            return how(x[at[0], at[1]], axis=list(folded.values()))

        return te.compute([(m, n)[d] for d in kept], body, name=name)

    return [fold(te.sum, "total"), fold(te.max, "top")]


@pytest.mark.parametrize(
    ("shape", "axes", "apart"),
    [((640, 2000), (1,), 2), ((2100, 640), (0,), 4), ((1100, 1000), (0, 1), 4)],
)
def test_folds_of_one_input_share_its_loops(
    shape: tuple[int, int], axes: tuple[int, ...], apart: int
) -> None:
    """Memory is read once: what is left apart are the ends of folds in parts."""
    s = schedule_for(two_folds(*shape, axes), "cpu")
    (knob,) = [k for k in s.knobs if k.name.endswith(".beside")]
    assert knob.chosen == "loops" and kernels(s) == apart - 1
    alone = schedule_for(two_folds(*shape, axes), "cpu", {knob.name: "alone"})
    assert kernels(alone) == apart


@pytest.mark.parametrize("axes", [(1,), (0,), (0, 1)])
def test_shared_loops_agree(axes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_inputs, "WORTH", 0)
    interpreted(RuleCase("folds", lambda: two_folds(230, 150, axes)), "cpu")


def test_what_follows_folds_of_one_input_shares_its_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The input is read by a stage inside of each kernel, not by its root."""
    monkeypatch.setattr(shared_inputs, "WORTH", 0)

    def followed() -> list[Tensor]:
        total, top = two_folds(300, 250, (1,))
        half = te.compute((300,), lambda i: total[i] * 0.5, name="half")
        return [half, te.compute((300, 1), lambda i, _: top[i] + 1.0, name="more")]

    s = schedule_for(followed(), "cpu")
    assert kernels(s) == 1
    interpreted(RuleCase("followed", followed), "cpu")


def test_parts_too_large_for_a_cache_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_inputs, "KEPT", 1024)
    s = schedule_for(two_folds(640, 2000, (1,)), "cpu")
    assert [k.chosen for k in s.knobs if k.name.endswith(".beside")] == ["alone"]


def test_what_was_decided_of_a_kernel_before_stands() -> None:
    """Elements by themselves have a choice of the same name, with a default of its own."""
    x = c.p(600, 1000)
    up = te.compute((600, 1000), lambda i, j: te.exp(x[i, j]), name="up")
    twice = te.compute((600, 1000), lambda i, j: up[i, j] * 2.0, name="twice")
    half = te.compute((600, 1000), lambda i, j: up[i, j] * 0.5, name="half")
    outputs = [up, twice, half]
    s = schedule_for(outputs, "cpu")
    assert "half.beside" in {knob.name for knob in s.knobs}
    again = schedule_for(outputs, "cpu", {knob.name: knob.chosen for knob in s.knobs})
    assert again.as_python() == s.as_python()
