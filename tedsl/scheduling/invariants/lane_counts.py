"""Are lanes counted when the kernel is built?  Asked of the region that a stage computes where it
is attached.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from tedsl.expr.nodes import Axis
from tedsl.ir.nodes import LoopKind
from tedsl.scheduling.kernels.tree import computed_in, group_of, kernel_leader, root_of
from tedsl.scheduling.plan import Plan, StagePlan
from tedsl.scheduling.plan.labels import labels, loops_text
from tedsl.scheduling.plan.links import sized
from tedsl.scheduling.plan.relations import constant, extents, fixed_extent, ranks
from tedsl.scheduling.plan.unshare_axes import own_nests
from tedsl.scheduling.primitives.call import Call
from tedsl.scheduling.regions.infer import Bounds, infer_again
from tedsl.tensor.tensor import ComputeOp


def has_runtime_sizes(plan: Plan) -> bool:
    """True when a shape in the plan is known only at the call."""
    return sized(plan)


def constant_lanes(plan: Plan, stage: StagePlan, axis: Axis) -> bool:
    """True when the extent of `axis` is a constant at the place where `stage` is computed in
    `plan`.
    """
    if stage.placement.axis is None or not has_runtime_sizes(plan):
        return constant(extents(stage)[axis]) is not None
    return lanes_there(plan, stage, axis) is not None


def lanes_there(plan: Plan, stage: StagePlan, axis: Axis) -> int | None:
    """The extent of a loop at the place where `stage` is computed, where it is a constant there."""
    fixed = fixed_extent(stage, axis)
    if fixed is not None or stage.placement.axis is None:
        return constant(extents(stage)[axis]) if fixed is None else fixed
    own, bounds = _inferred(plan, root_of(plan, stage).name)
    position = ranks(stage.leaf_axes)[axis]
    return constant(bounds[stage.name].extents[own.stage(stage.name).leaf_axes[position]])


@lru_cache(maxsize=4)
def _inferred(plan: Plan, root: str) -> tuple[Plan, Bounds]:
    """The bounds of the kernel of the stage `root`, once for all its lanes."""
    own = own_nests(plan)
    roots = {stage.name for stage in group_of(own, own.stage(root))}
    return own, infer_again(own, computed_in(own, roots))


def require_constant_lanes(
    before: Plan, call: Call, after: Plan, stage: StagePlan, axis: Axis
) -> None:
    """The extent of a vectorized loop is a constant."""
    if constant_lanes(after, stage, axis):
        return
    name = labels(stage)[axis]
    if stage.mark(axis).kind is LoopKind.VECTORIZED:
        raise call.refuse(
            before,
            f"{stage.name}.{name} is vectorized, and its extent would no longer be a constant",
            axis=axis,
            facts=[("loops", loops_text(stage))],
            hint=f"first undo it with s[{stage.name}].serial({name}), or split it before vectorize",
        )
    raise call.refuse(
        before,
        f"the extent of {name} is not a constant, and lanes are counted when the kernel is built",
        axis=axis,
        facts=[("loops", loops_text(stage))],
        hint=f"first split it, e.g. outer, inner = s[{stage.name}].split({name}, factor=32), "
        "and vectorize inner",
    )


def require_all_lanes(before: Plan, call: Call, after: Plan, moved: str = "") -> None:
    """Moving a stage must leave the extents of vectorized loops constant.

    Where only the stage `moved` has moved, those are in the kernels that it left and joined.
    """
    if moved and not has_runtime_sizes(after):
        return  # loops are as long as the definition and the relations say, wherever they are
    plans = (before, after) if moved else ()
    kernels = {kernel_leader(plan, plan.stage(moved)).name for plan in plans}
    for stage, axis in _lanes(after):
        if not moved or kernel_leader(after, stage).name in kernels:
            require_constant_lanes(before, call, after, stage, axis)


def all_lanes_constant(plan: Plan) -> bool:
    """True when every vectorized loop has a constant extent."""
    return all(constant_lanes(plan, stage, axis) for stage, axis in _lanes(plan))


def _lanes(plan: Plan) -> Iterator[tuple[StagePlan, Axis]]:
    for stage in plan.stages:
        if isinstance(stage.op, ComputeOp) and not stage.placement.inlined:
            for axis in stage.leaf_axes:
                if stage.mark(axis).kind is LoopKind.VECTORIZED:
                    yield stage, axis
