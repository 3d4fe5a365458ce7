"""Masks shorten loops: bounds, full and boundary tiles, and what stays a mask."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from irs import binary, buffer, compare, float32, func, load, loop, module, reducer
from lowering import after_passes, agrees

import tedsl as te
from tedsl.expr.nodes import Axis, AxisKind
from tedsl.ir.interp import run
from tedsl.ir.nodes import Accumulate, Allocate, Func, Scope, Seq, Stmt, Store
from tedsl.ir.printer import print_func
from tedsl.lower.passes.shorten_loops import shorten_loops
from tedsl.scheduling.handles.schedule import Schedule

Golden = Callable[..., None]
Mask = Callable[[Any, Any], Any]


def causal(k: Any, i: Any) -> Any:
    return k <= i


def window(k: Any, i: Any) -> Any:
    return te.all(k <= i, k > i - 40)


def scores(mask: Mask, n: Any, rows: int, keys: int, tiled: bool, depth: int = 3) -> Schedule:
    """The row maximum of a product under a mask, the product computed inside, tile by tile."""
    q = te.placeholder((n, depth), name="Q")
    kt = te.placeholder((n, depth), name="K")
    d = te.reduce_axis((0, depth), name="d")
    k = te.reduce_axis((0, n), name="k")
    p = te.compute((n, n), lambda i, j: te.sum(q[i, d] * kt[j, d], axis=d), name="P")
    m = te.compute((n,), lambda i: te.max(p[i, k], axis=k, where=mask(k, i)), name="M")
    s = te.create_schedule(m)
    io, ii = s[m].split(s[m].op.axis[0], rows)
    ko, ki = s[m].split(k, keys)
    s[m].bind(io, "blockIdx.x")
    s[m].reorder(io, ko, ii, ki)
    s[p].compute_at(s[m], ko)
    if tiled:
        s[m].vectorize(ii)
        s[m].vectorize(ki)
    return s


def shortened(s: Schedule, target: str) -> str:
    return after_passes(s, target)["shorten_loops"]


@pytest.mark.parametrize("mask", [causal, window])
@pytest.mark.parametrize("tiled", [False, True])
def test_full_and_boundary_tiles(golden: Golden, mask: Mask, tiled: bool) -> None:
    golden(shortened(scores(mask, 200, 32, 8, tiled), "cpu"))


@pytest.mark.parametrize("mask", [causal, window])
def test_program_of_tiles(golden: Golden, mask: Mask) -> None:
    golden(te.build(scores(mask, 256, 16, 16, True, 16), target="cuda:sm_90").source)


@pytest.mark.parametrize("n", [1, 7, 33, 100])
@pytest.mark.parametrize(("rows", "keys"), [(4, 16), (16, 4), (8, 8)])
@pytest.mark.parametrize("width", [None, 1, 5, 24])
def test_numbers(n: int, rows: int, keys: int, width: int | None) -> None:
    def mask(k: Any, i: Any) -> Any:
        return k <= i if width is None else te.all(k <= i, k > i - width)

    assert agrees(scores(mask, n, rows, keys, False), targets=("cpu",))
    assert agrees(scores(mask, n, rows, keys, True))


@pytest.mark.parametrize("size", [0, 1, 50])
def test_runtime_sizes(size: int) -> None:
    n = te.size_var("n")
    s = scores(window, n, 8, 16, True)
    assert agrees(s, {n: size}, targets=("cpu",))


def _row(mask: Mask, n: int = 40) -> Schedule:
    a = te.placeholder((n, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    b = te.compute((n,), lambda i: te.sum(a[i, k], axis=k, where=mask(k, i)), name="B")
    return te.create_schedule(b)


@pytest.mark.parametrize(
    ("mask", "head"),
    [
        (lambda k, i: k <= i, "for k in 0..i + 1:"),
        (lambda k, i: i - 3 < k, "for k in max(i - 2, 0)..40:"),
        (lambda k, i: k * 2 >= i, "for k in (i + 1) // 2..40:"),
        (lambda k, i: k == i, "for k in i..i + 1:"),
        (lambda k, i: te.all(k < 7, (k + i) % 3 != 1), "for k in 0..7:"),
    ],
)
def test_a_condition_that_the_loop_decides_is_gone(mask: Mask, head: str) -> None:
    s = _row(mask)
    text = shortened(s, "cpu")
    if head == "for k in i..i + 1:":  # one iteration is none
        assert "for k" not in after_passes(s, "cpu")["simplify_parts"]
    else:
        assert head in text
    assert (" if " in text) == ("% 3" in text)
    assert agrees(s, targets=("cpu",))


@pytest.mark.parametrize(
    "mask",
    [
        lambda k, i: te.any(k <= i, k > i + 5),
        lambda k, i: (k % 3) != 1,
        lambda k, i: k * k <= i,
    ],
)
def test_other_conditions_stay_masks(mask: Mask) -> None:
    s = _row(mask)
    text = shortened(s, "cpu")
    assert "for k in 0..40:" in text and " if " in text
    assert agrees(s, targets=("cpu",))


II, KK = Axis("i"), Axis("k", AxisKind.REDUCE)
A, B, C = buffer("A", 16), buffer("B", 8), buffer("C", 8)
X, Y = buffer("x", scope=Scope.LOCAL), buffer("y", scope=Scope.LOCAL)
SUM = reducer("+")


def _fold(target: Any, mask: Any) -> Accumulate:
    return Accumulate((target,), (), SUM, (load(A, KK),), mask)


def _kernel(body: Stmt, masks_decide: bool = False) -> Func:
    """x and y start at 0, `body` runs for k in 0..16, then they are stored."""
    inner = loop(KK, 16, body)
    if masks_decide:
        inner = type(inner)(inner.axis, inner.end, inner.kind, inner.body, masks_decide=True)
    ends = (Store(B, (II,), load(X)), Store(C, (II,), load(Y)))
    parts = Seq((Store(X, (), float32(0)), Store(Y, (), float32(0)), inner, *ends))
    return func("main", (A, B, C), loop(II, 8, Allocate(X, Allocate(Y, parts))))


def test_several_folds_share_the_hull_of_their_ranges() -> None:
    low, high = compare("<=", KK, II), compare("<", KK, binary("+", II, 3))
    after = shorten_loops(_kernel(Seq((_fold(X, low), _fold(Y, high)))))
    text = print_func(after)
    assert "for k in 0..i + 1:" in text and "in i + 1..i + 3:" in text
    before = module((A,), (B, C), _kernel(Seq((_fold(X, low), _fold(Y, high)))).body)
    values = {A: np.arange(16, dtype=np.float32)}
    want = run(before, values)
    got = run(module((A,), (B, C), after.body), values)
    assert all((want[out] == got[out]).all() for out in (B, C))


def test_a_fold_without_a_mask_keeps_every_iteration() -> None:
    both = Seq((_fold(X, compare("<=", KK, II)), _fold(Y, None)))
    text = print_func(shorten_loops(_kernel(both)))
    assert "in i + 1..16:" in text


def test_another_statement_keeps_every_iteration_unless_the_masks_decide() -> None:
    note = Store(Y, (), binary("*", load(X), float32(1)))
    body = Seq((_fold(X, compare("<", KK, II)), note))
    assert "in i..16:" in print_func(shorten_loops(_kernel(body)))
    text = print_func(shorten_loops(_kernel(body, masks_decide=True)))
    assert "for k in 0..i:" in text and "16:" not in text and " if " not in text


def test_what_an_iteration_keeps_to_itself_does_not_count() -> None:
    own = buffer("own", scope=Scope.LOCAL)
    first = Seq((Store(own, (), load(A, KK)), Accumulate((X,), (), SUM, (load(own),), None)))
    masked = Accumulate((X,), (), SUM, (load(own),), compare("<", KK, II))
    text = print_func(shorten_loops(_kernel(Allocate(own, Seq((first.stmts[0], masked))))))
    assert "for k in 0..i:" in text and " if " not in text


def test_a_short_loop_of_one_statement_is_left_to_be_written_out() -> None:
    s = _row(causal, 4)
    assert "for k in 0..4:" in shortened(s, "cpu")
