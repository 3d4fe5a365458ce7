"""Derive the polynomials of `tedsl/backends/cpu/math`: a Remez exchange in high precision.

Each entry minimises the largest weighted error of a polynomial over an interval; the weight is
chosen so that the error of the whole function is relative to its value.  Run it to print the
coefficients, highest power first:

    python tests/helpers/fit_polynomials.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import mpmath as mp

mp.mp.dps = 40
Real: TypeAlias = Any  # a number of mpmath, which has no types
Fn = Callable[[Real], Real]


def remez(target: Fn, given: Fn, low: float, high: float, degree: int) -> tuple[list[Real], float]:
    """Coefficients (highest power first) and the largest weighted error."""
    tiny = mp.mpf(10) ** -18  # where a weight vanishes

    def weight(x: Real) -> Real:
        return given(x) + tiny

    low, high = mp.mpf(low), mp.mpf(high)
    count = degree + 2
    middle, half = (low + high) / 2, (high - low) / 2
    nodes = [middle - half * mp.cos(mp.pi * k / (count - 1)) for k in range(count)]
    grid = [middle - half * mp.cos(mp.pi * k / 600) for k in range(601)]
    wanted = [(target(x), weight(x)) for x in grid]
    coefficients: list[Real] = []
    worst = 0.0
    for _ in range(12):
        rows = mp.matrix(count, count)
        right = mp.matrix(count, 1)
        for r, x in enumerate(nodes):
            for c in range(degree + 1):
                rows[r, c] = x ** (degree - c)
            rows[r, degree + 1] = (-1) ** r / weight(x)
            right[r] = target(x)
        solved = mp.lu_solve(rows, right)
        coefficients = [solved[c] for c in range(degree + 1)]
        errors = [
            (mp.polyval(coefficients, x) - t) * w for x, (t, w) in zip(grid, wanted, strict=True)
        ]
        worst = float(max(abs(e) for e in errors))
        extrema: list[int] = []
        for i, e in enumerate(errors):
            if extrema and (errors[extrema[-1]] > 0) == (e > 0):
                if abs(e) > abs(errors[extrema[-1]]):
                    extrema[-1] = i
            else:
                extrema.append(i)
        while len(extrema) > count:
            extrema.pop(0 if abs(errors[extrema[0]]) < abs(errors[extrema[-1]]) else -1)
        if len(extrema) < count or float(abs(solved[degree + 1])) > 0.999 * worst:
            break
        nodes = [grid[i] for i in extrema]
    return coefficients, worst


def series(fn: Fn, x: Real, terms: Callable[[Real], Real], power: int, limit: Real) -> Real:
    """(fn(x) - terms(x)) / x**power, by its limit at 0."""
    if abs(x) < mp.mpf(10) ** -8:
        return limit
    return (fn(x) - terms(x)) / x**power


def odd(fn: Fn, limit: Real) -> Fn:
    """g with fn(x) = x + x^3 g(x^2)."""

    def g(z: Real) -> Real:
        return series(fn, mp.sqrt(abs(z)), lambda x: x, 3, limit)

    return g


def odd_weight(fn: Fn) -> Fn:
    """The relative error of x + x^3 g(x^2) per error of g."""

    def w(z: Real) -> Real:
        x = mp.sqrt(abs(z)) + mp.mpf(10) ** -12
        return x**3 / fn(x)

    return w


def log_tail(x: Real) -> Real:
    return series(mp.log1p, x, lambda v: v - v * v / 2, 3, mp.mpf(1) / 3)


def log_weight(x: Real) -> Real:
    x = x if abs(x) > 1e-9 else mp.mpf(10) ** -9
    return abs(x**3 / mp.log1p(x))


def exp_tail(x: Real) -> Real:
    return series(mp.expm1, x, lambda v: v, 2, mp.mpf(1) / 2)


def exp_weight(x: Real) -> Real:
    x = x if abs(x) > 1e-9 else mp.mpf(10) ** -9
    return abs(x**2 / mp.expm1(x))


def cos_tail(z: Real) -> Real:
    return series(mp.cos, mp.sqrt(abs(z)), lambda x: 1 - x * x / 2, 4, mp.mpf(1) / 24)


def cos_weight(z: Real) -> Real:
    return z * z / mp.cos(mp.sqrt(abs(z)))


def atanh_tail(z: Real) -> Real:
    """log(1+f) = 2 s + s z g(z), s = f / (2 + f), z = s^2."""
    s = mp.sqrt(abs(z))
    return mp.mpf(2) / 3 if s < 1e-8 else (2 * mp.atanh(s) - 2 * s) / s**3


def atanh_weight(z: Real) -> Real:
    s = mp.sqrt(abs(z)) + mp.mpf(10) ** -12
    return s**3 / (2 * mp.atanh(s))


def erf_core(z: Real) -> Real:
    x = mp.sqrt(abs(z))
    return 2 / mp.sqrt(mp.pi) if x < 1e-9 else mp.erf(x) / x


def erf_weight(z: Real) -> Real:
    return 1 / erf_core(z)


def log_erfc(a: Real) -> Real:
    return mp.log(mp.erfc(a))


def erfc_weight(a: Real) -> Real:
    return mp.erfc(a)


R = float(mp.log(2) / 2) * 1.0001
Q = float(mp.pi / 4) * 1.0001
S2 = float((mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)) ** 2 * 1.0001
LOW, HIGH = float(mp.sqrt(0.5) - 1) * 1.0001, float(mp.sqrt(2) - 1) * 1.0001
THIRD = mp.mpf(1) / 3
JOBS: list[tuple[str, Fn, Fn, float, float, int]] = [
    ("f32 EXP", exp_tail, exp_weight, -R, R, 4),
    ("f32 LOG", log_tail, log_weight, LOW, HIGH, 8),
    ("f32 SIN", odd(mp.sin, -THIRD / 2), odd_weight(mp.sin), 0, Q * Q, 2),
    ("f32 COS", cos_tail, cos_weight, 0, Q * Q, 2),
    ("f32 TAN", odd(mp.tan, THIRD), odd_weight(mp.tan), 0, Q * Q, 5),
    ("f32 ASIN", odd(mp.asin, THIRD / 2), odd_weight(mp.asin), 0, 0.2501, 4),
    ("f32 ATAN", odd(mp.atan, -THIRD), odd_weight(mp.atan), 0, 1.0001, 7),
    ("f32 ERF", erf_core, erf_weight, 0, 0.93**2, 6),
    ("f32 ERFC", log_erfc, erfc_weight, 0.92, 4.0, 8),
    ("f32 SINH", odd(mp.sinh, THIRD / 2), odd_weight(mp.sinh), 0, 1.001, 3),
    ("pow LOG", atanh_tail, atanh_weight, 0, S2, 4),
    ("pow EXP", exp_tail, exp_weight, -R, R, 5),
    ("f64 EXP", exp_tail, exp_weight, -R, R, 10),
    ("f64 LOG", atanh_tail, atanh_weight, 0, S2, 7),
    ("f64 SIN", odd(mp.sin, -THIRD / 2), odd_weight(mp.sin), 0, Q * Q, 6),
    ("f64 COS", cos_tail, cos_weight, 0, Q * Q, 6),
]


def main() -> None:
    for name, target, weight, low, high, degree in JOBS:
        coefficients, worst = remez(target, weight, low, high, degree)
        print(f"{name}: error 2^{float(mp.log(worst, 2)):.1f}")
        print("    " + ", ".join(repr(float(c)) for c in coefficients))


if __name__ == "__main__":
    main()
