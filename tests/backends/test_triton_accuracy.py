"""Cheaper forms of functions: used where the dtype of what is stored hides their error, and within
the bounds that `backends/triton/math` states."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import triton_irs
from window_parts import few_products

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.expr.numerics import numpy_dtype
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target

F, B, H = "float32", "bfloat16", "float16"
N = 4096
U = 2.0**-24
Function = Callable[[Any], Any]


def stored(function: Function, dtype: str) -> te.Tensor:
    """function(x) of float32 numbers, rounded to `dtype`."""
    x = te.placeholder((N,), F, name="x")
    return te.compute((N,), lambda i: function(x[i]).astype(dtype), name="y")


def source(tensors: te.Tensor | list[te.Tensor]) -> str:
    target = Target.parse("cuda:sm_90")
    return emit(lower(schedule_for(tensors, target).plan, target), target).source


def computed(function: Function, dtype: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    kernel = te.build(stored(function, dtype), "triton-interpret")
    return np.asarray(kernel(x)).astype(np.float64)


def numbers(low: float, high: float) -> np.ndarray[Any, Any]:
    return np.linspace(low, high, N).astype(np.float32)


def share(dtype: str) -> float:
    """The relative rounding error of a dtype."""
    return {B: 2.0**-8, H: 2.0**-11, F: U}[dtype]


@pytest.mark.parametrize("scale", [1.5, -0.3, 0.08838834764831845])
def test_exp_of_a_product_takes_log2_e_into_its_factor(scale: float) -> None:
    assert "tl.exp2(x_tile * " in source(stored(lambda x: te.exp(x * scale), F))
    x = numbers(-40.0, 40.0)
    got = computed(lambda x: te.exp(x * scale), F, x)
    want = np.exp(x.astype(np.float64) * np.float32(scale))
    assert np.all(np.abs(got / want - 1.0) <= (np.abs(x * scale) + 2.0) * 2.0 * U)


def test_exp_of_a_number_stays_exp() -> None:
    assert "tl.exp(x_tile)" in source(stored(te.exp, B))


@pytest.mark.parametrize(
    ("function", "form", "plain"),
    [
        (te.tanh, "fast_tanh", "libdevice.tanh"),
        (te.sigmoid, "fast_sigmoid", "tl.exp2"),
        (lambda x: x * te.sigmoid(x), "fast_sigmoid", "tl.exp2"),
        (lambda x: te.exp(te.tanh(x) * 50.0 - 50.0), "bounded_tanh", "libdevice.tanh"),
        (lambda x: x * (1.0 + te.tanh(x)), "bounded_tanh", "libdevice.tanh"),
        (lambda x: x * (1.0 + te.erf(x)), "bounded_erf", "tl.erf"),
    ],
)
def test_bfloat16_results_get_the_cheaper_form(function: Function, form: str, plain: str) -> None:
    assert f"{form}(x_tile" in source(stored(function, B))
    wide = source(stored(function, F))
    assert form not in wide
    assert plain in wide


def test_a_tanh_of_float16_is_more_accurate_than_one_instruction() -> None:
    assert "libdevice.tanh" in source(stored(te.tanh, H))


def test_what_is_stored_twice_has_the_accuracy_of_the_wider_dtype() -> None:
    x = te.placeholder((N,), F, name="x")
    both = te.compute((N,), lambda i: (te.tanh(x[i]), te.tanh(x[i]).astype(B)), name="y")
    text = source(list(both))
    assert "libdevice.tanh" in text
    assert "fast_tanh(" not in text.partition("y_kernel")[2]


def test_what_decides_is_exact() -> None:
    chosen = stored(lambda x: te.select(te.tanh(x) > 0.5, x, 0.0), B)
    assert "libdevice.tanh" in source(chosen)
    rounded = stored(lambda x: te.floor(te.sigmoid(x) * 100.0), B)
    assert "fast_sigmoid" not in source(rounded)


def test_errors_that_a_loop_scales_up_are_not_allowed() -> None:
    """Of h <- h / 2 + tanh(x) an error becomes no larger, of h <- 1.1 h + tanh(x) without end."""
    for factor, form in ((0.5, "bounded_tanh("), (1.1, "libdevice.tanh(")):
        text = emit(triton_irs.scaled_steps(4, 40, factor), "cuda:sm_90").source
        assert form in text.partition("scaled")[2], factor


@pytest.mark.parametrize("dtype", [B, H])
@pytest.mark.parametrize(
    ("function", "exact", "absolute"),
    [
        (te.sigmoid, lambda x: 1.0 / (1.0 + np.exp(-x)), 2.0**-120),
        (te.tanh, np.tanh, 2.0**-120),
        (lambda x: 1.0 + te.tanh(x), lambda x: 1.0 + np.tanh(x), 2.0**-20),
        (lambda x: 1.0 + te.erf(x), lambda x: 1.0 + np.vectorize(math.erf)(x), 2.0**-20),
    ],
)
def test_cheaper_forms_stay_within_a_quarter_of_the_rounding(
    function: Function, exact: Function, absolute: float, dtype: str
) -> None:
    x = numbers(-9.0, 9.0)
    wide = x.astype(np.float64)
    want = np.asarray(exact(wide))
    got = computed(function, dtype, x)
    assert np.all(np.abs(got - want) <= 1.25 * share(dtype) * np.abs(want) + absolute + 2.0**-25)


@pytest.mark.parametrize(
    ("function", "ends"),
    [
        (te.tanh, (1.0, -1.0)),
        (te.sigmoid, (1.0, 0.0)),
        (te.erf, (1.0, -1.0)),
        (lambda x: 1.0 + te.erf(x), (2.0, 0.0)),
        (lambda x: 1.0 + te.tanh(x), (2.0, 0.0)),
    ],
)
def test_cheaper_forms_keep_infinities_and_nan(
    function: Function, ends: tuple[float, float]
) -> None:
    x = np.zeros(N, np.float32)
    x[:3] = [np.inf, -np.inf, np.nan]
    got = computed(function, B, x)
    assert tuple(got[:2]) == ends
    assert np.isnan(got[2])


def scores(keys: int, dtype: str, bias: bool = False) -> te.Tensor:
    """softmax(q k^T / 8 + bias) v."""
    q, k, v = (te.placeholder((1, 64, 64) if n == "q" else (1, keys, 64), B, name=n) for n in "qkv")
    more = te.placeholder((1, 1, 64, keys), F, name="bias") if bias else None
    reach = te.nn.attention(q, k, v, bias=more, scale=0.125)
    return te.cast(reach, dtype)


def test_attention_multiplies_and_adds_once_for_a_power() -> None:
    text = source(scores(256, B))
    assert "tl.exp2(" in text
    assert "* 0.18033688011112042 - " in text
    assert ", 1, max_nan) * 0.125" in text


def test_the_largest_of_products_is_the_product_of_the_largest() -> None:
    x = te.placeholder((64, 512), F, name="x")
    j = te.reduce_axis((0, 512), name="j")
    for scale, moved in ((0.3, True), (-0.3, False)):
        factor = te.const(scale, F)
        top = te.compute(
            (64,), functools.partial(lambda c, i: te.max(x[i, j] * c, axis=j), factor), name="top"
        )
        assert (f"max_nan) * {scale}" in source(top)) is moved
        data = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32)
        got = np.asarray(te.build(top, "triton-interpret")(data))
        np.testing.assert_array_equal(got, (data * np.float32(scale)).max(1))


def test_a_block_of_hidden_scores_leaves_no_nan() -> None:
    """The maximum of the first block is the lowest float then, which log2(e) must not make
    infinite."""
    q, k, v = (
        te.placeholder((1, 1, n, 32), B, name=c) for c, n in (("q", 32), ("k", 128), ("v", 128))
    )
    bias = te.placeholder((32, 128), F, name="bias")
    reach = te.nn.attention(q, k, v, bias=bias)
    kernel = te.build(
        schedule_for(reach, "triton-interpret", {"attention.bk": 32}), "triton-interpret"
    )
    rng = np.random.default_rng(1)
    given = {
        t: rng.standard_normal((1, 1, n, 32)).astype(numpy_dtype(te.DType.bfloat16))
        for t, n in (("q", 32), ("k", 128), ("v", 128))
    }
    hidden = np.zeros((32, 128), np.float32)
    hidden[:, :64] = -np.inf
    arrays = {**given, "bias": hidden}
    got = np.asarray(kernel(*(arrays[b.name] for b in kernel.module.inputs)), np.float64)
    wide = {name: a.astype(np.float64)[0, 0] for name, a in given.items()}
    weights = np.exp(wide["q"] @ wide["k"].T / np.sqrt(32) + hidden)
    want = weights / weights.sum(1, keepdims=True) @ wide["v"]
    assert np.abs(got[0, 0] - want).max() <= 2.0**-6


@pytest.mark.ptxas
def test_the_instructions_are_those_of_the_table() -> None:
    target = Target.parse("cuda:sm_90")

    def ptx(tensor: te.Tensor) -> str:
        program = emit(lower(schedule_for(tensor, target).plan, target), target)
        (info,) = compile_offline(program, "sm_90")
        return info.ptx

    assert "tanh.approx.f32" in ptx(stored(te.tanh, B))
    assert "div.approx" in ptx(stored(te.sigmoid, B))
    assert "div.full" not in ptx(stored(te.sigmoid, B))


NEAR = 12800.0
WAVES = [(te.sin, np.sin, "short_sin"), (te.cos, np.cos, "short_cos")]


def near_zeros(steps: int, low: int, high: int) -> np.ndarray[Any, Any]:
    """Float32 numbers around each multiple of pi / 2 in a range, some of both signs."""
    near = (np.arange(low, high) * (np.pi / 2)).astype(np.float32)
    bits = near.view(np.int32)[:, None] + np.arange(-steps, steps + 1, dtype=np.int32)
    found = bits.astype(np.int32).view(np.float32).ravel()
    return np.concatenate([found, -found])


def waves(function: Function, dtype: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The function of any number of elements, as float64."""
    n = len(x)
    given = te.placeholder((n,), F, name="x")
    y = te.compute((n,), lambda i: function(given[i]).astype(dtype), name="y")
    kernel = te.build(y, "triton-interpret")
    return np.asarray(kernel(x)).astype(np.float64)


