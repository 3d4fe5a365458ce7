"""Fusion of nested loops into one, as all rules need it."""

from __future__ import annotations

from collections.abc import Sequence

from tedsl.expr.nodes import Axis
from tedsl.scheduling.handles.stage import Stage


def fused(stage: Stage, axes: Sequence[Axis]) -> Axis:
    """One loop of some that are nested directly inside each other."""
    return stage.fuse(*axes) if len(axes) > 1 else axes[0]
