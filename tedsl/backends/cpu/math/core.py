"""Elementary functions shared by float32 and float64: reductions, and the functions built from
them.

Everything is straight-line code on `Num`, for scalars and vectors.  `Format` holds what differs
between the two types.  The polynomials are Remez fits of the reduced functions
(tests/helpers/fit_polynomials.py derives them); the reductions are the classical ones: exp by
powers of two with ln 2 in two parts, log by the exponent with the mantissa in sqrt(1/2)..sqrt(2),
sin and cos by multiples of pi/2 in three parts (Cody and Waite).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tedsl.backends.cpu.emit.llvm_text import I8, I32, Function, Type, Value, const
from tedsl.backends.cpu.emit.llvm_values import Num
from tedsl.expr.nodes import UnaryOp
from tedsl.processor import machine

INF = float("inf")


@dataclass(frozen=True, slots=True)
class Format:
    """A float type: its layout, bounds beyond which functions saturate, and the constants of the
    reductions."""

    mantissa: int
    bias: int
    elem: str
    tiny: float  # the smallest normal number
    sqrt_half: int  # bits of sqrt(1/2)
    exp_low: float
    exp_high: float
    ln2: tuple[float, float]
    log2e: tuple[float, float]
    log10_2: tuple[float, float]
    pi_2: tuple[float, float, float]
    trig_limit: float
    exp: tuple[float, ...]
    sin: tuple[float, ...]
    cos: tuple[float, ...]
    log_of: Callable[[Num], tuple[Num, Num]]  # f -> (f, log1p(f) - f)
    expm1_low: float
    expm1_big: float
    tanh_limit: float
    large: float  # beyond it x*x + 1 is x*x


LOG2E, LOG10E, LN2 = 1.4426950408889634, 0.4342944819032518, 0.6931471805599453
TWO_PI = 0.6366197723675814
PI, HALF_PI = 3.141592653589793, 1.5707963267948966


def clamp(x: Num, low: float | None, high: float | None) -> Num:
    """x within bounds; NaN stays NaN."""
    if high is not None:
        x = (x > high).where(x.const(high), x)
    return (x < low).where(x.const(low), x) if low is not None else x


def whole_bits(n: Num, k: Format) -> Num:
    """Integers whose low bits are the whole float n in two's complement: the mantissa of n + 1.5 *
    2**mantissa.

    Unlike a conversion instruction it exists for every type on every machine, and NaN does no harm.
    """
    return (n + 1.5 * 2.0**k.mantissa).bits()


def small_float(n: Num, k: Format) -> Num:
    """A small integer as a float, by the same trick backwards."""
    magic = 1.5 * 2.0**k.mantissa
    return (n + n.new(const(magic, n.type.of(k.elem))).bits()).floats() - magic


def power_of_two(n: Num, k: Format) -> Num:
    """2**n for a whole float n whose result is a normal number."""
    return ((whole_bits(n, k) + k.bias) << k.mantissa).floats()


def scale(x: Num, n: Num, k: Format) -> Num:
    """x * 2**n for a whole float n, with one rounding, also where the result is subnormal."""
    done = _scalef(x, n)
    if done is not None:
        return done
    first = (n * 0.5).call("floor")
    return x * power_of_two(first, k) * power_of_two(n - first, k)


def _scalef(x: Num, n: Num) -> Num | None:
    """AVX-512 has one instruction for it."""
    lanes, elem = x.type.lanes, x.type.elem
    bits = lanes * x.type.bits
    if not machine().has_masks or bits not in (128, 256, 512):
        return None
    kind = "ps" if elem == "float" else "pd"
    name = f"llvm.x86.avx512.mask.scalef.{kind}.{bits}"
    mask = const(-1, I8 if lanes <= 8 else Type("i16"))
    args = [x.value, n.value, x.value, mask]
    if bits == 512:
        args.append(const(4, I32))
    x.fn.module.declare(name, x.type, [a.type for a in args])
    return x.new(x.fn.call(name, x.type, args))


def exp_parts(x: Num, k: Format) -> tuple[Num, Num]:
    """x = n ln 2 + r: returns n and expm1(r)."""
    n = (x * LOG2E).round()
    r = n.fma(-k.ln2[0], x)
    r = n.fma(-k.ln2[1], r)
    return n, (r * r).fma(r.poly(*k.exp), r)


def exp(x: Num, k: Format) -> Num:
    """e**x."""
    return exp_shifted(x, 0, k)


def exp_shifted(x: Num, shift: int, k: Format) -> Num:
    """e**x * 2**shift."""
    n, p = exp_parts(clamp(x, None, k.exp_high - shift * LN2), k)
    n = _not_tiny(n, k)
    done = scale(p + 1.0, n + float(shift) if shift else n, k)
    return (x < k.exp_low).where(x.const(0.0), done)


def exp2(x: Num, k: Format) -> Num:
    """2**x."""
    low = k.exp_low * LOG2E
    top = clamp(x, None, k.exp_high * LOG2E)
    n = top.round()
    r = (top - n) * LN2
    done = scale((r * r).fma(r.poly(*k.exp), r) + 1.0, _not_tiny(n, k), k)
    return (x < low).where(x.const(0.0), done)


def _not_tiny(n: Num, k: Format) -> Num:
    """n, or 0 where 2**n is below all numbers: what is 0 in the end (a masked softmax has much of
    it) is not computed, which would cost processors a hundred cycles each.  Not by the condition of
    that 0 itself, or LLVM would leave this one out."""
    return (n < k.exp_low * LOG2E - 0.9).where(n.const(0.0), n)


def expm1_bounded(x: Num, k: Format) -> Num:
    """e**x - 1 for x from `expm1_low` to about `expm1_big`."""
    n, p = exp_parts(x, k)
    s = power_of_two(n, k)
    return s.fma(p, s - 1.0)


def expm1(x: Num, k: Format) -> Num:
    """e**x - 1."""
    x = clamp(x, k.expm1_low, k.exp_high)
    n, p = exp_parts(x, k)
    s = power_of_two(clamp(n, None, k.expm1_big), k)
    small = s.fma(p, s - 1.0)
    small = x.eq(0.0).where(x, small)
    return (n > k.expm1_big).where(scale(p + 1.0, n, k), small)


def log_parts(x: Num, k: Format) -> tuple[Num, Num, Num]:
    """x = 2**e (1 + f) for positive x: returns e, f and log1p(f) - f."""
    low = x < k.tiny
    x = low.where(x * float(2**k.mantissa), x)
    bits = x.bits() - k.sqrt_half
    e = small_float(bits.ashr(k.mantissa), k)
    e = low.where(e - float(k.mantissa), e)
    m = ((bits & ((1 << k.mantissa) - 1)) + k.sqrt_half).floats()
    f, y = k.log_of(m - 1.0)
    return e, f, y


def log_special(x: Num, result: Num) -> Num:
    """The values of a logarithm at and outside the ends of its domain."""
    result = x.eq(INF).where(x, result)
    result = x.eq(0.0).where(x.const(-INF), result)
    return x.compare("ult", 0.0).where(x.const(float("nan")), result)


def log(x: Num, k: Format) -> Num:
    """Natural logarithm."""
    e, f, y = log_parts(x, k)
    low = e.fma(k.ln2[1], y) + f
    return log_special(x, e.fma(k.ln2[0], low))


def log2(x: Num, k: Format) -> Num:
    """Logarithm to base 2."""
    e, f, y = log_parts(x, k)
    total = f.fma(k.log2e[0], f.fma(k.log2e[1], y * LOG2E))
    return log_special(x, e + total)


def log10(x: Num, k: Format) -> Num:
    """Logarithm to base 10."""
    e, f, y = log_parts(x, k)
    total = f.fma(LOG10E, e.fma(k.log10_2[1], y * LOG10E))
    return log_special(x, e.fma(k.log10_2[0], total))


def log1p(x: Num, k: Format) -> Num:
    """log(1 + x), with the rounding error of the sum put back."""
    u = x + 1.0
    lost = (x > 1.0).where(1.0 - (u - x), x - (u - 1.0))
    e, f, y = log_parts(u, k)
    correction = lost / u
    low = e.fma(k.ln2[1], y + correction) + f
    result = log_special(u, e.fma(k.ln2[0], low))
    return (x.abs() < k.tiny).where(x, result)


def tanh(x: Num, k: Format) -> Num:
    """Hyperbolic tangent as t / (t + 2), t = expm1(2|x|)."""
    a = clamp(x.abs(), None, k.tanh_limit)
    t = expm1_bounded(a + a, k)
    return (t / (t + 2.0)).copysign(x)


def sigmoid(x: Num, k: Format) -> Num:
    """1 / (1 + e**-x) without overflow on either side."""
    e = exp(-x.abs(), k)
    s = 1.0 / (e + 1.0)
    return (x < 0.0).where(e * s, s)


def cosh(x: Num, k: Format) -> Num:
    """Hyperbolic cosine."""
    half = exp_shifted(x.abs(), -1, k)
    return half + 0.25 / half


def sinh(x: Num, k: Format, poly: tuple[float, ...] | None) -> Num:
    """Hyperbolic sine; a polynomial below 1 where there is one, expm1 otherwise."""
    a = x.abs()
    if poly is not None:
        half = exp_shifted(a, -1, k)
        z = x * x
        small = (z * x).fma(z.poly(*poly), x)
        return (a < 1.0).where(small, (half - 0.25 / half).copysign(x))
    t = expm1(a, k)
    bounded = (t + t / (t + 1.0)) * 0.5
    big = exp_shifted(a, -1, k)
    return (a > 20.0).where(big, bounded).copysign(x)


def asinh(x: Num, k: Format) -> Num:
    """Inverse hyperbolic sine."""
    a = x.abs()
    big = a > k.large
    inner = clamp(a, None, k.large)
    z = inner * inner
    t = big.where(a - 1.0, inner + z / ((z + 1.0).sqrt() + 1.0))
    return (log1p(t, k) + big.where(x.const(LN2), 0.0)).copysign(x)


def acosh(x: Num, k: Format) -> Num:
    """Inverse hyperbolic cosine."""
    big = x > k.large
    t = x - 1.0
    inner = clamp(t, None, k.large)
    root = big.where(t, inner + inner.fma(inner, inner + inner).sqrt())
    result = log1p(root, k) + big.where(x.const(LN2), 0.0)
    return (x < 1.0).where(x.const(float("nan")), result)


def atanh(x: Num, k: Format) -> Num:
    """Inverse hyperbolic tangent."""
    a = x.abs()
    return (log1p((a + a) / (1.0 - a), k) * 0.5).copysign(x)


def quadrant(x: Num, k: Format) -> tuple[Num, Num]:
    """x = n pi/2 + r with |r| <= pi/4: returns n as an integer and r."""
    n = (x * TWO_PI).round()
    r = n.fma(-k.pi_2[0], x)
    r = n.fma(-k.pi_2[1], r)
    r = n.fma(-k.pi_2[2], r)
    return whole_bits(n, k), r


def sine_pair(r: Num, k: Format) -> tuple[Num, Num]:
    """sin(r) and cos(r) for |r| <= pi/4."""
    z = r * r
    sine = (z * r).fma(z.poly(*k.sin), r)
    cosine = (z * z).fma(z.poly(*k.cos), z.fma(-0.5, z.const(1.0)))
    return sine, cosine


def sine(x: Num, k: Format, shift: int, name: str) -> Num:
    """sin(x), or cos(x) with `shift` 1; huge arguments go to the C library."""
    exact = machine().has_fma or x.type.elem == "float"  # else the reduction loses all digits
    inside = x.abs() <= (k.trig_limit if exact else 0.78)
    n, r = quadrant(inside.where(x, 0.0), k)
    s, c = sine_pair(r, k)
    n = n + shift if shift else n
    result = (n & 1).ne(0).where(c, s)
    flip = (n & 2) << (k.mantissa + {23: 7, 52: 10}[k.mantissa])
    result = (result.bits() ^ flip).floats()
    if not shift:
        result = x.eq(0.0).where(x, result)  # the reduction loses the sign of -0.0
    return outside(x, inside, result, name)


def outside(x: Num, inside: Num, result: Num, name: str) -> Num:
    """`result` where `inside` holds in all lanes; otherwise the C library's `name`, lane by
    lane."""
    fn = x.fn
    slow, done = fn.label("far"), fn.label("near")
    before = fn.block
    fn.branch((~inside).any().value, slow, done)
    fn.start(slow)
    full = f"tedsl.{name}.far.{x.type.suffix}"
    fn.module.define(full, lambda: _far(fn, full, name, x.type))
    far = fn.call(full, x.type, [x.value, result.value])
    after = fn.block
    fn.jump(done)
    fn.start(done)
    text = f"phi {x.type} [ {result.value.text}, %{before} ], [ {far.text}, %{after} ]"
    return x.new(fn.op(text, x.type))


def _far(fn: Function, full: str, name: str, type: Type) -> Function:
    """A function kept out of line, because it is as long as a vector has lanes."""
    params = [Value("%x", type), Value("%near", type)]
    head = f"define internal {type} @{full}({params[0]}, {params[1]}) noinline #0"
    made = Function(fn.module, head, params)
    scalar = type.scalar
    external = name if type.elem == "double" else f"{name}f"
    made.module.declare(external, scalar, [scalar], "nounwind willreturn memory(none)")
    result = params[0]
    if not type.lanes:
        result = made.call(external, scalar, [params[0]])
    for lane in range(type.lanes):
        one = made.op(f"extractelement {params[0]}, i64 {lane}", scalar)
        value = made.call(external, scalar, [one])
        result = made.op(f"insertelement {result}, {value}, i64 {lane}", type)
    made.do(f"ret {result}")
    return made


def table(k: Format, poly: tuple[float, ...] | None) -> dict[UnaryOp, Callable[[Num], Num]]:
    """The functions of a type that are made of its format; `poly` as for `sinh`."""
    found = {
        UnaryOp.EXP: exp,
        UnaryOp.EXP2: exp2,
        UnaryOp.EXPM1: expm1,
        UnaryOp.LOG: log,
        UnaryOp.LOG2: log2,
        UnaryOp.LOG10: log10,
        UnaryOp.LOG1P: log1p,
        UnaryOp.TANH: tanh,
        UnaryOp.SIGMOID: sigmoid,
        UnaryOp.SIN: partial(sine, shift=0, name="sin"),
        UnaryOp.COS: partial(sine, shift=1, name="cos"),
        UnaryOp.SINH: partial(sinh, poly=poly),
        UnaryOp.COSH: cosh,
        UnaryOp.ASINH: asinh,
        UnaryOp.ACOSH: acosh,
        UnaryOp.ATANH: atanh,
    }
    return {op: partial(body, k=k) for op, body in found.items()}
