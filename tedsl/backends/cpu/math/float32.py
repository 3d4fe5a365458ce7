"""float32 functions, all vectorised, with subnormal numbers, infinities and NaN.

Largest error in units in the last place, measured over random bit patterns and ordinary ranges;
tests/backends/test_cpu_math.py holds the bounds and measures them again:

    exp 1.0   exp2 1.0   expm1 1.5   log 0.8    log2 0.9   log10 1.1   log1p 0.9
    tanh 2.4  sigmoid 2.1  erf 1.1   sin 1.5    cos 1.5    tan 2.4     pow below 3
    asin 2.3  acos 1.3   atan 1.8    sinh 1.5   cosh 1.4   atan2 below 3
    asinh, acosh, atanh below 2.5

sin, cos and tan beyond 1e5 call the C library.  Coefficients: Remez fits by
tests/helpers/fit_polynomials.py, highest power first.
"""

from __future__ import annotations

from collections.abc import Callable

from tedsl.backends.cpu.emit.llvm_values import Num
from tedsl.backends.cpu.math import core
from tedsl.backends.cpu.math.float64 import K as WIDE
from tedsl.expr.nodes import BinaryOp, UnaryOp

_LOG = (
    0.06746633200702297,
    -0.11676050582905004,
    0.11888378836963046,
    -0.12405544343317536,
    0.14219519801415817,
    -0.16667996878834576,
    0.20002120116193248,
    -0.25000009605422385,
    0.33333312586443986,
)
_TAN = (
    0.009387675068227352,
    0.0031161396499405497,
    0.024432454040308336,
    0.053410643073676274,
    0.13338806957247187,
    0.33333156569042727,
)
_ASIN = (
    0.04217820928651926,
    0.02417296815982798,
    0.045471602555773205,
    0.0749528872411606,
    0.1666675267945696,
)
_ATAN = (
    0.0029199777099399794,
    -0.016365268944200272,
    0.04320786888209481,
    -0.07551905111095235,
    0.10665873740359519,
    -0.14211025857700507,
    0.19993769722003735,
    -0.3333315262666136,
)
_ERF = (  # of erf(x) / x - 1 in x^2
    8.316772751708226e-05,
    -0.0008130012117413867,
    0.005199906627874001,
    -0.02685894149924799,
    0.11283687188762892,
    -0.37612633188462863,
    0.128379166579826,
)
_ERFC = (  # of log(erfc(x))
    -4.5637627509907956e-07,
    -1.5213914841552353e-05,
    0.0004020207594608341,
    -0.004070962058485121,
    0.02493035844285083,
    -0.10805609591237844,
    -0.6335095744252139,
    -1.1294486710015974,
    0.00016308461833047393,
)
_SINH = (2.8170126140786395e-06, 0.00019836149574370827, 0.008333350108097463, 0.16666666496890722)
_POW_LOG = (
    0.19583609657034168,
    0.2217622739617578,
    0.285721082064034,
    0.39999995631055235,
    0.6666666667577321,
)
_POW_EXP = (
    0.00019845901440508368,
    0.0013940627495965647,
    0.008333389326538012,
    0.04166636091069413,
    0.1666666637063434,
    0.500000004416498,
)


def _log_of(f: Num) -> tuple[Num, Num]:
    z = f * f
    return f, z.fma(-0.5, z * f * f.poly(*_LOG))


K = core.Format(
    mantissa=23,
    bias=127,
    elem="float",
    tiny=2.0**-126,
    sqrt_half=0x3F3504F3,
    exp_low=-104.0,
    exp_high=89.5,
    ln2=(0.693145751953125, 1.4286068203094173e-06),
    log2e=(1.4426950216293335, 1.925963033500011e-08),
    log10_2=(0.301025390625, 4.605038981195214e-06),
    pi_2=(1.5707963705062866, -4.371138828673793e-08, -1.7151245100058819e-15),
    trig_limit=100000.0,
    exp=(
        0.0013882524897667677,
        0.00836652063699247,
        0.04166719979452763,
        0.16666543620431792,
        0.499999981543432,
    ),
    sin=(-0.00019515218330047742, 0.008332160293851193, -0.1666665460230768),
    cos=(2.4433081969478173e-05, -0.0013887315609601252, 0.041666645669997775),
    log_of=_log_of,
    expm1_low=-18.0,
    expm1_big=30.0,
    tanh_limit=9.5,
    large=8192.0,
)


