"""Sine and cosine with results rounded to 16 bits: texts of helper functions; `functions` has the
table that they belong to.

    x = (g + q) * pi / 2, g in -1/2 .. 1/2       `quarter_turns`, once for all waves of an argument
    sin(g * pi / 2) = g * p(g^2), cos(g * pi / 2) = c(g^2)
    sin(x), cos(x) are these two: swapped where the quadrant q is odd, negated by its second bit

Where results are rounded at once (`turned`), two elements are swapped and negated together, as
halves of a word, by the integers q.
"""

from __future__ import annotations

# Of one element: x is (g + q) quarter turns of pi / 2.  The last bits of t are an integer, since
# 3 * 2^22 is in it.  2 / pi is a sum of two float32 numbers; x times the first, less n, is rounded
# once.  No float32 number below 12800 is so near to a multiple of pi / 2 that what is left out of
# the sum shows: g is off by 2^-15.1 of itself at most.
_NEAR = """
    fma.rn.f32 t, x@, 0f3F22F983, 0f4B400000;
    sub.rn.f32 n, t, 0f4B400000;
    neg.f32 n, n;
    fma.rn.f32 g@, x@, 0f3F22F983, n;
    fma.rn.f32 g@, x@, 0f32DC9C88, g@;
    mov.b32 q@, t;
"""
# The same of a number beyond 12800: |x| is m * 2^(e - 30), and a0 to a2 are the bits of 2 / pi that
# count, from the bit e on: those before come to whole turns (Payne and Hanek), those after to less
# than 2^-70.  Infinity times 0 makes NaN.
_FAR = """
    abs.f32 t, x@;
    setp.gt.f32 far, t, 0f46480000;
    mov.b32 b, x@;
    shl.b32 e, b, 1;
    shr.u32 e, e, 24;
    sub.u32 e, e, 120;
    and.b32 m, b, 0x7fffff;
    or.b32 m, m, 0x800000;
    and.b32 k, e, 128;
    setp.ne.u32 p, k, 0;
    selp.b32 a0, 0xf534ddc0, 0, p;
    selp.b32 a1, 0xdb629599, 0xa2f9836e, p;
    selp.b32 a2, 0x3c439041, 0x4e441529, p;
    selp.b32 a3, 0xfe5163ab, 0xfc2757d1, p;
    and.b32 k, e, 64;
    setp.ne.u32 p, k, 0;
    selp.b32 a0, a2, a0, p;
    selp.b32 a1, a3, a1, p;
    selp.b32 a2, 0xf534ddc0, a2, p;
    selp.b32 a3, 0xdb629599, a3, p;
    selp.b32 a4, 0x3c439041, 0xf534ddc0, p;
    and.b32 k, e, 32;
    setp.ne.u32 p, k, 0;
    selp.b32 a0, a1, a0, p;
    selp.b32 a1, a2, a1, p;
    selp.b32 a2, a3, a2, p;
    selp.b32 a3, a4, a3, p;
    shf.l.wrap.b32 a0, a1, a0, e;
    shf.l.wrap.b32 a1, a2, a1, e;
    shf.l.wrap.b32 a2, a3, a2, e;
    mul.wide.u32 w, m, a2;
    shr.u64 w, w, 32;
    mad.wide.u32 w, m, a1, w;
    mul.wide.u32 v, m, a0;
    shl.b64 v, v, 32;
    add.u64 w, w, v;
    shl.b64 v, w, 2;
    cvt.rn.f32.s64 t, v;
    mul.rn.f32 t, t, 0f1F800000;
    add.u64 w, w, 0x2000000000000000;
    shr.u64 w, w, 62;
    cvt.u32.u64 k, w;
    setp.lt.s32 p, b, 0;
    neg.f32 n, t;
    selp.f32 t, n, t, p;
    neg.s32 m, k;
    selp.b32 k, m, k, p;
    fma.rn.f32 t, x@, 0f00000000, t;
    selp.f32 g@, t, g@, far;
    selp.b32 q@, k, q@, far;
"""


def _quarter_turns(name: str, words: int, even: str, odd: str) -> str:
    """The text of `quarter_turns`, or of the same for arguments of 16 bits.

    Args:
        name: of the function.
        words: registers of the arguments of eight elements.
        even: what makes the argument of an even element of its register.
        odd: the same of an odd one.
    """
    constant = name.upper()
    registers = ",".join(["=f"] * 8 + ["=r"] * 8 + ["f" if words == 8 else "r"] * words)
    return f'''
# Of the element number @: x is (g + q) quarter turns of pi / 2.
{constant}_NEAR = """{_NEAR}"""
# The same of one beyond 12800, if x is, by as many bits of 2 / pi as it takes.
{constant}_FAR = """{_FAR}"""
{constant} = tl.constexpr(
    "{{ .reg .b32 t, n, b, e, m, k, a0, a1, a2, a3, a4; .reg .b64 v, w; .reg .pred p, far;"
    + "".join(f".reg .b32 x{{i}}, g{{i}}, q{{i}};" for i in range(8))
    + "".join(f"{even}" for i in range(0, 8, 2))
    + "".join(f"{odd}" for i in range(1, 8, 2))
    + "".join({constant}_NEAR.replace("@", str(i)) for i in range(8))
    + "abs.f32 m, x0;"
    + "".join(f"abs.f32 t, x{{i}}; max.f32 m, m, t;" for i in range(1, 8))
    + "setp.gt.f32 p, m, 0f46480000; @!p bra NEAR;"
    + "".join({constant}_FAR.replace("@", str(i)) for i in range(8))
    + "NEAR:"
    + "".join(f"mov.b32 ${{i}}, g{{i}}; mov.b32 ${{8 + i}}, q{{i}};" for i in range(8))
    + "}}"
)


@triton.jit
def {name}(x):
    """g and q for which x is g + q quarter turns, |g| <= 1/2; q is taken modulo 4."""
    kinds: tl.constexpr = "{registers}"
    return tl.inline_asm_elementwise({constant}, kinds, [x], (tl.float32, tl.int32), True, 8)
'''


