"""A graph of definitions built again: other tensors in the place of some, one more axis in front.

Imports the language alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tedsl.errors import ExprError
from tedsl.expr.nodes import Expr, TensorRead
from tedsl.expr.visit import reads, rewrite
from tedsl.tensor.axis import data_axis
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, ScanOp, Tensor
from tedsl.tensor.verify_op import make_compute


def rebuilt(
    outputs: Sequence[Tensor], given: Mapping[Tensor, Tensor], batch: Expr | None = None
) -> list[Tensor]:
    """`outputs` as they are where other tensors stand for some of those that they are made from.

    Args:
        outputs: of any shape.
        given: what stands for which tensor, of the same dtype and shape; with `batch`, of that many
            such tensors, along a first dimension.
        batch: the extent of the dimension that everything that depends on `given` has in front.

    Returns:
        The tensors in order; those that depend on nothing of `given` are the same objects.

    Raises:
        ExprError: a scan or an extern depends on `given`.
    """
    moved = dict(given)
    for op in operations(tuple(outputs)):
        if op.outputs[0] in moved or not _depends(op, moved):
            continue
        if not isinstance(op, ComputeOp) or isinstance(op, ScanOp):
            raise ExprError(
                f"{op.name} is a {type(op).__name__}, of which only the whole is defined",
                subject="a definition under another one",
                hint="write it with te.compute, or call the operator once for each part",
            )
        moved.update(zip(op.outputs, _again(op, moved, batch).outputs, strict=True))
    return [moved.get(tensor, tensor) for tensor in outputs]


def _depends(op: Operation, moved: Mapping[Tensor, Tensor]) -> bool:
    """True when an operation reads one of `moved` ."""
    if isinstance(op, ComputeOp):
        return any(read.tensor in moved for read in reads(*op.bodies))
    if isinstance(op, ExternOp):
        return any(tensor in moved for tensor in op.inputs)
    return False


def _again(op: ComputeOp, moved: Mapping[Tensor, Tensor], batch: Expr | None) -> ComputeOp:
    lead = () if batch is None else (data_axis("batch", batch),)

    def replaced(node: Expr) -> Expr | None:
        if isinstance(node, TensorRead) and node.tensor in moved:
            return TensorRead(moved[node.tensor], (*lead, *node.indices))
        return None

    memo: dict[Expr, Expr] = {}
    bodies = tuple(rewrite(body, replaced, memo) for body in op.bodies)
    return make_compute(op.name, (*lead, *op.axes), bodies, op.reduce_axes, op.tag)
