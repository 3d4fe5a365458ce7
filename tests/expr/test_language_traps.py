"""What new users write first and expect to work, or to be told what to write."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import ExprError


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [("int8", "int32"), ("int16", "int32"), ("uint8", "uint32"), ("uint16", "uint32")],
)
def test_sums_and_products_of_narrow_integers_are_wide(narrow: str, wide: str) -> None:
    a = te.placeholder((3, 64), narrow, name="a")
    k = te.reduce_axis((0, 64), name="k")
    total = te.compute((3,), lambda i: te.sum(a[i, k] * a[i, k], axis=k), name="total")
    plain = te.compute((3,), lambda i: te.prod(a[i, k], axis=k), name="plain")
    asked = te.compute((3,), lambda i: te.sum(a[i, k], axis=k, dtype=narrow), name="asked")
    assert (total.dtype, plain.dtype, asked.dtype) == (wide, wide, narrow)
    values = np.full((3, 64), 100, narrow)
    found, wrapped = te.evaluate([total, asked], {a: values})
    assert found.tolist() == [640_000] * 3
    assert np.array_equal(wrapped, values.sum(axis=1, dtype=narrow))


def test_a_product_of_bytes_does_not_wrap() -> None:
    a, b = (
        te.placeholder(shape, "int8", name="ab"[n]) for n, shape in enumerate([(2, 64), (64, 3)])
    )
    for made in (te.nn.matmul(a, b), a @ b):
        assert made.dtype == "int32"
        (found,) = te.evaluate([made], {a: np.full((2, 64), 100, np.int8),
                                        b: np.full((64, 3), -100, np.int8)})  # fmt: skip
        assert found.tolist() == [[-640_000] * 3] * 2


def test_constant_extents_are_ints() -> None:
    x = te.placeholder((4, 5), name="x")
    assert int(x.shape[0]) == 4 and list(range(x.shape[1])) == [0, 1, 2, 3, 4]
    assert np.zeros(x.shape).shape == (4, 5)
    n = te.var("n")
    for wrong in (n, x[0, 0], n + 1, te.const(1.0)):
        for use in (int, range, lambda each: [1, 2][each]):
            with pytest.raises(ExprError, match="has no value while the computation is being"):
                use(wrong)
        with pytest.raises(TypeError, match="has no value"):
            range(wrong)
        with pytest.raises(ValueError, match="has no value"):
            int(wrong)  # no TypeError, in whose place "%d" % wrong has one of Python's own


@pytest.mark.parametrize(
    ("left", "right"),
    [((4, 5), (5, 6)), ((5,), (5, 6)), ((4, 5), (5,)), ((5,), (5,)), ((2, 4, 5), (2, 5, 6)),
     ((5,), (2, 5, 6)), ((2, 4, 5), (5,))],
)  # fmt: skip
def test_at_is_the_product_of_numpy(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    arrays = [random.integers(-3, 4, shape).astype(np.float32) for shape in (left, right)]
    a, b = (te.placeholder(x.shape, name=name) for x, name in zip(arrays, "ab", strict=True))
    (found,) = te.evaluate([a @ b], {a: arrays[0], b: arrays[1]})
    assert np.array_equal(found, arrays[0] @ arrays[1])


def test_at_refuses_what_is_no_product() -> None:
    x: Any = te.placeholder((4, 5), name="x")
    for make, match in (
        (lambda: x @ x, "the inner extents are 5 and 4"),
        (lambda: x @ np.ones((5, 2)), r"@: a factor is array(.|\n)*te.placeholder"),
        (lambda: np.ones((2, 4)) @ x, r"@: a factor is array(.|\n)*te.placeholder"),
        (lambda: x @ 3, r"a factor is 3 \(int\)"),
    ):
        with pytest.raises(ExprError, match=match):
            make()


def test_silu_of_elements_and_tensors() -> None:
    x = te.placeholder((4,), name="x")
    by_hand = te.compute((4,), lambda i: te.silu(x[i]), name="by_hand")
    values = np.linspace(-2, 2, 4, dtype=np.float32)
    found, whole = te.evaluate([by_hand, te.silu(x)], {x: values})
    np.testing.assert_allclose(found, values / (1 + np.exp(-values)), rtol=1e-6)
    assert np.array_equal(found, whole)
    with pytest.raises(ExprError, match=r"x is x\[0\](.|\n)*write te.silu for one element"):
        te.nn.silu(x[0])  # pyright: ignore[reportArgumentType]


def test_positions_of_extremes_of_tensors_and_of_expressions() -> None:
    x, y = (te.placeholder((3, 4), name=name) for name in "xy")
    k, m = te.reduce_axis((0, 4), name="k"), te.reduce_axis((0, 3), name="m")
    hits = te.compute(
        (3,), lambda i: te.argmax(x[i, k], axis=k) == te.argmin(y[i, k], axis=k), name="hits"
    )
    all_of_it = te.compute((1,), lambda i: te.argmax(x[m, k], axis=[m, k]), name="all_of_it")
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((3, 4)).astype(np.float32) for _ in "ab")
    found = te.evaluate([hits, te.argmax(x, 1), te.argmin(x), all_of_it], {x: a, y: b})
    assert np.array_equal(found[0], a.argmax(axis=1) == b.argmin(axis=1))
    assert np.array_equal(found[1], a.argmax(axis=1)) and found[2] == a.argmin()
    assert found[3] == a.argmax() and found[1].dtype == np.int64
    with pytest.raises(ExprError, match="argmax: the axis is None"):
        te.argmax(x[0, k])


def test_dtypes_by_other_names() -> None:
    def of(dtype: object) -> DType:
        return te.placeholder((2,), dtype, name="x").dtype  # pyright: ignore[reportArgumentType]

    for name, meant in (("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"),
                        ("f32", "float32"), ("fp64", "float64"), ("i8", "int8"), ("u16", "uint16"),
                        ("e4m3", "float8_e4m3fn"), (np.float32, "float32"),
                        (np.dtype("int16"), "int16"), (te.bfloat16, "bfloat16")):  # fmt: skip
        assert of(name) == meant
    with pytest.raises(ExprError, match=r"'float23'(.|\n)*did you mean float16|float32"):
        of("float23")
    torch = pytest.importorskip("torch")
    assert of(torch.bfloat16) == "bfloat16" and of(torch.int64) == "int64"


def test_functions_and_scalars_of_numpy() -> None:
    x: Any = te.placeholder((3,), name="x")
    i = te.var("i")
    values = np.array([0.5, -1.0, 2.0], np.float32)
    made = [np.exp(x), np.float32(2) * x, np.float32(2) - x, np.maximum(x, 0), np.arctan(x)]
    wanted = [np.exp(values), 2 * values, 2 - values, np.maximum(values, 0), np.arctan(values)]
    for found, want in zip(te.evaluate(made, {x: values}), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-6)
    assert str(np.int64(3) + i) == "3 + i" and str(np.int32(3) < i) == "i > 3"
    for wrong in (lambda: np.cbrt(x), lambda: np.add(x, x, out=None, where=True),
                  lambda: np.add.reduce(x), lambda: x[0] * np.ones(2)):  # fmt: skip
        with pytest.raises(ExprError, match=r"np\.\w+ is given "):
            wrong()


def test_the_reduce_axes_of_a_stage_that_was_split_off() -> None:
    x = te.placeholder((4, 8), name="x")
    k = te.reduce_axis((0, 8), name="k")
    mean = te.compute((4,), lambda i: te.sum(x[i, k], axis=k) / 8, name="mean")
    s = te.create_schedule(mean)
    with pytest.raises(IndexError, match=r"mean has no reduce axis\n  do .*s\['mean.red'\]"):
        s[mean].op.reduce_axis[-1]
    assert not s[mean].op.reduce_axis and s[mean].op.reduce_axis == ()
    assert s["mean.red"].op.reduce_axis == (k,) or len(s["mean.red"].op.reduce_axis) == 1
