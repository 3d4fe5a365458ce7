"""A whole graph, or a part of one, as inputs and outputs of the language.

Imports `importer.walk` and the layouts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tedsl.dtypes import DType
from tedsl.expr import build
from tedsl.expr.index_arith import constant
from tedsl.expr.nodes import Expr, TensorRead
from tedsl.reference.reference import evaluate
from tedsl.tensor import reduce
from tedsl.tensor.compute import placeholder
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ComputeOp, PlaceholderOp, Tensor
from tedsl.torch import operators
from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.elements.layouts import Layout, layout_of
from tedsl.torch.elements.sizes import Sizes
from tedsl.torch.elements.value import Indices, whole
from tedsl.torch.importer.context import Check, Context
from tedsl.torch.importer.walk import Walk
from tedsl.torch.lib import torch
from tedsl.torch.refusals import NotTaken

# Numbers of a stage that are computed for a check while a graph is imported.
KNOWN = 1 << 20

__all__ = ["Imported", "Input", "Output", "import_nodes", "operators"]


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """A tensor that the graph takes: which argument it is, how it lies, and its placeholder."""

    place: int
    layout: Layout
    tensor: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """A result: which of the `tensors` it is written to, and how it lies."""

    place: int
    layout: Layout
    shape: tuple[Any, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Imported:
    """A graph in the language.

    Attributes:
        inputs: its tensors, read or not.
        outputs: in the order asked for.
        tensors: what a kernel computes: the results, each once, and then the checks.
        checks: how many of `tensors`, at the end, are bools that have to be true.
        sizes: of the graph.
        indices: how many of the checks, at the end, are of indices.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    tensors: tuple[Tensor, ...]
    checks: int
    sizes: Sizes
    indices: int = 0


def import_nodes(
    inputs: Sequence[Any],
    nodes: Sequence[Any],
    results: Sequence[Any],
    given: Mapping[str, int] | None = None,
    names: Sequence[str] | None = None,
) -> Imported:
    """Tensor expressions of `results`.

    Args:
        inputs: nodes that are known, in the order of the arguments; tensors and sizes.
        nodes: those to convert, in an order in which each follows what it reads.
        results: of the nodes, each one tensor.
        given: numbers of symbolic sizes, by name.
        names: of the placeholders; those of the nodes without them.

    Raises:
        NotTaken: a node that tensor expressions do not say.
    """
    walk = Walk(Sizes(given))
    taken: list[Input] = []
    for place, node in enumerate(inputs):
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            continue
        layout = layout_of(fake, walk.sizes)
        name = names[place] if names else str(node.name)
        tensor = placeholder(layout.memory, dtype_of(fake.dtype), name=name)
        taken.append(Input(place, layout, tensor))
        walk.put(node, layout.value(whole(tensor)))
    for node in nodes:
        walk.convert(node)
    written, outputs = _written(walk, results)
    asked = [_check(walk, [check], n) for n, check in enumerate(walk.checks)]
    kept = [n for n, check in enumerate(asked) if not _holds(check)]
    checks = [asked[n] for n in kept if not walk.checks[n].index]
    of_indices = _of_indices(walk, [walk.checks[n] for n in kept if walk.checks[n].index])
    everything = (*written, *checks, *of_indices)
    count = len(checks) + len(of_indices)
    return Imported(tuple(taken), tuple(outputs), everything, count, walk.sizes, len(of_indices))


def _written(walk: Walk, results: Sequence[Any]) -> tuple[list[Tensor], list[Output]]:
    """What each result is computed as; equal ones once."""
    written: list[Tensor] = []
    outputs: list[Output] = []
    known: dict[Any, int] = {}
    for node in results:
        fake = node.meta["val"]
        layout = layout_of(fake, walk.sizes)
        if node not in known:
            value = layout.written(walk.value(node))
            tensor = value.tensor
            if tensor is None or isinstance(tensor.op, PlaceholderOp) or tensor in written:
                context = Context(walk.sizes, str(node.name), (), fake, [])
                tensor = context.stage(value.shape, value.element, "out").tensor
            assert tensor is not None
            known[node] = len(written)
            written.append(tensor)
        outputs.append(Output(known[node], layout, tuple(fake.shape)))
    return written, outputs


def _holds(check: Tensor) -> bool:
    """True for a check of numbers that follow from sizes alone, and are inside: those of
    interpolation are computed, not given.

    Raises:
        NotTaken: they are outside, so that PyTorch raises.
    """
    ops = operations((check,))
    if not all(isinstance(op, ComputeOp) and _few(op) for op in ops):
        return False
    (found,) = evaluate(check, {})
    if not found.all():
        raise NotTaken("an index that is outside for every input")
    return True


def _few(op: ComputeOp) -> bool:
    """True for a stage of few points, of known sizes."""
    axes = (*op.axis, *op.reduce_axis)
    sizes = [None if a.domain is None else constant(a.domain.extent) for a in axes]
    return prod(KNOWN + 1 if size is None else size for size in sizes) <= KNOWN


def _of_indices(walk: Walk, checks: Sequence[Check]) -> list[Tensor]:
    """Whether all indices are inside, as one tensor: those of one shape are looked at together."""
    shapes: dict[tuple[object, ...], list[Check]] = {}
    for check in checks:
        shapes.setdefault(tuple(check.value.shape), []).append(check)
    made = [_check(walk, each, n) for n, each in enumerate(shapes.values(), len(walk.checks))]
    if len(made) < 2:
        return made

    def element(_: Indices) -> Expr:
        return functools.reduce(build.logical_and, [TensorRead(each, ()) for each in made])

    every = Context(walk.sizes, "checks", (), None, []).stage((), element).tensor
    assert every is not None
    return [every]


def _check(walk: Walk, checks: Sequence[Check], n: int) -> Tensor:
    """Whether all elements of tensors of one shape are inside: a bool."""
    context = Context(walk.sizes, f"check{n}", (), None, [])
    axes = [context.axis(extent, f"k{d}") for d, extent in enumerate(checks[0].value.shape)]

    def inside(i: Indices) -> Expr:
        found: list[Expr] = []
        for check in checks:
            index = build.cast(check.value[i], DType.int64)
            found += [build.ge(index, check.low), build.lt(index, check.high)]
        return functools.reduce(build.logical_and, found)

    def element(_: Indices) -> Expr:
        return reduce.all(inside(tuple(axes)), axis=axes) if axes else inside(())

    made = context.stage((), element).tensor
    if made is None:
        raise NotTaken("an index that cannot be checked")
    return made
