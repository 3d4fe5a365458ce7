"""float64 functions: exponentials, logarithms, hyperbolic functions, sin and cos are vectorised.

Largest error in units in the last place, measured as in `float32`:

    exp 1.0   exp2 1.1   expm1 1.8   log 0.9   log2 1.0   log10 1.0   log1p 0.9
    tanh 2.5  sigmoid 2.9  sin 1.5   cos 1.5   sinh 2.2   cosh 1.4
    asinh, acosh, atanh below 2.5

tan, asin, acos, atan, erf, pow and atan2 call the C library lane by lane, as do sin and cos beyond
1.6e6.  Coefficients: Remez fits by tests/helpers/fit_polynomials.py, highest power first.
"""

from __future__ import annotations

from collections.abc import Callable

from tedsl.backends.cpu.emit.llvm_values import Num
from tedsl.backends.cpu.math import core
from tedsl.expr.nodes import BinaryOp, UnaryOp

_LOG = (  # of (log1p(f) - 2 s) / s^3 in s^2, s = f / (2 + f)
    0.1325088750534519,
    0.13250169502240916,
    0.15387087338397175,
    0.1818177572460005,
    0.2222222264600385,
    0.2857142856909157,
    0.40000000000006225,
    0.6666666666666666,
)


def _log_of(f: Num) -> tuple[Num, Num]:
    s = f / (f + 2.0)
    z = s * s
    half = f * f * 0.5
    return f, s * (z.fma(z.poly(*_LOG), half)) - half


K = core.Format(
    mantissa=52,
    bias=1023,
    elem="double",
    tiny=2.0**-1022,
    sqrt_half=0x3FE6A09E667F3BCD,
    exp_low=-746.0,
    exp_high=710.5,
    ln2=(0.6931471805598903, 5.497923018708371e-14),
    log2e=(core.LOG2E, 2.0355273740931033e-17),
    log10_2=(0.30102999566361177, 3.694239077158931e-13),
    pi_2=(1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33),
    trig_limit=1.6e6,
    exp=(
        2.087532539497715e-09,
        2.5108979033673004e-08,
        2.7557402660061107e-07,
        2.7557244373810235e-06,
        2.480158717251588e-05,
        0.00019841269885966236,
        0.0013888888888962383,
        0.008333333333321691,
        0.04166666666666651,
        0.16666666666666677,
        0.5,
    ),
    sin=(
        -7.578526406311912e-13,
        1.6058362888631017e-10,
        -2.505210487971326e-08,
        2.755731921405675e-06,
        -0.00019841269841254784,
        0.008333333333333323,
        -0.16666666666666666,
    ),
    cos=(
        4.737742371299274e-14,
        -1.1470284657034176e-11,
        2.0876754285440985e-09,
        -2.7557319214992505e-07,
        2.4801587301570534e-05,
        -0.0013888888888888872,
        0.041666666666666664,
    ),
    log_of=_log_of,
    expm1_low=-38.0,
    expm1_big=60.0,
    tanh_limit=20.0,
    large=134217728.0,
)


TABLE: dict[UnaryOp, Callable[[Num], Num]] = core.table(K, None)
TABLE2: dict[BinaryOp, Callable[[Num, Num], Num]] = {}
