"""Refuse reads that are provably outside their tensor, when an operation is defined."""

from __future__ import annotations

from tedsl.expr.nodes import Reduce
from tedsl.expr.tensor import ComputeOp


def check_reads(op: ComputeOp) -> None:
    """Refuse `op` when one of its reads is proved to be outside."""


def reads_inside(reduce: Reduce) -> bool:
    """True when every read below `reduce` is proved to be inside its tensor."""
    return False
