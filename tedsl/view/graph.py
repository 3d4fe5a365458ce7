"""The graph of a plan: stages, who reads whom, where each is computed, and which share a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import assert_never

from tedsl.expr.index_arith import constant
from tedsl.scheduling.kernels.printer import type_text
from tedsl.scheduling.kernels.tree import kernels_with
from tedsl.scheduling.plan import (
    At,
    Cooperative,
    Inlined,
    LastBlock,
    Online,
    Own,
    Partitioned,
    Plan,
    SameGrid,
    SharedLoops,
    StagePlan,
)
from tedsl.scheduling.plan.graph import is_output, is_reduction, tensors_read
from tedsl.scheduling.plan.labels import axis_text
from tedsl.scheduling.plan.scan_structure import scan_of
from tedsl.tensor.tensor import ExternOp, Operation, PlaceholderOp, ScanOp, Tensor
from tedsl.view.data import Graph, Node, NodeKind, PlaceKind
from tedsl.view.texts import Stages


def graph_of(plan: Plan, stages: Stages) -> Graph:
    """The graph of the plan; `stages` gives the numbers."""
    places: dict[Operation, int] = {s.op: place for place, s in enumerate(plan.stages)}
    nodes: list[Node] = []
    edges: list[tuple[int, int, int]] = []
    for place, stage in enumerate(plan.stages):
        leader = kernel_of(plan, stage)
        kind, where = place_of(plan, stage)
        nodes.append(
            Node(
                stage=stages.number(stage.name),
                kind=kind_of(plan, stage),
                type=_type(stage),
                place=kind,
                where=where,
                cluster=-1 if leader is None else stages.number(leader.name),
                output=is_output(plan, stage.op),
            )
        )
        read: dict[int, list[Tensor]] = {}
        for tensor in tensors_read(stage.op):
            read.setdefault(places[tensor.op], []).append(tensor)
        edges += [(maker, place, _bytes(tensors)) for maker, tensors in read.items()]
    return Graph(tuple(nodes), tuple(_through_memory(nodes, edges)))


def _bytes(tensors: Sequence[Tensor]) -> int:
    """Of all elements once; -1 where an extent is known at a call only."""
    total = 0
    for tensor in tensors:
        extents = [constant(extent) for extent in tensor.shape]
        known = [extent for extent in extents if extent is not None]
        if len(known) < len(extents):
            return -1
        total += tensor.dtype.nbytes * prod(known)
    return total


def _through_memory(
    nodes: Sequence[Node], edges: Sequence[tuple[int, int, int]]
) -> Iterator[tuple[int, int, int]]:
    """The edges, with bytes where a kernel reads what is not computed in it, each tensor once.

    What is inlined into several kernels is in none, and is nowhere in memory.
    """
    seen: set[tuple[int, int]] = set()
    for maker, reader, nbytes in edges:
        source, cluster = nodes[maker], nodes[reader].cluster
        apart = source.cluster != cluster and cluster >= 0 and source.place is not PlaceKind.INLINE
        new = apart and (maker, cluster) not in seen
        seen.add((maker, cluster))
        yield maker, reader, nbytes if new else 0


def kind_of(plan: Plan, stage: StagePlan) -> NodeKind:
    """What the operation of the stage is."""
    match stage.op:
        case PlaceholderOp():
            return NodeKind.INPUT if scan_of(plan, stage.op) is None else NodeKind.STATE
        case ExternOp():
            return NodeKind.EXTERN
        case ScanOp():
            return NodeKind.SCAN
        case _:
            return NodeKind.REDUCTION if is_reduction(stage.op) else NodeKind.COMPUTE


def place_of(plan: Plan, stage: StagePlan) -> tuple[PlaceKind, str]:
    """Where the stage is computed, and in words."""
    if isinstance(stage.op, PlaceholderOp):
        return PlaceKind.NONE, ""
    place, axis = stage.placement, stage.placement.axis
    at = "" if axis is None else f"at {axis_text(plan, axis)}"
    match place:
        case Inlined():
            return PlaceKind.INLINE, "inlined"
        case Partitioned():
            return PlaceKind.NONE, f"stored by {place.head} and {place.tail}"
        case SameGrid():
            return PlaceKind.WITH, f"with in the grid of {place.leader}"
        case SharedLoops():
            return PlaceKind.WITH, f"with {axis_text(plan, place.down_to)}"
        case LastBlock():
            return PlaceKind.WITH, f"by the last programs of {place.of}"
        case Own():
            return PlaceKind.KERNEL, "call" if isinstance(stage.op, ExternOp) else "kernel"
        case Cooperative():
            return PlaceKind.AT, f"{at}, across {axis_text(plan, place.program)}"
        case Online():
            return PlaceKind.AT, f"online {axis_text(plan, place.axis)}, {stage.scope.value}"
        case At():
            return PlaceKind.AT, f"{at}, {stage.scope.value}"
        case _:
            assert_never(place)


def kernel_of(plan: Plan, stage: StagePlan) -> StagePlan | None:
    """The stage at root in whose kernel `stage` is computed.

    None for inputs, for a stage that is inlined into several kernels or into none, and for one that
    others store.
    """
    if stage.placement.head:
        return None
    if isinstance(stage.op, PlaceholderOp):
        scan = scan_of(plan, stage.op)
        return None if scan is None else kernel_of(plan, scan)
    leaders = kernels_with(plan, stage)
    return leaders[0] if len(leaders) == 1 else None


def _type(stage: StagePlan) -> str:
    if not isinstance(stage.op, ExternOp):
        return type_text(stage)
    shown = (f"{t.dtype.value}[{', '.join(map(str, t.shape))}]" for t in stage.op.outputs)
    return ", ".join(shown)
