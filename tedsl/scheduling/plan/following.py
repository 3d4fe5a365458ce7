"""Stages that follow: what they read was rebuilt, and nothing else of them changes.

A rewrite concerns all stages behind it, and most of those are concerned by the next one before
anybody looks at their operations.  So a stage that only follows has no operation until that is
asked for: it is made then, once for all rewrites since the last time, of those of the stages that
it reads in its plan.  Imports `expr`; the links and the plan import it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    rewrite: Rewrite | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "follows", None)
        object.__setattr__(self, "rewrite", None)

    def __getattr__(self, name: str) -> Any:
        if name in MayFollow.__slots__:  # of one that was pickled
            return None
        if name.startswith("_") or self.follows is None:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        value = _made(self) if name == "op" else getattr(self.follows.like, name)
        object.__setattr__(self, name, value)
        return value


class MayHaveFollowed(Remembers):
    """A plan whose outputs may be those of stages that follow, made when they are asked for."""

    __slots__ = ("_results",)
    _results: tuple[tuple[str, int], ...]

    def __getattr__(self, name: str) -> Any:
        plan = cast("Plan", self)
        if name != "outputs" or has_outputs(plan):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        outputs = tuple(plan.stage(stage).op.outputs[index] for stage, index in self._results)
        object.__setattr__(self, "outputs", outputs)
        return outputs


def model_op(stage: StagePlan) -> ComputeOp | PlaceholderOp | ExternOp:
    """An operation of the form of that of a stage: that itself, or what it will be made of."""
    return stage.op if stage.follows is None else stage.follows.op


def follower(model: Model, where: Rewrite) -> StagePlan:
    """A stage that follows through a rewrite."""
    made, put = object.__new__(type(model.like)), object.__setattr__
    put(made, "name", model.like.name)
    put(made, "follows", model)
    put(made, "rewrite", where)
    return made


def has_outputs(plan: Plan) -> bool:
    """False for a plan whose outputs are known by the names of their stages."""
    return getattr(plan, "_results", None) is None


def results(plan: Plan) -> tuple[tuple[str, int], ...]:
    """The outputs of a plan by the names of their stages and their numbers; one that no stage makes
    (yet) is left out."""
    if not has_outputs(plan):
        return plan._results  # pyright: ignore[reportPrivateUsage]
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
