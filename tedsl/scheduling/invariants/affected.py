"""Whose place may have become illegal by a call: what is judged again.

The judgement of a place (`place_problem` of `placement/legality`) looks at the stage, at those
around it, at those that read it, directly or through inlined ones, at those around these, and at
the leaders of all of them.  Here it is asked the other way round: of whose judgement a stage is
a part.  Imports the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tedsl.scheduling.plan import Online, Plan, StagePlan
from tedsl.scheduling.plan.differing import carry, differing
from tedsl.scheduling.plan.links import (
    follower_names,
    guest_names,
    output_names,
    places,
    start_places,
    tensors_of_init,
    tensors_read,
)


def affected(before: Plan, after: Plan) -> tuple[StagePlan, ...] | None:
    """The attached stages of `after` whose places have to be judged again, in plan order; None for
    all of them.

    Requires: all places of `before` are legal, and there are no scans.
    """
    carry(before, after)
    found_changed = changed(before, after)
    if found_changed is None:
        return None
    seeds, lost = found_changed
    within = _within(after, seeds)
    found = set(within)
    _add_sources(after, within, found)
    for number in within:
        for reader in start_places(after).get(after.stage_at(number).op, ()):
            if isinstance(after.stage_at(reader).placement, Online):
                found.add(reader)
    gone: set[int] = set()
    _add_sources(before, lost, gone)
    known = places(after).by_name
    names = (before.stage_at(number).name for number in gone)
    found.update(known[name] for name in names if name in known)
    chosen = (after.stage_at(number) for number in sorted(found))
    return tuple(stage for stage in chosen if stage.placement.axis is not None)


def changed(before: Plan, after: Plan) -> tuple[list[int], list[int]] | None:
    """The stages of `after` of which a fact differs, and those of `before` that read others than
    they do now; None when the stages stand in another order."""
    found = differing(before, after)
    if not found.in_order:
        return None
    seeds, lost = _differing(before, after, found.pairs, found.fresh)
    return seeds, [*lost, *found.gone]


def _differing(
    before: Plan, after: Plan, pairs: Iterable[tuple[int, int]], fresh: Iterable[int]
) -> tuple[list[int], list[int]]:
    seeds, lost = list(fresh), list[int]()
    for a, b in pairs:
        old, new = before.stage_at(a), after.stage_at(b)
        reads = old.op is new.op or _sources(before, old) == _sources(after, new)
        if not reads:
            lost.append(a)
        if not (reads and _same_facts(old, new)):
            seeds.append(b)
    had, have = output_names(before), output_names(after)
    if had != have:
        seeds.extend(places(after).by_name[name] for name in had ^ have if after.has(name))
    return seeds, lost


def _same_facts(old: StagePlan, new: StagePlan) -> bool:
    """True when no field but the operation differs: a rebuilt stage keeps the others."""
    return (
        old.placement is new.placement
        and old.leaf_axes is new.leaf_axes
        and old.marks is new.marks
        and old.atomic is new.atomic
        and old.scatters is new.scatters
        and type(old.op) is type(new.op)
    )


def _sources(plan: Plan, stage: StagePlan) -> tuple[list[str], list[str]]:
    """The stages that a stage reads, and those that it starts from."""
    return (
        [plan.stage_of(tensor.op).name for tensor in tensors_read(stage.op)],
        [plan.stage_of(tensor.op).name for tensor in tensors_of_init(stage.op)],
    )


def _within(plan: Plan, seeds: Iterable[int]) -> list[int]:
    """The stages, those that run together with them, and all that are attached in their loops."""
    found: dict[int, None] = {}
    waiting, number_of = list(seeds), places(plan).by_name.__getitem__
    guests, followers = guest_names(plan), follower_names(plan)
    for number in tuple(waiting):
        waiting.extend(map(number_of, followers.get(plan.stage_at(number).name, ())))
    while waiting:
        number = waiting.pop()
        if number not in found:
            found[number] = None
            waiting.extend(map(number_of, guests.get(plan.stage_at(number).name, ())))
    return list(found)


def _add_sources(plan: Plan, readers: Iterable[int], found: set[int]) -> None:
    """Add to `found` what stages read, directly or through inlined ones."""
    waiting = list(readers)
    seen = set(waiting)
    while waiting:
        for number in _read_by(plan, waiting.pop()):
            found.add(number)
            if number not in seen and plan.stage_at(number).placement.inlined:
                seen.add(number)
                waiting.append(number)


def _read_by(plan: Plan, number: int) -> Iterator[int]:
    known = places(plan).by_op
    return (known[tensor.op] for tensor in tensors_read(plan.stage_at(number).op))
