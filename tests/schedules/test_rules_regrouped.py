"""What reads the results of rows at parts of an axis has the rows of what it reads: one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import rule_cases as c
from rule_cases import RuleCase
from rule_checks import interpreted

import tedsl as te
from tedsl.expr.index_arith import constant
from tedsl.ir.nodes import For, LoopKind
from tedsl.ir.visit import walk_stmts
from tedsl.tensor.tensor import Tensor

GPU = "cuda:sm_90"
EPS = 1e-5


def squares(x: Tensor, rows: tuple[int, ...], width: int, at: Callable[..., Any]) -> Tensor:
    k = te.reduce_axis((0, width), name="k")
    return te.compute(rows, lambda *i: te.sum(x[at(*i, k)] * x[at(*i, k)], axis=k), name="m")


def norm_of_each_head() -> Tensor:
    """In the shape of all heads."""
    x, g = c.p(4, 6, 48, name="x"), c.p(16, name="g")
    m = squares(x, (4, 6, 3), 16, lambda b, t, h, k: (b, t, h * 16 + k))
    return te.compute(
        (4, 6, 48), lambda b, t, d: x[b, t, d] * te.rsqrt(m[b, t, d // 16] + EPS) * g[d % 16], "y"
    )


def norm_of_flat_rows() -> Tensor:
    """Rows of one index, of what has two."""
    x = c.p(5, 6, 32, name="x")
    m = squares(x, (30,), 32, lambda r, k: (r // 6, r % 6, k))
    return te.compute((30, 32), lambda r, d: x[r // 6, r % 6, d] * te.rsqrt(m[r] + EPS), "y")


def rows_made_one() -> Tensor:
    x = c.p(5, 6, 32, name="x")
    m = squares(x, (5, 6), 32, lambda a, b, k: (a, b, k))
    return te.compute((30, 32), lambda r, d: x[r // 6, r % 6, d] / (m[r // 6, r % 6] + 1.0), "y")


def norm_of_groups() -> Tensor:
    x = c.p(3, 12, 7, 5, name="x")
    k, v, w = (te.reduce_axis((0, n), name=s) for n, s in zip((4, 7, 5), "kvw", strict=True))
    m = te.compute(
        (3, 3), lambda n, g: te.sum(x[n, g * 4 + k, v, w], axis=(k, v, w)) / 140.0, name="m"
    )
    return te.compute((3, 12, 7, 5), lambda n, d, v, w: x[n, d, v, w] - m[n, d // 4], "y")


def greatest_of_parts() -> Tensor:
    """A reduction of parts of rows that the statistics of each whole row change first."""
    x = c.p(6, 48, name="x")
    m = squares(x, (6,), 48, lambda i, k: (i, k))
    j = te.reduce_axis((0, 8), name="j")
    return te.compute(
        (6, 6), lambda i, b: te.max(x[i, b * 8 + j] * te.rsqrt(m[i] + EPS), axis=j), name="y"
    )


def greatest_of_flat_parts() -> Tensor:
    x = c.p(6, 48, name="x")
    m = squares(x, (6,), 48, lambda i, k: (i, k))
    j = te.reduce_axis((0, 8), name="j")
    return te.compute(
        (36,),
        lambda r: te.max(x[r // 6, r % 6 * 8 + j] * te.rsqrt(m[r // 6] + EPS), axis=j),
        name="y",
    )


def product_of_every_second(places: int) -> Callable[[], Tensor]:
    """Two products, whose results alternate along an axis, the last alone where it is odd."""

    def made() -> Tensor:
        x, w, b = c.p(3, 32, 16, name="x"), c.p(2, 16, 16, name="w"), c.p(16, name="b")
        k, half = te.reduce_axis((0, 16), name="k"), -(-places // 2)
        y = te.compute(
            (3, 2, half, 16), lambda n, a, q, j: te.sum(x[n, q, k] * w[a, k, j], axis=k), name="m"
        )
        return te.compute(
            (3, 16, places),
            lambda n, j, i: te.maximum(y[n, i % 2, i // 2, j] + b[j], 0.0),
            name="y",
        )

    return made


def products_as_one_matrix() -> Tensor:
    """The rows of several products, one after the other."""
    x, w = c.p(3, 32, 16, name="x"), c.p(3, 16, 32, name="w")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute((3, 32, 32), lambda b, i, j: te.sum(x[b, i, k] * w[b, k, j], axis=k), name="m")
    return te.compute((96, 32), lambda i, j: y[i // 32, i % 32, j] * 2.0, name="y")


def product_whose_columns_are_places() -> Tensor:
    """Four columns are the places of a square."""
    x, w = c.p(12, 10, 16, name="x"), c.p(16, 32, name="w")
    k = te.reduce_axis((0, 16), name="k")
    y = te.compute((12, 10, 32), lambda h, v, j: te.sum(x[h, v, k] * w[k, j], axis=k), name="m")

    def at(i: Any, h: Any, v: Any) -> Any:
        return y[h // 2, v // 2, (i * 2 + h % 2) * 2 + v % 2]

    return te.compute((8, 24, 20), lambda i, h, v: at(i, h, v) * 2.0, name="y")


CASES = {
    "norm of each head": norm_of_each_head,
    "norm of flat rows": norm_of_flat_rows,
    "rows made one": rows_made_one,
    "norm of groups": norm_of_groups,
    "greatest of parts": greatest_of_parts,
    "greatest of flat parts": greatest_of_flat_parts,
    "products as one matrix": products_as_one_matrix,
    "product of every second": product_of_every_second(64),
    "product of every second, an odd number": product_of_every_second(63),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", [GPU, "cpu"])
def test_one_kernel(name: str, target: str) -> None:
    schedule = interpreted(RuleCase(name, CASES[name]), target)
    assert len(te.lower(schedule, target).funcs) == 1, f"{schedule}"


def test_parts_of_what_is_folded_are_no_rows() -> None:
    """Not of the reduction that folds them."""
    x = c.p(4, 12, name="x")
    k, j = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, 12), name="j")
    m = te.compute((12,), lambda i: te.sum(x[k, i], axis=k), name="m")
    case = RuleCase(
        "one", lambda: te.compute((), lambda: te.sum(m[(j - 1) % 12], axis=j), name="y")
    )
    interpreted(case, GPU)


def test_columns_that_are_places_may_be_stored_there() -> None:
    case = RuleCase("product whose columns are places", product_whose_columns_are_places)
    assert len(te.lower(interpreted(case, GPU), GPU).funcs) == 2
    assert len(te.lower(interpreted(case, GPU, {"y.regrouped": True}), GPU).funcs) == 1


@pytest.mark.parametrize("name", CASES)
def test_apart_where_that_is_asked_for(name: str) -> None:
    schedule = te.schedule_for(CASES[name](), GPU)
    names = [knob.name for knob in schedule.knobs if knob.name.endswith("regrouped")]
    interpreted(RuleCase(name, CASES[name]), GPU, dict.fromkeys(names, False))


def test_statistics_are_computed_once_for_each_row() -> None:
    """Not for each part of a row: programs have rows, and never parts of one."""
    x = c.p(300, 4096, name="x")
    m = squares(x, (300,), 4096, lambda i, k: (i, k))
    j = te.reduce_axis((0, 64), name="j")
    y = te.compute((300, 64), lambda i, b: te.max(x[i, b * 64 + j] * m[i], axis=j), name="y")
    (func,) = te.lower(te.schedule_for(y, GPU), GPU).funcs
    loops = [loop for loop in walk_stmts(func.body) if isinstance(loop, For)]
    programs = [loop.extent for loop in loops if loop.kind is LoopKind.PROGRAM]
    assert [constant(extent) for extent in programs] == [300]


def test_rows_whose_parts_are_folded_stay_rows() -> None:
    """What sums every second row of a norm has no rows of its own, of which there would be two."""
    x = c.p(40, 300, 24, name="x")
    m = squares(x, (40, 300), 24, lambda a, b, k: (a, b, k))
    j = te.reduce_axis((0, 150), name="j")

    def term(a: Any, b: Any, d: Any) -> Any:
        return x[a, j * 2 + b, d] * te.rsqrt(m[a, j * 2 + b] + EPS)

    y = te.compute((40, 2, 24), lambda a, b, d: te.sum(term(a, b, d), axis=j), name="y")
    schedule = te.schedule_for(y, GPU)
    assert [constant(extent) for extent in schedule[m].op.output(0).shape] == [40, 300]
