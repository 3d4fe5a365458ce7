"""`gradient`: derivatives of tensor expressions, as tensor expressions.

The method is reverse accumulation (Linnainmaa 1970; Griewank and Walther, Evaluating Derivatives,
2008).  Inverting index maps instead of scattering follows Li, Gharbi, Adams, Durand and
Ragan-Kelley (Differentiable programming for image processing and deep learning in Halide, 2018);
the signature and the meaning of `head` are TVM's.  The work is in `scan`, which is
loaded at the first call.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from tedsl.errors import ExprError
from tedsl.expr.nodes import Expr
from tedsl.tensor.broadcast import same_extent
from tedsl.tensor.printer import operations
from tedsl.tensor.scan_body import within_scans
from tedsl.tensor.tensor import ComputeOp, ExternOp, PlaceholderOp, Tensor


def gradient(
    output: Tensor, inputs: Sequence[Tensor] | Tensor, head: Tensor | None = None
) -> list[Tensor]:
    """The derivatives of `output` by each of `inputs`, as tensor expressions.

    They are definitions like any other: scheduled, built for any target, and differentiated again.

    Args:
        output: a float tensor.
        inputs: float tensors, placeholders or definitions on the way to `output`.
        head: the derivative of something else by `output`, of shape `prefix + output.shape`; the
            results are then derivatives of that.  Without it, the results are Jacobians, with
            `output.shape` as prefix; for an output without dimensions that is the gradient.

    Returns:
        One tensor for each input, of its dtype and of shape `prefix + input.shape`, named
        `d_<output>_d_<input>`; zeros where the output does not depend on the input.

    Raises:
        ExprError: an output, input or head that is no float, a head of another shape, a definition
            that has no derivative, an input that belongs to the steps of a scan, or a scan whose
            steps read states at no fixed distance.

    Conventions where there is no one derivative: of equal operands of `max` and `min` a constant
    gets everything, else the first one, and a reduction gives it to the first extreme term; `abs`
    and `sign` have 0 at 0, so `relu` has too; rounding, integers, bools and conditions have 0
    everywhere; a choice passes derivatives to the chosen side only, so what the other side would
    give (infinities, NaN, reads outside) does not matter.  `a ** b` has 0 by `b` at `a = 0`.

    A scan has a scan as its derivative, over the steps from the last to the first.  It reads the
    result of the forward scan, which is kept, and computes the rest of a step again; tensors that
    the steps read get theirs from all steps at once, after it.  The steps may read their states at
    fixed distances: `S[t - 1]`, `S[t - 2]`, ..., also by a reduction.

    Sums over 16-bit floats accumulate in float32 and are rounded once for each tensor.

    Cost: indices that are affine in the axes (also with strides, flips, `//` and `%`) are inverted,
    and the derivative sums over the axes that are left: those of the contracted dimensions for a
    matrix product, those of the window for a convolution.  Reads at indices from memory (`E[t[i]]`)
    and other maps compare all points with each element.  A product, or a reducer of your own, costs
    the square of its number of terms.
    """
    wanted = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    for each in (output, *wanted, *(() if head is None else (head,))):
        _check_float(each)
    _check_kinds(output)
    _check_outside_steps(output, wanted)
    prefix = output.shape if head is None else _check_head(output, head)
    backward: Any = importlib.import_module("tedsl.gradient.scan")
    made: list[Tensor] = backward.differentiate(output, wanted, head, prefix)
    return made


def _check_float(tensor: Tensor) -> None:
    if not tensor.dtype.is_float:
        raise ExprError(
            f"{tensor.name} is {tensor.dtype}, and only floats have derivatives",
            subject="gradient",
            hint=f"cast it where it is defined: {tensor.name}.astype('float32')",
        )


def _check_kinds(output: Tensor) -> None:
    for op in operations([output]):
        if isinstance(op, ExternOp):
            raise ExprError(
                f"{op.name} is an extern: nothing is known of {op.function.label}, which it calls",
                subject="gradient",
                hint=f"write the derivative of {op.name} yourself (te.extern or te.compute), "
                "and pass it as head= to the gradient of what stands before it",
            )
        if not isinstance(op, (ComputeOp, PlaceholderOp)):
            raise ExprError(
                f"{op.name} is a {type(op).__name__}, which has no derivative here",
                subject="gradient",
                hint="write it with te.compute, or differentiate the parts before and after it and "
                "pass its own derivative between them as head=",
            )


def _check_outside_steps(output: Tensor, wanted: Sequence[Tensor]) -> None:
    steps = within_scans(operations([output]))
    for tensor in wanted:
        scan = steps.get(tensor.op)
        if scan is not None:
            raise ExprError(
                f"{tensor.name} belongs to the steps of scan {scan.name!r}: it is computed anew in "
                "each of them, and has no one derivative",
                subject="gradient",
                hint=f"ask for the derivative by {scan.name}, or by what its steps read",
            )


def _check_head(output: Tensor, head: Tensor) -> tuple[Expr, ...]:
    """The dimensions of `head` before those of `output`."""
    split = head.ndim - output.ndim
    pairs = zip(head.shape[max(split, 0) :], output.shape, strict=False)
    if split < 0 or not all(same_extent(a, b) for a, b in pairs):
        raise ExprError(
            f"head {head.name} has the shape {list(head.shape)}, {output.name} has "
            f"{list(output.shape)}",
            subject="gradient",
            hint="the last dimensions of head must be those of the output",
        )
    return head.shape[:split]