@pytest.mark.parametrize(("function", "exact", "form"), WAVES)
@pytest.mark.parametrize("dtype", [B, H])
def test_waves_of_16_bits(function: Function, exact: Function, form: str, dtype: str) -> None:
    """Relative to the value, zeros and signed zeros included: of float32 numbers near all zeros up
    to where the form ends, of small ones, and of all bfloat16 numbers, whose tiles are mixed."""
    text = source(stored(function, dtype))
    assert f"turned_{dtype}(turn)" in text and form not in text
    every = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    every = every[np.isfinite(every)]
    for x in (
        near_zeros(2, 1, 8149),
        numbers(-12799.0, 12799.0),
        numbers(-0.01, 0.01),
        every[np.abs(every) < NEAR],
        every,
    ):
        want, got = exact(x.astype(np.float64)), waves(function, dtype, x)
        smallest = 2.0**-133 if dtype == B else 2.0**-25
        assert np.all(np.abs(got - want) <= 1.01 * share(dtype) * np.abs(want) + smallest)
    zeros = np.array([0.0, -0.0], np.float32)
    assert np.array_equal(np.signbit(waves(te.sin, dtype, zeros)), [False, True])


def far_numbers() -> np.ndarray[Any, Any]:
    """Of each exponent from the last near ones on: the first and the last float32 numbers, some
    between, and the one nearest to a multiple of pi / 2."""
    exponents = np.arange(127 + 13, 255, dtype=np.uint32)[:, None] << 23
    rng = np.random.default_rng(7)
    inside = rng.integers(0, 1 << 23, (len(exponents), 64), dtype=np.uint32)
    inside[:, :4] = (0, 1, (1 << 23) - 2, (1 << 23) - 1)
    found = (exponents | inside).view(np.float32).ravel()
    nearest = np.array([16367173.0 * 2.0**72], np.float32)
    return np.concatenate([found, -found, nearest, -nearest])


