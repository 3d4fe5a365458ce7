"""The computed stages as the rules see them: a map by name with inlined stages substituted, who
reads whom, and constant extents.

`nests` matches patterns on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from tedsl.expr.nodes import Axis, Const, Expr, TensorRead
from tedsl.expr.visit import reads, rewrite, structural_equal
from tedsl.once import once
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.memo import Memory
from tedsl.scheduling.plan import Plan
from tedsl.scheduling.plan.following import model_op
from tedsl.scheduling.plan.graph import tensors_read
from tedsl.scheduling.plan.inline import finished, inline_stages, name_of, sources_of
from tedsl.scheduling.plan.links import places, substance
from tedsl.tensor.compute import placeholder
from tedsl.tensor.scan_body import within_scans
from tedsl.tensor.tensor import ComputeOp, Operation, PlaceholderOp, ScanOp, Tensor

Readers = dict[str, list[tuple[str, TensorRead]]]


class View(Mapping[str, ComputeOp]):
    """Stages by name, producers first; `readers` says who reads each of them, and how.  Not changed
    once made."""

    def __init__(self, stages: Mapping[str, ComputeOp]) -> None:
        self._stages = stages

    def __getitem__(self, name: str) -> ComputeOp:
        return self._stages[name]

    def __contains__(self, name: object) -> bool:
        return name in self._stages

    def __iter__(self) -> Iterator[str]:
        return iter(self._stages)

    def __len__(self) -> int:
        return len(self._stages)

    @cached_property
    def names(self) -> Mapping[Operation, str]:
        """The name of each operation."""
        return {op: name for name, op in self.items()}

    def sources(self, name: str) -> list[str]:
        """The producers of a stage."""
        found = (self.names.get(read.tensor.op) for read in reads_of(self[name]))
        return [each for each in found if each is not None]

    def place(self, name: str) -> int:
        """The number of a stage in the view: its producers have smaller ones."""
        return self._numbers[name]

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self)}

    def of_size(self, points: int | None) -> list[str]:
        """The stages of so many elements."""
        return self._sizes.get(points, [])

    @cached_property
    def _sizes(self) -> dict[int | None, list[str]]:
        found: dict[int | None, list[str]] = {}
        for name, op in self.items():
            found.setdefault(volume(op.axes), []).append(name)
        return found

    @cached_property
    def readers(self) -> Readers:
        """For each stage, its consumers and their reads of it."""
        found: Readers = {name: [] for name in self}
        for name, op in self.items():
            for read in reads_of(op):
                producer = self.names.get(read.tensor.op)
                if producer is not None:
                    found[producer].append((name, read))
        return found


class _Unfinished(View):
    """A view that substitutes inlined stages into a stage when it is looked at."""

    def __init__(self, plan: Plan, settled: frozenset[str]) -> None:
        super().__init__({})
        self.plan, self._settled = plan, settled
        self._present: dict[object, bool] = {}
        self._finished: dict[str, ComputeOp] = {}

    def __getitem__(self, name: str) -> ComputeOp:
        if name not in self._finished:
            op = finished(self.plan, self.plan.stage(name).op) if name in self else None
            if not isinstance(op, ComputeOp):
                raise KeyError(name)
            self._finished[name] = op
        return self._finished[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._present:
            self._present[name] = self._shows(name)
        return self._present[name]

    def _shows(self, name: object) -> bool:
        if name not in places(self.plan).by_name or name in self._settled:
            return False
        stage = self.plan.stage(str(name))
        return not stage.placement.inlined and isinstance(model_op(stage), ComputeOp)

    def place(self, name: str) -> int:
        return places(self.plan).by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _all(self) -> tuple[str, ...]:
        return tuple([name for name in places(self.plan).names if name in self])

    def sources(self, name: str) -> list[str]:
        return [each for each in sources_of(self.plan, self[name]) if each in self]

    @cached_property
    def names(self) -> Mapping[Operation, str]:
        return _Names(self)


class _Names(Mapping[Operation, str]):
    """The names of the operations of a view, found when they are asked for."""

    def __init__(self, view: _Unfinished) -> None:
        self._view = view

    def __getitem__(self, op: Operation) -> str:
        name = name_of(self._view.plan, op)
        if name is None or name not in self._view:
            raise KeyError(op)
        return name

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._view.values())

    def __len__(self) -> int:
        return len(self._view)


_VIEWS = Memory(4)


def definitions(s: Schedule) -> View:
    """The computed stages by name, producers first, with inlined stages substituted; scans and
    their steps have a rule of their own, and settled stages are decided."""
    return _VIEWS.get((substance(s.plan), s.settled), lambda: _definitions(s.plan, s.settled))


def _definitions(plan: Plan, settled: frozenset[str]) -> View:
    if not places(plan).scans:
        return _Unfinished(plan, settled)
    plan = inline_stages(plan)
    found = {stage.name: stage.op for stage in plan.stages if isinstance(stage.op, ComputeOp)}
    steps = within_scans(found.values())
    return View(
        {
            name: op
            for name, op in found.items()
            if not isinstance(op, ScanOp) and op not in steps and name not in settled
        }
    )


@once
def reads_of(op: ComputeOp) -> tuple[TensorRead, ...]:
    """Every tensor read of an operation, equal ones once, by tensor."""
    found: dict[Tensor, list[TensorRead]] = {}
    for read in reads(*op.bodies):
        known = found.setdefault(read.tensor, [])
        if not any(structural_equal(read, each) for each in known):
            known.append(read)
    return tuple(read for each in found.values() for read in each)


def size_of(extent: Expr) -> int | None:
    """A constant extent, or None for a symbolic one."""
    return int(extent.value) if isinstance(extent, Const) else None


def extent_of(axis: Axis) -> int | None:
    """The constant extent of a root axis, or None."""
    return None if axis.domain is None else size_of(axis.domain.extent)


def times(*counts: int | None) -> int | None:
    """The product of counts; None when one is symbolic."""
    total = 1
    for count in counts:
        if count is None:
            return None
        total *= count
    return total


def volume(axes: Sequence[Axis]) -> int | None:
    """The number of points of constant axes, or None."""
    return times(*map(extent_of, axes))


def blocks(extent: int | None, size: int) -> int | None:
    """How many tiles lie along an extent."""
    return None if extent is None else -(-extent // size)


def elements_of(tensor: Tensor) -> int:
    """The elements of a tensor; 0 where a size is symbolic."""
    return times(*map(size_of, tensor.shape)) or 0


def in_memory(s: Schedule, tensor: Tensor) -> bool:
    """True for an input, and for the result of another kernel."""
    return tensor.op in places(s.plan).by_op and s[tensor].plan.placement.at_root


def alone(ops: Sequence[ComputeOp]) -> tuple[list[ComputeOp], dict[Tensor, Tensor]]:
    """Operations, producers first, as a computation of their own: with an input in place of each
    other stage that they read; and what each input is for."""
    known: dict[Tensor, Tensor] = {}
    made: list[ComputeOp] = []
    inputs: dict[Tensor, Tensor] = {}

    def given(node: Expr) -> Expr | None:
        if isinstance(node, TensorRead) and node.tensor in known:
            return TensorRead(known[node.tensor], node.indices)
        return None

    for op in ops:
        for tensor in tensors_read(op):
            if tensor not in known and not isinstance(tensor.op, PlaceholderOp):
                known[tensor] = placeholder(tensor.shape, tensor.dtype, name=tensor.name)
                inputs[known[tensor]] = tensor
        memo: dict[Expr, Expr] = {}
        made.append(replace(op, bodies=tuple(rewrite(body, given, memo) for body in op.bodies)))
        known |= zip(op.outputs, made[-1].outputs, strict=True)
    return made, inputs
