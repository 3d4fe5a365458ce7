"""Axes of one element are read at any index that is 0: rules take them, and fuse as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tedsl as te
from tedsl.schedules import schedule_for
from tedsl.tensor.tensor import Tensor

Term = Callable[..., Any]


def _product() -> tuple[tuple[int, ...], int, Term]:
    a = te.placeholder((256, 128), "float16", name="a")
    b = te.placeholder((128, 256), "float16", name="b")
    return (256, 256), 128, lambda k, i, j: a[i, k] * b[k, j]


def _pairs() -> tuple[tuple[int, ...], int, Term]:
    a, b = (te.placeholder((512, 64), "int32", name=n) for n in "ab")
    return (512, 512), 64, lambda k, i, j: te.abs(a[i, k] - b[j, k])


def _rows() -> tuple[tuple[int, ...], int, Term]:
    a = te.placeholder((2, 100_000), name="a")
    return (2,), 100_000, lambda k, i: a[i, k]


def _columns() -> tuple[tuple[int, ...], int, Term]:
    a = te.placeholder((1000, 512), name="a")
    return (512,), 1000, lambda k, i: a[k, i]


def _prefixes() -> tuple[tuple[int, ...], int, Term]:
    a = te.placeholder((64, 300), name="a")
    return (64, 300), 300, lambda k, i, t: te.select(k <= t, a[i, k], 0.0)


KINDS = (_product, _pairs, _rows, _columns, _prefixes)


def _read_at(kind: Any, place: int, index: Callable[[Any], Any]) -> Tensor:
    """A fold whose result has an axis of one element at a place, and what reads it there."""
    shape, size, term = kind()
    k = te.reduce_axis((0, size), name="k")
    fold = te.compute(
        (*shape[:place], 1, *shape[place:]),
        lambda *i: te.sum(term(k, *i[:place], *i[place + 1 :]), axis=k),
        name="fold",
    )
    return te.compute(
        fold.shape,
        lambda *i: te.maximum(fold[(*i[:place], index(i[place]), *i[place + 1 :])], 0),
        name="y",
    )


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_axis_of_one_element_is_read_at_what_is_0(kind: Any, target: str) -> None:
    for place in range(len(kind()[0]) + 1):
        plain, turned = (
            te.lower(schedule_for([_read_at(kind, place, index)], target), target)
            for index in (lambda i: i, lambda i: 0 - i)
        )
        assert len(turned.funcs) == len(plain.funcs), place
