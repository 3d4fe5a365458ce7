"""Full reductions to a scalar: partial results over the grid, which the last program combines
(last-block reduction), or a second kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tedsl.schedules.analysis.groups import Group
from tedsl.schedules.analysis.nests import (
    any_order,
    computed,
    first,
    is_reduction,
    long_axes,
    padded,
    pow2_at_least,
    reduce_axes,
    sole_readers,
)
from tedsl.schedules.analysis.views import definitions, volume
from tedsl.schedules.fusion.horizontal import Beside, ends_in, in_a_launch, in_parts_beside
from tedsl.schedules.gpu.columns.sibling_sums import lead_sums, summed_beside
from tedsl.schedules.gpu.last_block import one_launch
from tedsl.schedules.gpu.launch import pick_warps
from tedsl.schedules.knobs import pick
from tedsl.schedules.loops import fused, fused_folds
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage

# Elements that a full reduction takes at once, and how many times that one program folds alone.
FOLDED, AT_ONCE = 2048, 4
# Partial results that the program which combines them has at once, and each of its warps.
MOST_AT_ONCE, EACH = 8192, 512


def take_results(s: Schedule, groups: Sequence[Group]) -> list[Group]:
    """The kernels, where one of a single element takes in the full reductions that only it reads:
    their last step is done there."""
    view = definitions(s)
    users = sole_readers(view, {s[t].name for t in s.outputs})
    kept = {group.root: group for group in groups}
    owners = dict(kept)
    for group in reversed(groups):
        op = view[group.root]
        taker = owners.get(users.get(group.root, ""))
        if op.axes or group.inner or not is_reduction(op) or taker is None:
            continue
        apart = taker.root != users[group.root] and not group.in_parts
        root = view[taker.root]
        if not apart and not long_axes(root.axes) and not is_reduction(root):
            taker.inner.insert(0, group.root)
            taker.axes[group.root] = {}
            owners[group.root] = taker
            del kept[group.root]
    return list(kept.values())


def reduce_whole(s: Schedule, group: Group, beside: Beside) -> None:
    """A full reduction to a scalar, or some of them and what is computed of their results: partial
    results over the grid, combined by the last program (last-block reduction) or by a second
    kernel; a short one is a program in the launch of another kernel, where it can be."""
    stage = s[group.root]
    if not group.inner:
        along = not group.in_parts and _along(s, group.root, beside)
        if along or group.in_parts:
            last = along and one_launch(s, group.root)
            _combine(s, stage, None if last else stage)
            if last:
                beside.ends.append((group.root, beside.joins[-1][1]))
        elif (made := _partial_sums(s, group.root, stage, beside)) is None:
            in_a_launch(s, group.root, beside)
        elif one_launch(s, group.root, default=True):
            ends_in(s, stage, made)
        return
    view, inside = definitions(s), set(group.inner)
    place = fused(stage, axes) if (axes := view[group.root].axes) else stage.fuse()
    # What combines parts of a cascade is read by what combines the others: one program has all.
    pairs = [(name, each) for name in inside for each in view.sources(name) if each in inside]
    linked = {name for pair in pairs for name in pair}
    found: dict[str, Stage] = {}
    for name in reversed(group.inner):
        if name in linked or _along(s, name, beside):
            _combine(s, s[name], stage)
        elif (made := _partial_sums(s, name, stage, beside)) is not None:
            found[name] = made
        s[name].compute_at(stage, place)
    kernels = {each.name: each for each in found.values()}
    last = len(kernels) == 1 and one_launch(s, next(iter(found)), default=True)
    if not (last and ends_in(s, stage, *kernels.values())):
        stage.bind(place, "blockIdx.x")


def _partial_sums(s: Schedule, name: str, root: Stage, beside: Beside) -> Stage | None:
    """Partial results of a full reduction, of which `root` is computed, in a kernel of their own or
    of another, of which the leading stage is returned; None for a short one."""
    kernel = summed_beside(s, name, root.name, beside)
    if kernel is None and (made := _fold_whole(s, s[name])) is not None:
        kernel, like, size = made
        if size is not None:
            lead_sums(beside, (name, root.name), kernel, size, like)
    if kernel is not None:
        for axis in reduce_axes(s[name]):
            s[name].vectorize(axis)
    return kernel


def _along(s: Schedule, name: str, beside: Beside) -> bool:
    """True for a long reduction whose parts are reduced in the loops of another kernel."""
    op = definitions(s)[name]
    long = any_order(op) and (volume(op.reduce_axes) or 0) > AT_ONCE * FOLDED
    return long and in_parts_beside(s, name, beside)


def _combine(s: Schedule, stage: Stage, root: Stage | None) -> None:
    """Combine partial results in one program, that of `root`, or the last one of those that made
    them, many at once: in a loop over few of them it would wait for memory again and again."""
    for axis in reduce_axes(stage):
        parts = pow2_at_least(volume([axis]) or MOST_AT_ONCE)
        piece = stage.split(axis, factor=min(MOST_AT_ONCE, parts))[1]
        stage.vectorize(piece)
        usual = max(4, min(parts, MOST_AT_ONCE) // EACH)
        if root is not None:
            root.launch(num_warps=pick_warps(s, root, (4, 8, 16, 32), usual, parts))


def _fold_whole(
    s: Schedule, stage: Stage
) -> tuple[Stage, Callable[[Stage], Stage], int | None] | None:
    """Partial results in programs of their own: their stage, what makes the same parts of another
    reduction, and how many elements there are; None where there are few, which are lanes then."""
    op = computed(stage)
    if not any_order(op):
        fused_folds(s, stage)
        return None
    total = volume(op.reduce_axes)
    block = pick(s, f"{stage.name}.block", (512, 1024, 2048, 4096), FOLDED, padded(total))
    if total is not None and total <= AT_ONCE * block:
        _, piece = stage.split(fused_folds(s, stage), factor=block)
        stage.vectorize(piece)
        return None
    fitting = 1 << 10 if total is None else pow2_at_least(total // (2 * block))
    choices = (32, 64, 128, 256, 512, 1024, 2048)
    parts = pick(s, f"{stage.name}.parts", choices, min(1024, fitting), max(fitting, 32))
    like = partial(_in_parts, total=total, block=block, parts=parts)
    made = like(stage)
    made.launch(num_warps=pick(s, f"{stage.name}.warps", (4, 8, 16), 8))
    return made, like, total


def _in_parts(stage: Stage, total: int | None, block: int, parts: int) -> Stage:
    """The stage of partial results of a full reduction, which goes over its part in pieces."""
    s = stage.schedule
    flat, op = fused_folds(s, stage), computed(stage)
    whole = None if total is None else block * -(-total // (block * parts))
    part, _ = stage.split(flat, nparts=parts) if whole is None else stage.split(flat, factor=whole)
    made = s[first(s.rfactor(op.outputs[0], part))]
    inner = definitions(s)[made.name]
    _, lanes = made.split(fused(made, inner.reduce_axes), factor=block)
    made.vectorize(lanes)
    (grid,) = inner.axes
    made.bind(grid, "blockIdx.x")
    if total is not None and whole is not None and total % whole:
        made.cut(grid, total // whole)  # no masks in all parts but the last
    return made
