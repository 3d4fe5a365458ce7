"""Accuracy of the CPU's functions, in units in the last place, over ordinary and extreme
arguments."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from cpu_machines import MACHINES, compiling_for
from cpu_modules import call, elementwise, op, un

from tedsl.dtypes import DType
from tedsl.ir.nodes import LoopKind

pytestmark = pytest.mark.cpu

# Largest error allowed per function: float32, float64.  Measured values are a little lower.
BOUNDS = {
    "exp": (1.1, 1.1),
    "exp2": (1.2, 1.2),
    "expm1": (1.7, 2.0),
    "log": (1.0, 1.0),
    "log2": (1.0, 1.0),
    "log10": (1.3, 1.3),
    "log1p": (1.0, 1.0),
    "tanh": (2.6, 2.6),
    "sigmoid": (2.3, 3.0),
    "erf": (1.3, 2.0),
    "sin": (1.6, 1.6),
    "cos": (1.6, 1.6),
    "tan": (2.8, 2.0),
    "asin": (2.5, 1.5),
    "acos": (1.5, 1.5),
    "atan": (2.0, 1.5),
    "sinh": (1.7, 2.5),
    "cosh": (1.5, 1.6),
    "asinh": (2.5, 2.5),
    "acosh": (2.5, 2.5),
    "atanh": (2.2, 2.2),
}
NAMES = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
}
EVEN = ("exp", "exp2", "sigmoid", "cos", "acos", "cosh", "acosh", "log", "log2", "log10")
COUNT = 1 << 16


def reference(name: str) -> Callable[[np.ndarray], np.ndarray]:
    """The function in a wider type."""
    if name == "sigmoid":
        return lambda x: 1 / (1 + np.exp(-x))
    if name == "erf":
        return lambda x: np.array([math.erf(v) for v in x.astype(np.float64)], x.dtype)
    return getattr(np, NAMES.get(name, name))


def arguments(dtype: type, seed: int = 0) -> np.ndarray:
    """Random bit patterns, several magnitudes, and the special values."""
    rng = np.random.default_rng(seed)
    bits = np.uint32 if dtype is np.float32 else np.uint64
    quarter = COUNT // 4
    parts = [
        rng.integers(0, np.iinfo(bits).max, quarter, dtype=bits).view(dtype),
        (rng.standard_normal(quarter) * 10 ** rng.uniform(-3, 2.5, quarter)).astype(dtype),
        rng.uniform(-1, 1, quarter).astype(dtype),
        rng.uniform(-100, 100, quarter).astype(dtype),
    ]
    x = np.concatenate(parts)
    info = np.finfo(dtype)
    special = [0, -0.0, np.inf, -np.inf, np.nan, 1, -1, info.tiny, -info.tiny]
    special += [info.smallest_subnormal, info.max, info.min, 1e30, 1e5, 100001.5, 0.5]
    x[: len(special)] = special
    return x


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Distance from the exact result; infinite where NaN, infinity or overflow differ."""
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        unit = np.spacing(np.abs(rounded)).astype(np.longdouble)
        error = np.abs(got.astype(np.longdouble) - want.astype(np.longdouble)) / unit
    agree = (np.isnan(got) & np.isnan(rounded)) | (got == rounded)
    error = np.where(agree, np.minimum(np.nan_to_num(error, nan=0.0, posinf=0.0), 1.0), error)
    return np.where(np.isnan(error), np.inf, error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_error_is_within_the_table(name: str, dtype: type) -> None:
    kind = DType.float32 if dtype is np.float32 else DType.float64
    x = arguments(dtype)
    if name == "erf" and dtype is np.float64:
        x = x[:4096].copy()
    program = elementwise(len(x), [kind], kind, lambda a: un(name, a))
    y = np.zeros_like(x)
    call(program, x, y)
    with np.errstate(all="ignore"):
        want = reference(name)(x.astype(np.float64 if dtype is np.float32 else np.longdouble))
    error = ulps(y, want)
    worst = int(np.argmax(error))
    assert error[worst] <= BOUNDS[name][dtype is np.float64], (x[worst], y[worst], want[worst])


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_scalars_agree_with_vectors(name: str) -> None:
    x = arguments(np.float32)[:64].copy()
    results = []
    for kind in (None, LoopKind.SERIAL):
        y = np.zeros_like(x)
        program = elementwise(64, [DType.float32], DType.float32, lambda a: un(name, a), kind)
        call(program, x, y)
        results.append(y)
    np.testing.assert_array_max_ulp(results[0], results[1], 2)


@pytest.mark.parametrize("name", ["pow", "atan2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_arguments(name: str, dtype: type) -> None:
    kind = DType.float32 if dtype is np.float32 else DType.float64
    rng = np.random.default_rng(3)
    x, y = arguments(dtype, 1), arguments(dtype, 2)
    rng.shuffle(y)
    x[20000:30000] = rng.uniform(0, 20, 10000)
    y[20000:30000] = rng.uniform(-30, 30, 10000)
    y[30000:31000] = rng.integers(-9, 9, 1000)
    edge = np.array([0, -0.0, 1, -1, 2, -2, 0.5, -0.5, 3, -3, np.inf, -np.inf, np.nan], dtype)
    x[1000 : 1000 + 169], y[1000 : 1000 + 169] = np.repeat(edge, 13), np.tile(edge, 13)
    z = np.zeros_like(x)
    call(elementwise(len(x), [kind, kind], kind, lambda a, b: op(name, a, b)), x, y, z)
    wide = np.float64 if dtype is np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        fn = np.power if name == "pow" else np.arctan2
        want = fn(x.astype(wide), y.astype(wide))
    error = ulps(z, want)
    worst = int(np.argmax(error))
    assert error[worst] <= 3.0, (x[worst], y[worst], z[worst], want[worst])
    signs = np.signbit(z) == np.signbit(want)
    assert np.all(signs | np.isnan(want)), x[~(signs | np.isnan(want))]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "sin", "expm1"])
def test_other_machines(name: str, machine: str) -> None:
    with compiling_for(machine):
        test_error_is_within_the_table(name, np.float32)
        test_error_is_within_the_table(name, np.float64)


@pytest.mark.parametrize("dtype", [DType.float32, DType.float64], ids=lambda d: d.value)
@pytest.mark.parametrize("count", [1, 3, 16])
def test_zeros_keep_their_sign(dtype: DType, count: int) -> None:
    """Odd functions of -0.0 are -0.0, as numpy's are."""
    x = np.full(count, -0.0, dtype.value)
    x[::2] = 0.0
    for name in BOUNDS:
        if name in EVEN:
            continue
        y = np.empty_like(x)
        call(elementwise(count, [dtype], dtype, lambda a, name=name: un(name, a)), x, y)
        np.testing.assert_array_equal(np.signbit(y), np.signbit(x), err_msg=name)
        assert not y.any(), name