@pytest.mark.parametrize(("function", "exact", "form"), WAVES)
@pytest.mark.parametrize("x", [near_zeros(3, 1, 8149), far_numbers()], ids=["near", "far"])
def test_the_short_form_of_waves_is_as_accurate_as_stated(
    function: Function, exact: Function, form: str, x: np.ndarray[Any, Any]
) -> None:
    """2^-15 of the value: float16 does not hide a small difference from what it should be."""
    n = len(x)
    given, wanted = (te.placeholder((n,), F, name=name) for name in "xw")
    y = te.compute((n,), lambda i: (function(given[i]) / wanted[i] - 1.0).astype(H), name="y")
    assert form in source(y)
    want = exact(x.astype(np.float64)).astype(np.float32)
    error = np.asarray(te.build(y, "triton-interpret")(x, want)).astype(np.float64)
    assert np.all(np.abs(error) <= 2.0**-15)


@pytest.mark.parametrize(("function", "exact", "form"), WAVES)
@pytest.mark.parametrize("cast", [True, False], ids=["cast", "own"])
def test_waves_of_all_bfloat16_numbers(
    function: Function, exact: Function, form: str, cast: bool
) -> None:
    """Those that are not cast first, too; where results are rounded at once, and where not."""
    every = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    every = every[np.isfinite(every)]
    n = len(every)
    x = te.placeholder((n,), B, name="x")
    rounded = te.compute(
        (n,), lambda i: function(x[i].astype(F) if cast else x[i]).astype(B), name="y"
    )
    text = source(rounded)
    assert "quarter_turns_16(x_tile)" in text and "turned_bfloat16(turn)" in text
    scaled = te.compute((n,), lambda i: (function(x[i].astype(F)) * 0.75).astype(B), name="y")
    assert "quarter_turns_16(x_tile)" in source(scaled) and f"{form}(turn)" in source(scaled)
    want = exact(every.astype(np.float64))
    for y, factor in ((rounded, 1.0), (scaled, 0.75)):
        kernel = te.build(y, "triton-interpret")
        got = np.asarray(kernel(every.astype(numpy_dtype(te.DType.bfloat16)))).astype(np.float64)
        assert np.all(np.abs(got - want * factor) <= 1.01 * share(B) * np.abs(want) + 2.0**-133)