def _tan(x: Num) -> Num:
    inside = x.abs() <= K.trig_limit
    n, r = core.quadrant(inside.where(x, 0.0), K)
    z = r * r
    t = (z * r).fma(z.poly(*_TAN), r)
    t = (n & 1).ne(0).where(-1.0 / t, t)
    return core.outside(x, inside, x.eq(0.0).where(x, t), "tan")  # -0.0 keeps its sign


def _arcsine(x: Num) -> tuple[Num, Num, Num]:
    """Whether |x| > 1/2, the reduced argument, and its arcsine."""
    a = x.abs()
    big = a > 0.5
    z = big.where((1.0 - a) * 0.5, a * a)
    s = big.where(z.sqrt(), a)
    return big, a, (z * s).fma(z.poly(*_ASIN), s)


def _asin(x: Num) -> Num:
    big, _, p = _arcsine(x)
    return big.where(p.fma(-2.0, p.const(core.HALF_PI)), p).copysign(x)


def _acos(x: Num) -> Num:
    big, _, p = _arcsine(x)
    signed = p.copysign(x)
    middle = (core.HALF_PI - signed) + K.pi_2[1]
    far = (x < 0.0).where((core.PI - (p + p)) + 2 * K.pi_2[1], p + p)
    return big.where(far, middle)


def _arctangent(a: Num) -> Num:
    """atan for 0 <= a <= 1."""
    z = a * a
    return (z * a).fma(z.poly(*_ATAN), a)


def _atan(x: Num) -> Num:
    a = x.abs()
    big = a > 1.0
    p = _arctangent(big.where(1.0 / a, a))
    return big.where(core.HALF_PI - p, p).copysign(x)


def _atan2(y: Num, x: Num) -> Num:
    a, b = y.abs(), x.abs()
    steep = a > b
    least, most = steep.where(b, a), steep.where(a, b)
    ratio = least / most
    ratio = most.eq(0.0).where(ratio.const(0.0), ratio)
    ratio = least.eq(core.INF).where(ratio.const(1.0), ratio)
    p = _arctangent(ratio)
    p = steep.where(core.HALF_PI - p, p)
    p = (x.bits() < 0).where(core.PI - p, p)
    p = p.copysign(y)
    return x.compare("uno", y).where(x + y, p)


def _erf(x: Num) -> Num:
    a = x.abs()
    z = x * x
    near = x.fma(z.poly(*_ERF), x)
    far = 1.0 - core.exp(core.clamp(a, None, 4.0).poly(*_ERFC), K)
    return (a > 0.925).where(far.copysign(x), near)


def _pow(x: Num, y: Num) -> Num:
    """|x|**y in double, then the sign and the special cases of C99."""
    a, w = x.abs().cast("fpext", "double"), y.cast("fpext", "double")
    bits = a.bits() - 0x3FE6A09E667F3BCD
    e = core.small_float(bits.ashr(52), WIDE)
    f = ((bits & ((1 << 52) - 1)) + 0x3FE6A09E667F3BCD).floats() - 1.0
    s = f / (f + 2.0)
    z = s * s
    log2 = (s * z).fma(z.poly(*_POW_LOG), s + s).fma(core.LOG2E, e)
    log2 = a.eq(0.0).where(a.const(-core.INF), a.compare("ueq", core.INF).where(a, log2))
    t = log2 * w
    flat = x.abs().eq(1.0) & y.eq(y)
    t = flat.where(t.const(0.0), t)
    t = core.clamp(t, -200.0, 200.0)
    n = t.round()
    r = (t - n) * core.LN2
    p = (r * r).fma(r.poly(*_POW_EXP), r) + 1.0
    power = core.power_of_two(n, WIDE)
    result = (p * power).cast("fptrunc", "float")
    whole = y.round().eq(y)
    half = y * 0.5
    odd = whole & half.round().ne(half) & (y.abs() < 2.0**24)
    negative = x.bits() < 0
    result = (negative & odd).where(-result, result)
    bad = (x < 0.0) & ~whole & (x.abs() < core.INF)
    result = bad.where(result.const(float("nan")), result)
    return (x.eq(1.0) | y.eq(0.0)).where(result.const(1.0), result)


TABLE: dict[UnaryOp, Callable[[Num], Num]] = {
    **core.table(K, _SINH),
    UnaryOp.ERF: _erf,
    UnaryOp.TAN: _tan,
    UnaryOp.ASIN: _asin,
    UnaryOp.ACOS: _acos,
    UnaryOp.ATAN: _atan,
}
TABLE2: dict[BinaryOp, Callable[[Num, Num], Num]] = {BinaryOp.POW: _pow, BinaryOp.ATAN2: _atan2}
