"""Products of float32 on tensor cores: each operand is split into two TF32 numbers, and three of
their four products are added up.

    a * b  -->  hi(a) * hi(b) + hi(a) * lo(b) + lo(a) * hi(b)
    with hi(x) = tf32(x), lo(x) = x - hi(x)

What is left out is below 2^-22 of a product, less than what a float32 sum of a few products rounds
away.  Measured once on an H100, for rows that are aligned: errors of a fifth of those of a loop of
multiply-adds, ours or cuBLAS's, which adds up one product after the other; 1.2 to 1.7 times as fast
as cuBLAS.  Unaligned rows of 6283 elements took 2.4 times as long as cuBLAS.

Source: NVIDIA, CUTLASS, examples/27_ampere_3xtf32_fast_accurate_tensorop_gemm.
"""

from __future__ import annotations

from tedsl.dtypes import DType
from tedsl.expr.nodes import AxisKind
from tedsl.ir.nodes import LoopKind, Precision
from tedsl.schedules.analysis.nests import Contraction, contraction
from tedsl.schedules.analysis.views import definitions
from tedsl.scheduling.handles.schedule import Schedule


def is_split(shape: Contraction) -> bool:
    """True for a contraction of float32, whose operands are split: they may not be rounded."""
    return shape.unit is DType.float32 and not shape.tf32


def split_floats(s: Schedule) -> None:
    """The knob `precision` of each contraction of float32 whose K steps are lanes."""
    view = definitions(s)
    for name, op in view.items():
        shape = contraction(op, grouped=True)
        if shape is None or shape.unit is not DType.float32 or name in s.settled:
            continue
        stage = s[name]
        marks = {axis: stage.plan.mark(axis) for axis in stage.leaf_iter_vars}
        folded = [axis for axis in marks if axis.kind is AxisKind.REDUCE]
        lanes = [axis for axis in folded if marks[axis].kind is LoopKind.VECTORIZED]
        if len(lanes) == 1:
            choices = (Precision.TF32X3.value, Precision.IEEE.value)
            choices = (Precision.TF32.value, *choices) if shape.tf32 else choices
            chosen = s.knob(f"{name}.precision", choices, choices[0])
            stage.dot(lanes[0], precision=chosen)