@pytest.mark.parametrize(("function", "exact", "form"), WAVES)
@pytest.mark.parametrize("cast", [False, True])
def test_waves_of_float16_numbers_have_no_slow_path(
    function: Function, exact: Function, form: str, cast: bool
) -> None:
    """None is beyond 65504: of all of them, in tiles with any number of elements for a thread."""
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = te.placeholder((len(every),), H, name="x")
    y = te.compute(
        (len(every),), lambda i: function(x[i].astype(F) if cast else x[i]).astype(H), name="y"
    )
    for block in (256, 4096):
        target = Target.parse("triton-interpret")
        s = schedule_for([y], target, {"y.block": block})
        text = emit(lower(s.plan, target), target).source
        assert "quarter_turns_near(x_tile" in text and "turned_float16(turn)" in text
        got = np.asarray(te.build(s, "triton-interpret")(every)).astype(np.float64)
        known = np.isfinite(every)
        want = exact(every[known].astype(np.float64))
        assert np.all(np.abs(got[known] - want) <= 1.01 * share(H) * np.abs(want) + 2.0**-25)
        assert np.isnan(got[~known]).all()


def test_waves_of_one_argument_are_turned_back_once() -> None:
    """Whichever of them is asked for, in whichever statement; of two arguments each has its own."""
    x, y = (te.placeholder((N,), B, name=name) for name in "xy")

    def wide(of: te.Tensor, i: Any) -> te.Expr:
        return of[i].astype(F)

    both = te.compute(
        (N,), lambda i: (te.sin(wide(x, i)).astype(B), te.cos(wide(x, i)).astype(B)), name="both"
    )
    text = source(list(both)).partition("def both(")[2]
    assert text.count("quarter_turns_16(") == text.count("turned_bfloat16(") == 1
    assert "waves[0])" in text and "waves[1])" in text
    two = te.compute((N,), lambda i: (te.sin(wide(x, i)) * te.cos(wide(y, i))).astype(B), name="t")
    text = source(two).partition("def t_kernel(")[2]
    assert text.count("quarter_turns_16(") == 2
    assert "short_sin(turn)" in text and "short_cos(turn_1)" in text