QUARTER_TURNS_NEAR = f'''
# No float16 number is beyond 65504, nor so near to a multiple of pi / 2 that what is left out of
# 2 / pi shows: g is off by 2^-17 of itself at most.
QUARTER_TURNS_NEAR = tl.constexpr("""{{
    .reg .b32 t, n;{_NEAR.replace("x@", "$2").replace("g@", "$0").replace("q@", "$1")}}}""")


@triton.jit
def quarter_turns_near(x):
    """`quarter_turns` of float16 numbers, which are never far."""
    return tl.inline_asm_elementwise(
        QUARTER_TURNS_NEAR, "=&f,=r,f", [x], (tl.float32, tl.int32), True, 1
    )
'''


SINE = "((s * 0.07793642960376217 - 0.6457973774274973) * s + 1.57079394506165) * g"
COSINE = "(s * 0.24571223293066932 - 1.232921309797728) * s + 0.999988142440044"


def _wave(name: str, odd: str, even: str, quarter: str) -> str:
    """The text of `short_sin` or `short_cos`: of polynomials of g the one for odd or for even
    quarter turns, negated where the second bit of `quarter` is set."""
    return f'''
@triton.jit
def short_{name}(turn):
    """{name} with a relative error of 2^-15, by `quarter_turns`."""
    g, q = turn
    s = g * g
    sine = {SINE}
    cosine = {COSINE}
    y = tl.where((q & 1) != 0, {odd}, {even})
    turned = ({quarter} << 30) & -2147483648
    return (y.to(tl.int32, bitcast=True) ^ turned).to(tl.float32, bitcast=True)
'''


def _turned(dtype: str, short: str) -> str:
    """The text of `turned_bfloat16` or `turned_float16`."""
    upper = dtype.upper()
    return f'''
# Of two elements: s and c are both sines and both cosines, two to a word.  p picks the halves of
# either: 0x3210 where q is even, 0x44 more in the byte of a half where it is odd.  The second bit
# of q, and that of q + 1, come to the signs.
TURNED_{upper} = tl.constexpr("""{{
    .reg .b32 s, c, b, p, n, m;
    cvt.rn.{short}x2.f32 s, $3, $2;
    cvt.rn.{short}x2.f32 c, $5, $4;
    prmt.b32 b, $6, $7, 0x0040;
    and.b32 p, b, 0x0101;
    and.b32 b, b, 0x0303;
    mad.lo.u32 p, p, 0x44, 0x3210;
    mul.lo.u32 n, b, 0x00404000;
    mad.lo.u32 m, b, 0x00404000, 0x40004000;
    prmt.b32 b, s, c, p;
    prmt.b32 c, c, s, p;
    lop3.b32 $0, b, n, 0x80008000, 0x78;
    lop3.b32 $1, c, m, 0x80008000, 0x78;
}}""")


@triton.jit
def turned_{dtype}(turn):
    """sin and cos, with a relative error of 2^-15 before they are rounded, by `quarter_turns`."""
    g, q = turn
    s = g * g
    sine = {SINE}
    cosine = {COSINE}
    return tl.inline_asm_elementwise(
        TURNED_{upper}, "=r,=r,f,f,f,f,r,r", [sine, cosine, q], (tl.{dtype}, tl.{dtype}), True, 2
    )
'''


HELPERS: dict[str, str] = {
    "quarter_turns": _quarter_turns("quarter_turns", 8, *(2 * ["mov.b32 x{i}, ${16 + i};"])),
    "quarter_turns_16": _quarter_turns(
        "quarter_turns_16",
        4,
        "shl.b32 x{i}, ${16 + i // 2}, 16;",
        "and.b32 x{i}, ${16 + i // 2}, 0xffff0000;",
    ),
    "quarter_turns_near": QUARTER_TURNS_NEAR,
    "short_sin": _wave("sin", "cosine", "sine", "q"),
    "short_cos": _wave("cos", "sine", "cosine", "(q + 1)"),
    "turned_bfloat16": _turned("bfloat16", "bf16"),
    "turned_float16": _turned("float16", "f16"),
}
"""By name: what is made of an argument of float32, of bfloat16 or of float16, `short_sin` and
`short_cos` of that, and both of them, rounded."""
