"""Stages that follow: what they read was rebuilt, and nothing else of them changes.

A rewrite concerns all stages behind it, and most of those are concerned by the next one before
anybody looks at their operations.  So a stage that only follows has no operation until that is
asked for: it is made then, once for all rewrites since the last time, of those of the stages that
it reads in its plan.  Nor does a rewrite touch it: a row of stages knows the names of those that
follow, and makes them when they are looked at.  Imports `expr`; the links and the plan import it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from threading import RLock
from typing import TYPE_CHECKING, Any, cast

from tedsl.late import late
from tedsl.once import Remembers
from tedsl.tensor.tensor import ComputeOp, ExternOp, Operation, PlaceholderOp, Tensor

if TYPE_CHECKING:
    from tedsl.scheduling.plan import Plan, StagePlan, links
else:
    links = late("tedsl.scheduling.plan.links")


@dataclass(frozen=True, slots=True, eq=False)
class Rewrite:
    """A rewrite of a plan, and the stages that it changed so far, each after those that it
    reads."""

    plan: Plan
    changed: dict[str, StagePlan] = field(default_factory=dict[str, "StagePlan"])

    def stage(self, name: str) -> StagePlan:
        """A stage as it is after the rewrite."""
        return self.changed.get(name) or self.plan.stage(name)


class Parted:
    """Stages in parts, all but one of which a copy with another stage shares: a schedule keeps
    one for each of its steps."""

    __slots__ = ("_length", "_parts")

    def __init__(self, stages: Sequence[StagePlan]) -> None:
        starts = range(0, len(stages), _PART)
        self._parts, self._length = [stages[at : at + _PART] for at in starts], len(stages)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> StagePlan:
        return self._parts[number // _PART][number % _PART]

    def __iter__(self) -> Iterator[StagePlan]:
        return chain.from_iterable(self._parts)

    def replaced(self, stages: Mapping[int, StagePlan]) -> Parted:
        """The stages with others at their places."""
        made = object.__new__(Parted)
        made._parts, made._length = self._parts.copy(), self._length
        for number, stage in stages.items():
            part, at = divmod(number, _PART)
            old = made._parts[part]
            made._parts[part] = (*old[:at], stage, *old[at + 1 :])
        return made


_PART = 64


class Row:
    """The stages of a plan in order, of which some follow and are made when they are looked at.

    Args:
        items: the stages; those that may follow as they were before something was rebuilt.
        stale: their names, each with those that were looked at so far, by name, in this plan and in
            others of the same operations.
        by_name: the place of each stage.
        by_form: the stage of each form of an operation.
    """

    __slots__ = ("_stale", "by_form", "by_name", "items")

    def __init__(
        self,
        items: Parted,
        stale: Mapping[str, dict[str, StagePlan]],
        by_name: Mapping[str, int],
        by_form: dict[links.Form, str],
    ) -> None:
        self.items, self._stale = items, stale
        self.by_name, self.by_form = by_name, by_form

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> StagePlan:
        stage = self.items[number]
        made = self._stale.get(stage.name)
        return stage if made is None else self._made(stage, made)

    def __iter__(self) -> Iterator[StagePlan]:
        return iter([self[number] for number in range(len(self.items))])

    def stage(self, name: str) -> StagePlan:
        """The stage of a name."""
        return self[self.by_name[name]]

    def computes(self, number: int, op: Operation) -> bool:
        """True when a stage has this operation; one that was not made yet is none that anybody
        asks for."""
        stage = self.items[number]
        made = self._stale.get(stage.name)
        if made is not None and stage.name in made:
            stage, made = made[stage.name], None
        mine = stage.rewrite is None and stage.op is op
        return mine and (made is None or self[number] is stage)

    def replaced(self, number: int, stage: StagePlan) -> Row:
        """The row with another stage, of the same operation, at a place."""
        stale = self._stale
        if stage.name in stale:
            stale = dict(stale)
            del stale[stage.name]
        return Row(self.items.replaced({number: stage}), stale, self.by_name, self.by_form)

    def inserted(
        self,
        number: int,
        stage: StagePlan,
        by_name: Mapping[str, int],
        by_form: dict[links.Form, str],
    ) -> Row:
        """The row with one more stage before a place."""
        items = list(self.items)
        items.insert(number, stage)
        return Row(Parted(items), self._stale, by_name, by_form)

    def followed(self, direct: Sequence[StagePlan], behind: Iterable[str]) -> Row:
        """The row with rebuilt stages, of the same forms, which those of the names `behind` may
        follow."""
        changed = {self.by_name[stage.name]: stage for stage in direct}
        stale = dict(self._stale)
        for stage in direct:
            stale.pop(stage.name, None)
        made: dict[str, StagePlan] = {}
        stale.update(dict.fromkeys(behind, made))
        return Row(self.items.replaced(changed), stale, self.by_name, self.by_form)

    def _made(self, stage: StagePlan, made: dict[str, StagePlan]) -> StagePlan:
        with _MAKING:
            waiting = [] if stage.name in made else [stage]
            while waiting:
                each = waiting[-1]
                missing = [source for _, source in self._read(each) if self._open(source)]
                if missing:
                    waiting += missing
                    continue
                waiting.pop()
                self._stale[each.name].setdefault(each.name, self._now(each))
            return made[stage.name]

    def _open(self, stage: StagePlan) -> bool:
        """True for one of the items that may follow and was not looked at yet."""
        return stage.name not in self._stale.get(stage.name, (stage.name,))

    def _read(self, stage: StagePlan) -> list[tuple[Tensor, StagePlan]]:
        """What an item reads, and the items that it is of; nothing of one without an operation."""
        if stage.rewrite is not None or not isinstance(stage.op, ComputeOp):
            return []
        read = links.tensors_read(stage.op)
        return [(t, self.items[self.by_name[self.by_form[links.form(t.op)]]]) for t in read]

    def _now(self, stage: StagePlan) -> StagePlan:
        """What a stage is now; the same object where nothing that it reads was rebuilt."""
        if stage.follows is not None and stage.rewrite is not None:
            return follower(stage.follows, self)  # whose operation nobody asked for
        read = [(tensor.op, self.stage(item.name)) for tensor, item in self._read(stage)]
        if all(source.rewrite is None and source.op is known for known, source in read):
            return stage
        names = tuple([source.name for _, source in read])
        return follower(model_of(stage, cast("ComputeOp", stage.op), names), self)


_MAKING = RLock()


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """What stages follow: an operation, the names of the stages that its tensors are of, and a
    stage that runs in the same way; `bearing` is that of all of them."""

    op: ComputeOp
    like: StagePlan
    reads: tuple[tuple[Tensor, str], ...]
    names: frozenset[str]
    bearing: object


class MayFollow(Remembers):
    """A stage that may be a follower: its fields are those of its model, and its operation is
    made when it is asked for.

    `follows` is None for a stage that was made by itself; `rewrite` is where a follower that has no
    operation yet finds what it reads, and None for every other stage.
    """

    __slots__ = ("follows", "rewrite")
    follows: Model | None
    rewrite: Rewrite | Row | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "follows", None)
        object.__setattr__(self, "rewrite", None)
        object.__setattr__(self, "_found", {})

    def __getattr__(self, name: str) -> Any:
        if name in MayFollow.__slots__:  # of one that was pickled
            return None
        if name.startswith("_") or self.follows is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        value = _made(self) if name == "op" else getattr(self.follows.like, name)
        object.__setattr__(self, name, value)
        return value


class MayHaveFollowed(Remembers):
    """A plan whose stages may be those of a `row`, and whose outputs may be of `found`, stages by
    name and their numbers: made when they are asked for."""

    __slots__ = ("found", "row")
    found: tuple[tuple[str, int], ...] | None
    row: Row | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "found", None)
        object.__setattr__(self, "row", None)
        object.__setattr__(self, "_found", {})

    def __getattr__(self, name: str) -> Any:
        if name in MayHaveFollowed.__slots__:  # of one that was pickled
            return None
        value: tuple[Any, ...] | None = None
        if name == "outputs" and self.found is not None:
            stages = cast("Plan", self).stage
            value = tuple(stages(stage).op.outputs[index] for stage, index in self.found)
        elif name == "stages" and self.row is not None:
            value = tuple(self.row)
        if value is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        object.__setattr__(self, name, value)
        return value


def model_op(stage: StagePlan) -> ComputeOp | PlaceholderOp | ExternOp:
    """An operation of the form of that of a stage: that itself, or what it will be made of."""
    return stage.op if stage.follows is None else stage.follows.op


def model_of(stage: StagePlan, op: ComputeOp, names: tuple[str, ...]) -> Model:
    """What a stage of this operation, which reads stages of these names, is to what follows it."""
    return Model(
        op,
        stage if stage.follows is None else stage.follows.like,
        tuple(zip(links.tensors_read(op), names, strict=True)),
        frozenset(names),
        links.bearing(stage),
    )


def follower(model: Model, where: Rewrite | Row) -> StagePlan:
    """A stage that follows through a rewrite."""
    made, put = object.__new__(type(model.like)), object.__setattr__
    put(made, "name", model.like.name)
    put(made, "follows", model)
    put(made, "rewrite", where)
    put(made, "_found", {})
    return made


def has_outputs(plan: Plan) -> bool:
    """False for a plan whose outputs are known by the names of their stages."""
    return plan.found is None


def results(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The outputs of a plan by the names of their stages and their numbers; one that no stage makes
    (yet) is left out."""
    if plan.found is not None:
        return plan.found
    where = links.places(plan)
    numbers = [(where.by_op.get(tensor.op), tensor.index) for tensor in plan.outputs]
    return tuple([(where.names[n], index) for n, index in numbers if n is not None])


def _made(stage: MayFollow) -> Operation:
    """The operation of a follower, after those of what it reads."""
    waiting: list[MayFollow] = [stage]
    while waiting:
        each = waiting[-1]
        model, where = each.follows, each.rewrite
        if model is None or where is None:
            waiting.pop()
            continue
        read = [(tensor, where.stage(name)) for tensor, name in model.reads]
        missing = [source for _, source in read if source.rewrite is not None]
        if missing:
            waiting.extend(missing)
            continue
        tensors = {tensor: source.op.outputs[tensor.index] for tensor, source in read}
        object.__setattr__(each, "op", links.renamed(model.op, tensors))
        object.__setattr__(each, "rewrite", None)
    return cast("StagePlan", stage).op
