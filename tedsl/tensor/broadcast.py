"""Element-wise operations of whole tensors, by numpy's broadcasting rules.

Shapes are aligned at their last dimension; an extent of 1 is repeated; other extents must be equal,
symbolic ones provably so.  Each call makes one `ComputeOp`; nothing is computed or fused here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Const, Expr, UnaryOp
from tedsl.expr.promote import DTypeLike, Operand, as_dtype
from tedsl.expr.visit import structural_equal, walk
from tedsl.late import late
from tedsl.tensor import compute, tensor
from tedsl.tensor.tags import current_tag

if TYPE_CHECKING:
    from tedsl.index import prove as proofs
else:
    proofs = late("tedsl.index.prove")

_UNARY: dict[str, Callable[[Operand], Expr]] = {
    "neg": build.neg,
    "invert": build.invert,
    "abs": lambda a: build.unary(UnaryOp.ABS, a),
}


def binary_operator(name: str, a: Operand, b: Operand) -> tensor.Tensor:
    """`build.<name>` of every pair of elements; at least one operand is a tensor."""
    function: Callable[[Operand, Operand], Expr] = getattr(build, name)
    return elementwise(function, (a, b), name)


def unary_operator(name: str, a: Operand) -> tensor.Tensor:
    """One of `neg`, `invert`, `abs` of every element."""
    return elementwise(_UNARY[name], (a,), name)


def cast_tensor(a: tensor.Tensor, dtype: DTypeLike) -> tensor.Tensor:
    """Every element as `dtype`; the same tensor when it already is."""
    wanted: DType = as_dtype(dtype)
    if a.dtype is wanted:
        return a

    def element(x: Operand) -> Expr:
        return build.cast(x, wanted)

    return elementwise(element, (a,), "cast")


def elementwise(function: Callable[..., Expr], operands: Sequence[Operand], name: str) -> Any:
    """`function` of the elements of tensors and of scalars, as a new tensor; or as an expression
    where a scalar is over axes and the tensors have no dimensions: their elements are meant.

    Its tag is `broadcast` where several tensors meet and `elemwise` otherwise.

    Args:
        function: from one scalar per operand to the element.
        operands: tensors, numbers, and expressions over no axis.
        name: the name of the operation.

    Raises:
        ExprError: shapes that do not broadcast, or a scalar that uses an axis.
    """
    over_axes = any(isinstance(each, Expr) and _axis_in(each) is not None for each in operands)
    if over_axes and not any(each.ndim for each in operands if isinstance(each, tensor.Tensor)):
        elements = (tensor.read(t, ()) if isinstance(t, tensor.Tensor) else t for t in operands)
        return function(*elements)
    for each in operands:
        if isinstance(each, Expr):
            _check_scalar(name, each)
    shape = broadcast_shapes([t.shape for t in operands if isinstance(t, tensor.Tensor)], name)

    def element(*axes: Axis) -> Expr:
        return function(
            *(
                read_broadcast(each, axes) if isinstance(each, tensor.Tensor) else each
                for each in operands
            )
        )

    tensors = [each for each in operands if isinstance(each, tensor.Tensor)]
    tag = current_tag() or ("broadcast" if len(tensors) > 1 else "elemwise")
    return compute.compute(shape, lambda *i: element(*i), name=name, tag=tag)


def read_broadcast(source: tensor.Tensor, axes: Sequence[Expr]) -> Expr:
    """`source` at the last of `axes`, at 0 along extents of 1 that are longer there."""
    last = axes[len(axes) - source.ndim :]
    return tensor.read(
        source,
        [
            Const(0, axis.dtype) if is_one(extent) and not _is_unit(axis) else axis
            for extent, axis in zip(source.shape, last, strict=True)
        ],
    )


def _is_unit(axis: Expr) -> bool:
    return isinstance(axis, Axis) and axis.domain is not None and is_one(axis.domain.extent)


def is_one(extent: Expr) -> bool:
    """True for the constant 1."""
    return isinstance(extent, Const) and extent.value == 1


def broadcast_shapes(shapes: Sequence[tuple[Expr, ...]], name: str) -> tuple[Expr, ...]:
    """The shape to which all `shapes` broadcast.

    Raises:
        ExprError: two extents that are neither 1 nor known to be equal.
    """
    rank = max(map(len, shapes), default=0)
    result: list[Expr] = [Const(1, DType.int32)] * rank
    for shape in shapes:
        for position, extent in enumerate(shape, start=rank - len(shape)):
            known = result[position]
            if is_one(known):
                result[position] = extent
            elif not is_one(extent) and not same_extent(known, extent):
                listed = " and ".join(str(list(each)) for each in shapes)
                raise ExprError(
                    f"shapes {listed} do not broadcast: {known} is not known to equal {extent}",
                    subject=name,
                    hint="make the extents equal or 1; use the same te.var for equal sizes",
                )
    return tuple(result)


def same_extent(a: Expr, b: Expr) -> bool:
    """True when two extents are known to be equal."""
    return structural_equal(a, b) or proofs.equal(a, b)


def _check_scalar(name: str, expr: Expr) -> None:
    axis = _axis_in(expr)
    if axis is not None:
        raise ExprError(
            f"an expression over the axis {axis.name} meets a whole tensor",
            subject=name,
            hint="index the tensor, e.g. A[i, j], so that both are elements",
        )


def _axis_in(expr: Expr) -> Axis | None:
    return next((node for node in walk(expr) if isinstance(node, Axis)), None)
