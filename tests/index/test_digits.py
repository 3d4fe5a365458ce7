"""Inverses of index maps, against every point of small boxes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import product
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import event, given, settings

import tedsl as te
from tedsl.expr.nodes import Axis, Expr
from tedsl.index.digits import collision, invert, negative
from tedsl.index.evaluate import evaluate_int
from tedsl.index.facts import Facts
from tedsl.tensor.axis import data_axis


def box(*extents: int, wide: Collection[int] = ()) -> tuple[Axis, ...]:
    """Axes of these extents, those at the places `wide` counted in 64 bits."""
    types = ["int64" if n in wide else "int32" for n in range(len(extents))]
    sizes = [te.const(extent, dtype) for extent, dtype in zip(extents, types, strict=True)]
    return tuple(data_axis(f"i{n}", size) for n, size in enumerate(sizes))


def inverted(axes: Sequence[Axis], indices: Sequence[Expr]) -> Any:
    return invert(axes, indices, [f"l{n}" for n in range(len(indices))], Facts.EMPTY)


def check(axes: Sequence[Axis], indices: Sequence[Expr], extents: Sequence[int]) -> bool:
    """An inverse is right at every point; without one, says whether the map is injective."""
    images: dict[tuple[int, ...], tuple[int, ...]] = {}
    injective = True
    for point in product(*(range(extent) for extent in extents)):
        values: dict[Expr, int] = dict(zip(axes, point, strict=True))
        image = tuple(evaluate_int(index, values) for index in indices)
        injective &= image not in images
        images[image] = point
    found = inverted(axes, indices)
    if found is None:
        return False
    assert injective
    sizes = [evaluate_int(extent, {}) for extent in found.extents]
    assert set(images) <= set(product(*(range(size) for size in sizes)))
    for image in product(*(range(size) for size in sizes)):
        values = dict(zip(found.axes, image, strict=True))
        inside = all(evaluate_int(condition, values) for condition in found.conditions)
        assert inside == (image in images), (image, found.conditions)
        if inside:
            back = tuple(evaluate_int(found.values[axis], values) for axis in axes)
            assert back == images[image]
    return True


ACCEPTED: list[tuple[Sequence[int], Callable[..., Sequence[Any]]]] = [
    ((5, 7), lambda i, j: (j, i)),
    ((9, 8), lambda i, j: (i // 4, j // 8, i % 4, j % 8)),
    ((9, 8), lambda i, j: (j % 2, i // 4 // 2, j // 2, i // 4 % 2, i % 4)),
    ((9, 7), lambda i, j: (i * 7 + j,)),
    ((9, 7), lambda i, j: (i * 10 + j, 3)),
    ((9, 7), lambda i, j: ((i * 7 + j) // 8, (i * 7 + j) % 8)),
    ((9, 7), lambda i, j: ((i * 7 + j) // 8 // 4, (i * 7 + j) % 8, (i * 7 + j) // 8 % 4)),
    ((9, 7), lambda i, j: (j + 3, 8 - i)),
    ((9, 7), lambda i, j: ((i + 3) // 4, 6 - j, (i + 3) % 4)),
    ((8, 6), lambda i, j: (i // 4 * 24 + j * 4 + i % 4,)),
    ((9,), lambda i: (i * 2,)),
    ((9,), lambda i: (i, i % 4)),
    ((1, 5), lambda i, j: (j,)),
    ((0, 5), lambda i, j: (j // 2, i, j % 2)),
    ((4, 3, 5), lambda i, j, k: (k * 12 + (i * 3 + j),)),
]


@pytest.mark.parametrize("wide", ["", "0", "1", "2", "01", "02", "12", "012"])
@pytest.mark.parametrize("case", range(len(ACCEPTED)))
def test_accepted(case: int, wide: str) -> None:
    """Whichever axes are counted in 64 bits: the same new points are images."""
    extents, fn = ACCEPTED[case]
    axes = box(*extents, wide=[int(n) for n in wide])
    indices = [te.const(0, "int32") + each for each in fn(*axes)]
    assert check(axes, indices, extents)
    narrow = box(*extents)
    plain = inverted(narrow, [te.const(0, "int32") + each for each in fn(*narrow)])
    assert len(inverted(axes, indices).conditions) == len(plain.conditions)


def test_collisions() -> None:
    (i, j) = box(9, 7)
    clash = collision((i, j), [i + j])
    assert clash is not None and clash[2] == (1,)
    assert inverted((i, j), [i + j]) is None
    assert collision((i, j), [i * 7 + j]) is None
    (large,) = box(100_000)
    clash = collision((large,), [large % 50_000])
    assert clash is not None and clash[2] == (0,)
    below = negative((i, j), [i - 1, j])
    assert below is not None and below[1] == (-1, 0)


def test_symbolic_sizes() -> None:
    n, m = te.size_var("n"), te.size_var("m")
    i, j = data_axis("i", n), data_axis("j", m)
    for indices in ([i // 4, j, i % 4], [i * m + j], [j, n - 1 - i], [j * n + i]):
        found = inverted((i, j), indices)
        assert found is not None
        assert len(found.conditions) == (indices[0] is not i and len(indices) == 3)
    clash = collision((i, j), [i % 4, j])
    assert clash is not None and clash[3] == {"n": 6, "m": 6}


@settings(max_examples=200)
@given(st.data())
def test_whatever_is_inverted_is_right(data: st.DataObject) -> None:
    extents = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    axes = box(*extents, wide=data.draw(st.sets(st.integers(0, 2))))

    def index(depth: int) -> Expr:
        if depth == 0:
            return data.draw(st.sampled_from(axes)) + 0
        number = data.draw(st.sampled_from((1, 2, 3, 4, 6, 8)))
        inner = index(depth - 1)
        match data.draw(st.sampled_from(("//", "%", "*", "+", "add", "-"))):
            case "//":
                return inner // number
            case "%":
                return inner % number
            case "*":
                return inner * number
            case "+":
                return inner + number
            case "-":
                return number - inner
            case _:
                return inner + index(depth - 1)

    count = data.draw(st.integers(1, 3))
    indices = [index(data.draw(st.integers(0, 3))) for _ in range(count)]
    event("inverted" if check(axes, indices, extents) else "not inverted")
