"""What has an element for each row, beside a kernel whose rows are in parts: it combines the parts
in a kernel of its own, since each program of a row would store it once more."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tedsl.schedules.analysis.nests import reduce_axes
from tedsl.schedules.loops import fold_at_once, fused
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.graph import readers as plan_readers
from tedsl.tensor.tensor import ComputeOp

# Results, of one element for each row, of a program.
RESULTS = 16


def merged_again(s: Schedule, readers: Sequence[str], inside: Collection[str]) -> list[str]:
    """Let stages read copies of those `inside` a kernel, and of what is inlined between; returns
    the copies that are reductions, producers first."""
    ours, made, behind = set(readers), list[str](), _behind(s, inside)
    for stage in reversed(s.plan.stages):
        name = stage.name
        between = name not in ours and name in behind and stage.placement.inlined
        if name not in inside and not between:
            continue
        users = [each.name for each in plan_readers(s.plan, s[name].op)]
        mine = [user for user in users if user in ours]
        if not mine:
            continue
        if len(mine) == len(users) and name not in inside:
            ours.add(name)
        else:
            copy = s[s.recompute(s[name].op.outputs[0], mine)]
            ours.add(copy.name)
            if reduce_axes(copy):
                made.insert(0, copy.name)
            else:
                copy.compute_inline()
    return made


def _behind(s: Schedule, inside: Collection[str]) -> set[str]:
    """The stages that depend on one of those."""
    found = set(inside)
    for stage in s.plan.stages:
        if stage.name in found and isinstance(stage.op, ComputeOp):
            found.update(each.name for each in plan_readers(s.plan, stage.op))
    return found


def store_merged(s: Schedule, names: Sequence[str], merges: Sequence[str]) -> None:
    """One kernel of `names`, tiles of rows over the grid, which combines the parts of its rows."""
    leader = s[names[0]]
    grid, lanes = leader.split(fused(leader, leader.op.axis), factor=RESULTS)
    leader.bind(grid, "blockIdx.x")
    leader.vectorize(lanes)
    for name in names[1:]:
        stage = s[name]
        _, lanes = stage.split(fused(stage, stage.op.axis), factor=RESULTS)
        stage.vectorize(lanes)
        stage.compute_with(leader, grid)
    for name in reversed(merges):
        fold_at_once(s[name], leader, grid)
    leader.launch(num_warps=1)