@pytest.mark.parametrize(("function", "exact", "form"), WAVES)
def test_waves_of_what_is_no_number(function: Function, exact: Function, form: str) -> None:
    x = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    got = waves(function, B, x)
    assert np.isnan(got[:3]).all()
    assert abs(got[3] - exact(1.0)) <= 2.0**-8


@pytest.mark.parametrize(("function", "exact", "form"), WAVES)
def test_waves_of_32_bits_and_of_few_numbers_are_the_library_s(
    function: Function, exact: Function, form: str
) -> None:
    assert "turn" not in source(stored(function, F))
    few = te.compute((64,), lambda i: function(i.astype(F)).astype(B), name="y")
    assert "turn" not in source(few)
    x, k = te.placeholder((1,), F, name="x"), te.placeholder((N,), B, name="k")
    y = te.compute((N,), lambda i: (k[i].astype(F) * function(x[0])).astype(B), name="y")
    assert "turn" not in source(y)


@pytest.mark.ptxas
@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
@pytest.mark.parametrize(("function", "exact", "form"), WAVES)
def test_waves_in_loops_and_products_compile(
    function: Function, exact: Function, form: str, arch: str
) -> None:
    """The branch may stand in a loop that loads ahead, and before the multipliers."""
    a, b = (te.placeholder((512, 512), B, name=name) for name in "ab")
    k = te.reduce_axis((0, 512), name="k")
    turned = te.compute((512, 512), lambda i, j: function(a[i, j].astype(F)).astype(B), name="t")
    total = te.compute(
        (512, 512),
        lambda i, j: te.sum(turned[i, k].astype(F) * b[k, j].astype(F), axis=k),
        name="total",
    )
    c = te.cast(total, B)
    s = te.create_schedule(c)
    s[turned].compute_inline()
    io, jo, ii, ji = s[c].tile(*s[c].op.axis, 64, 64)
    grid = s[c].fuse(io, jo)
    s[c].bind(grid, "blockIdx.x")
    s[c].vectorize(ii)
    s[c].vectorize(ji)
    s[total].compute_at(s[c], grid)
    outer, inner = s[total].split(k, factor=32)
    s[total].vectorize(inner)
    s[total].pipeline(outer, num_stages=3)
    target = Target.parse(f"cuda:{arch}")
    program = emit(lower(s.plan, target), target)
    assert "turned_bfloat16(turn)" in program.source
    assert all("mma" in info.ptx for info in compile_offline(program, arch))


@pytest.mark.parametrize(("function", "exact", "form"), WAVES)
def test_waves_of_large_tiles_are_the_library_s(
    function: Function, exact: Function, form: str
) -> None:
    """Each eight elements would have the way of far arguments written out once more."""
    x = te.placeholder((64, 16384), B, name="x")
    y = te.compute((64, 16384), lambda i, j: function(x[i, j].astype(F)).astype(B), name="y")
    s = te.create_schedule(y)
    i, j = s[y].op.axis
    s[y].bind(i, "blockIdx.x")
    s[y].vectorize(j)
    target = Target.parse("cuda:sm_90")
    assert "turn" not in emit(lower(s.plan, target), target).source
    s[y].launch(num_warps=16)
    assert "turned_bfloat16(turn)" in emit(lower(s.plan, target), target).source


@pytest.mark.parametrize("depth", [2, 4])
def test_sums_of_few_products_stay_sums(depth: int) -> None:
    """Triton makes `sum(a[:, :, None] * b[None, :, :], axis=1)` a product of matrices, of TF32."""
    s, *_ = few_products(depth)
    kernel = te.build(s, "cuda:sm_90", cache=False)
    assert re.search(r"tl\.sum\(\w+\[None, :, :\] \* \w+\[:, :, None\], axis=1\)", kernel.source)
