"""In which stages two plans differ, and what was found of one that is as true of the other.

A call changes few stages.  Those that only follow it, because what they read was rebuilt, are
objects of their own and yet the same (`links.bearing`): they are left out here, so that a question
after a call costs what its answer does and not a walk over all stages.  Imports the links.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress
from operator import is_, is_not
from typing import TYPE_CHECKING

from tedsl.once import known, share, tell
from tedsl.scheduling.plan.links import (
    axis_owners,
    bearing,
    carry_lists,
    has_sizes,
    indexed_by_data,
    indexes_by_data,
    is_inlined,
    operations_read,
    places,
    reader_names,
    share_operations,
    since,
    sized,
    start_places,
    substitution,
    symbolic,
    symbolic_extents,
    tensors_of_init,
)

if TYPE_CHECKING:
    from tedsl.scheduling.plan import Plan, StagePlan


@dataclass(frozen=True, slots=True)
class Differing:
    """Where two plans differ: `pairs` are the numbers, before and after, of what is another stage
    of the same name, those that only follow left out; `fresh` the numbers of stages that only the
    later plan has, `gone` of those that only the earlier one has.

    With `in_order` the stages that both have stand in one order.
    """

    pairs: tuple[tuple[int, int], ...]
    fresh: tuple[int, ...]
    gone: tuple[int, ...]
    in_order: bool


@lru_cache(maxsize=4)
def differing(before: Plan, after: Plan) -> Differing:
    """Where `after` differs from `before`."""
    had, have = places(before).by_name, places(after).by_name
    told = since(after)
    if told is not None and told.plan is before:
        both = [(had[name], have[name]) for name in told.changed if name in had]
        fresh = tuple([have[name] for name in told.changed if name not in had])
        return Differing(_changed(before, after, sorted(both)), fresh, (), True)
    old, new = before.stages, after.stages
    if had is have:
        numbers = compress(range(len(new)), map(is_not, old, new))
        pairs = ((n, n) for n in numbers)
        return Differing(_changed(before, after, pairs), (), (), True)
    kept = tuple(filter(have.__contains__, had))
    in_order = kept == tuple(filter(had.__contains__, have))
    first, second = [had[name] for name in kept], [have[name] for name in kept]
    others = map(is_not, map(old.__getitem__, first), map(new.__getitem__, second))
    return Differing(
        _changed(before, after, compress(zip(first, second, strict=True), others)),
        tuple(have[name] for name in have.keys() - had.keys()) if len(kept) < len(have) else (),
        tuple(had[name] for name in had.keys() - have.keys()) if len(kept) < len(had) else (),
        in_order,
    )


def _changed(
    before: Plan, after: Plan, pairs: Iterable[tuple[int, int]]
) -> tuple[tuple[int, int], ...]:
    """The pairs of stages of which one does more than follow the other."""
    old, new = before.stage_at, after.stage_at
    return tuple((a, b) for a, b in pairs if bearing(old(a)) is not bearing(new(b)))


def differing_stages(
    before: Plan, after: Plan
) -> tuple[list[tuple[StagePlan, StagePlan]], list[StagePlan]]:
    """The stages of one name that differ, before and after, and the stages that are new, each in
    plan order."""
    found = differing(before, after)
    pairs = sorted(found.pairs, key=_later)
    return (
        [(before.stage_at(a), after.stage_at(b)) for a, b in pairs],
        [after.stage_at(number) for number in sorted(found.fresh)],
    )


def _later(pair: tuple[int, int]) -> int:
    return pair[1]


def carry(before: Plan, after: Plan) -> None:
    """Let `after` have what was found of `before` and what a look at the stages that differ makes
    of it."""
    if share_operations(before, after):
        return
    pairs, fresh = differing_stages(before, after)
    stages = [*(new for _, new in pairs), *fresh]
    for find, of_op in (
        (sized, has_sizes),
        (indexed_by_data, indexes_by_data),
        (symbolic, symbolic_extents),
        (start_places, tensors_of_init),
    ):
        same = not known(find, after) and not any(of_op(stage.op) for stage in stages)
        if same and not find(before):
            tell(find, after, find(before))
    found = differing(before, after)
    if found.gone or not found.in_order:
        return
    _carry_owners(before, after, pairs, fresh)
    _carry_readers(before, after, pairs, fresh)
    if not any(map(is_inlined, fresh)) and all(
        is_inlined(old) is is_inlined(new) for old, new in pairs
    ):
        share(substitution, before, after)
    carry_lists(before, after, pairs, fresh)


def _carry_readers(
    before: Plan,
    after: Plan,
    pairs: Iterable[tuple[StagePlan, StagePlan]],
    fresh: Iterable[StagePlan],
) -> None:
    if not known(reader_names, before) or known(reader_names, after):
        return
    found, where = dict(reader_names(before)), places(after)
    sources = [(new, _sources(before, old), _sources(after, new)) for old, new in pairs]
    for stage, had, have in (*sources, *((new, set[str](), _sources(after, new)) for new in fresh)):
        for name in had - have:
            found[name] = tuple([each for each in found[name] if each != stage.name])
        for name in have - had:
            names = (*found.get(name, ()), stage.name)
            found[name] = tuple(sorted(names, key=where.by_name.__getitem__))
    tell(reader_names, after, found)


def _sources(plan: Plan, stage: StagePlan) -> set[str]:
    """The stages of a plan that a stage reads."""
    where = places(plan)
    return {where.names[where.by_op[op]] for op in operations_read(stage.op) if op in where.by_op}


def _carry_owners(
    before: Plan,
    after: Plan,
    pairs: Iterable[tuple[StagePlan, StagePlan]],
    fresh: Iterable[StagePlan],
) -> None:
    if not known(axis_owners, before) or known(axis_owners, after):
        return
    owners = axis_owners(before)
    new = {axis: stage.name for stage in fresh for axis in stage.root_axes}
    if new.keys().isdisjoint(owners) and all(_same_axes(a, b) for a, b in pairs):
        owners.update(new)
        tell(axis_owners, after, owners)


def _same_axes(old: StagePlan, new: StagePlan) -> bool:
    first, second = old.root_axes, new.root_axes
    return len(first) == len(second) and all(map(is_, first, second))
