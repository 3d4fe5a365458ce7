"""Philox against its published answers and a small implementation in numpy; floats; dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nn_values import DTYPES, Inputs

import tedsl as te
from tedsl.expr.nodes import Const
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import PlaceholderOp

nn = te.nn
ONES = 0xFFFFFFFF
PI: dict[str, Any] = {
    "counter": (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
    "key": (0xA4093822, 0x299F31D0),
}
KNOWN: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (PI["counter"], PI["key"], (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]
"""Counter, key and answer, as published with the generator (Random123, kat_vectors)."""


def philox(counter: Any, key: Any) -> Any:
    """The generator once more, over whole arrays: `[..., 4]` and `[..., 2]`, in uint64."""
    c, k = (np.atleast_2d(np.array(given, "u8")) for given in (counter, key))
    for _ in range(10):
        first, second = c[..., 0] * 0xD2511F53, c[..., 2] * 0xCD9E8D57
        c = np.stack(
            [
                (second >> 32) ^ c[..., 1] ^ k[..., 0],
                second & ONES,
                (first >> 32) ^ c[..., 3] ^ k[..., 1],
                first & ONES,
            ],
            -1,
        )
        k = (k + np.array([0x9E3779B9, 0xBB67AE85], "u8")) & ONES
    return c.reshape(np.shape(counter))


def words(shape: tuple[int, ...], seed: int, offset: int = 0) -> Any:
    """What each element draws: `[*shape, 4]`."""
    number = np.arange(int(np.prod(shape)), dtype="u8").reshape(shape)
    zero = np.zeros_like(number)
    halves = [np.uint64(offset >> s & ONES) for s in (0, 32)]
    counter = np.stack([number & ONES, number >> 32, zero + halves[0], zero + halves[1]], -1)
    return philox(counter, np.array([seed >> s & ONES for s in (0, 32)], "u8"))


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(
    counter: tuple[int, ...], key: tuple[int, ...], answer: tuple[int, ...]
) -> None:
    assert philox(counter, key).tolist() == list(answer)
    folded = nn.philox(counter, key)
    assert all(isinstance(word, Const) for word in folded)
    assert [word.value for word in folded if isinstance(word, Const)] == list(answer)


def drawn(n: int | te.Var) -> te.Tensor:
    """All four words of philox, from a counter and a key in memory."""
    c, k = te.placeholder((n, 4), "uint32", name="c"), te.placeholder((n, 2), "uint32", name="k")

    def element(i: te.Axis, j: te.Axis) -> te.Expr:
        made = nn.philox([c[i, w] for w in range(4)], [k[i, w] for w in range(2)])
        result = made[3]
        for w in (2, 1, 0):
            result = te.select(j == w, made[w], result)
        return result

    return te.compute((n, 4), element, name="drawn")


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_the_same_bits_everywhere(target: str) -> None:
    kernel = te.build(drawn(te.var("n") if target == "cpu" else 40), target=target, cache=False)
    random = np.random.default_rng(1)
    counters = [*(k[0] for k in KNOWN), *random.integers(0, 1 << 32, (37, 4)).tolist()]
    keys = [*(k[1] for k in KNOWN), *random.integers(0, 1 << 32, (37, 2)).tolist()]
    values = {"c": np.array(counters, "u4"), "k": np.array(keys, "u4")}
    found: Any = kernel(*(values[buffer.name] for buffer in kernel.module.inputs))
    np.testing.assert_array_equal(found, philox(counters, keys))
    np.testing.assert_array_equal(found[:3], [answer for _, _, answer in KNOWN])


@pytest.mark.parametrize("seed", [0, 7, 1 << 40, (1 << 64) - 1, -1, -(1 << 35)])
def test_seeds_and_offsets(seed: int) -> None:
    """As a number, an expression or a tensor, of any integer dtype that holds it."""
    shape, offset = (3, 5), (1 << 33) + 5
    wanted = words(shape, seed % (1 << 64), offset)[..., 0]
    given: list[tuple[Any, dict[te.Tensor, Any]]] = [(seed, {})]
    if -(1 << 63) <= seed < 1 << 63:
        tensor = te.placeholder((), "int64", name="seed")
        given += [(tensor, {tensor: np.array(seed)}), (te.const(seed, "int64"), {})]
    if -(1 << 31) <= seed < 1 << 31:
        small = te.placeholder((), "int32", name="seed")
        given.append((small, {small: np.array(seed, "i4")}))
    for each, values in given:
        (found,) = te.evaluate(nn.random_bits(shape, each, offset), values)
        assert found.dtype == np.uint32
        np.testing.assert_array_equal(found, wanted)
    moved = te.placeholder((), "uint64", name="offset")
    (found,) = te.evaluate(nn.random_bits(shape, seed, moved), {moved: np.array(offset, "u8")})
    np.testing.assert_array_equal(found, wanted)


FRACTIONS = {"float16": 11, "bfloat16": 8, "float32": 24}


@pytest.mark.parametrize("dtype", DTYPES)
def test_uniform(dtype: str) -> None:
    shape = (50, 40)
    made = nn.random_uniform(shape, 3, 9, dtype)
    assert made.dtype == dtype
    (found,) = te.evaluate(made, {})
    found = found.astype("f8")
    drawn = words(shape, 3, 9)
    if dtype == "float64":
        wanted = ((drawn[..., 0] << 32 | drawn[..., 1]) >> 11) * 2.0**-53
    else:
        bits = FRACTIONS[dtype]
        wanted = (drawn[..., 0] >> (32 - bits)) * 2.0**-bits
    np.testing.assert_array_equal(found, wanted)
    assert found.min() >= 0 and found.max() < 1
    assert abs(found.mean() - 0.5) < 4 * 12**-0.5 * 2000**-0.5  # four standard deviations
    assert abs(found.std() - 12**-0.5) < 0.02


def test_symbolic_and_empty_shapes() -> None:
    """The number of an element does not depend on whether its shape is known."""
    n, m = te.var("n"), te.var("m", "int64")
    (found,) = te.evaluate(nn.random_bits((n, m), 5), {}, {n: 3, m: 4})
    np.testing.assert_array_equal(found, words((3, 4), 5)[..., 0])
    assert te.evaluate(nn.random_bits((0, 4), 5), {})[0].shape == (0, 4)
    assert te.evaluate(nn.random_bits((), 5), {})[0] == words((1,), 5)[0, 0]
    np.testing.assert_array_equal(te.evaluate(nn.random_bits(3, 5), {})[0], words((3,), 5)[:, 0])


@pytest.mark.cpu
def test_numbers_beyond_one_word() -> None:
    """Elements of a tensor of 2^33 elements, which is inlined where few of them are read."""
    width = 1 << 31
    bits = nn.random_bits((4, width), 5)
    few = te.compute((4, 2), lambda i, j: bits[i, j.astype("int64") + (width - 2)], name="few")
    s = te.create_schedule(few)
    s[bits].compute_inline()
    found: Any = te.build(s, target="cpu", cache=False)()
    number = np.array([[i * width + width - 2 + j for j in range(2)] for i in range(4)], "u8")
    zero = np.zeros_like(number)
    counter = np.stack([number & ONES, number >> 32, zero, zero], -1)
    np.testing.assert_array_equal(found, philox(counter, np.array([5, 0], "u8"))[..., 0])


# Dropout ----------------------------------------------------------------------------------------


def keeps(shape: tuple[int, ...], p: float, seed: int, offset: int) -> Any:
    return (words(shape, seed, offset)[..., 0] >> 8) * 2.0**-24 >= p


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.0, 0.25, 0.9, 1.0])
def test_dropout(p: float, dtype: str) -> None:
    given = Inputs(dtype)
    x = given.normal(30, 20)
    kept = keeps((30, 20), p, 11, 4)
    assert abs(kept.mean() - (1 - p)) < 0.05
    scale = 1 / (1 - p) if p < 1 else 0
    given.check(nn.dropout(x, p, 11, 4), np.where(kept, given.wide(x) * scale, 0))


def test_what_is_dropped_is_zero_whatever_it_was() -> None:
    given = Inputs()
    x = given.given(np.full((8, 8), np.inf, "f4"))
    np.testing.assert_array_equal(
        given.found(nn.dropout(x, 0.5, 1)), np.where(keeps((8, 8), 0.5, 1, 0), np.inf, 0)
    )
    assert not given.found(nn.dropout(x, 1.0, 1)).any()


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_the_gradient_computes_the_mask_again(target: str) -> None:
    shape, p = (6, 16), 0.3
    x, seed = te.placeholder(shape, name="x"), te.placeholder((), "int64", name="seed")
    h = te.placeholder(shape, name="h")
    y = nn.dropout(x, p, seed, offset=2)
    (by_x,) = te.gradient(y, [x], h)
    assert {op.name for op in operations([by_x]) if isinstance(op, PlaceholderOp)} == {"seed", "h"}
    assert len(operations([by_x])) == 3, "no stage holds a mask"
    kernel = te.build(by_x, target=target, cache=False)
    values = {"h": np.random.default_rng(1).standard_normal(shape).astype("f4")}
    for number in (5, -9):
        values["seed"] = np.array(number)
        found: Any = kernel(*(values[buffer.name] for buffer in kernel.module.inputs))
        mask = keeps(shape, p, number % (1 << 64), 2)
        np.testing.assert_allclose(found, np.where(mask, values["h"] / (1 - p), 0), rtol=1e-6)


X = te.placeholder((3, 4), name="x")
WHOLE = te.placeholder((3,), "int64", name="i")
NUMBER = te.placeholder((), name="f")
FRACTION: Any = 1.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.philox((0, 0, 0), (0, 0)), r"philox: the counter is[\s\S]*4 words of uint32"),
        (lambda: nn.philox((0,) * 4, (te.const(1), 0)), r"the key is \(int32, uint32\)"),
        (lambda: nn.random_bits((3,), FRACTION), r"random_bits: seed is 1\.5 \(float\)"),
        (lambda: nn.random_bits((3, -2), 1), r"random_bits: extent 1 is -2, below 0"),
        (lambda: nn.random_bits((3,), WHOLE), r"i has 1 dimensions, one number is needed"),
        (lambda: nn.random_bits((3,), 1, NUMBER), r"f is float32, not an integer"),
        (lambda: nn.random_uniform((3,), te.const(1.0)), r"seed is 1\.0 \(float32\)"),
        (lambda: nn.random_uniform((3,), 1, dtype="int32"), r"dtype is int32[\s\S]*float16, bfl"),
        (lambda: nn.dropout(X, 1.5, 1), r"dropout: p is 1\.5[\s\S]*0\.0 \.\. 1\.0"),
        (lambda: nn.dropout(WHOLE, 0.5, 1), r"dropout: i is int64, not a float"),
    ],
)
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(te.ExprError, match=message):
        call()
