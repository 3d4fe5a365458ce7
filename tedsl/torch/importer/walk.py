"""The walk over an ATen graph: each node by its converter, its result held against the fake one.

A node is a stage of its own unless it is only read (views, constants) or its one reader is a
pointwise node of the same shape.  Imports `importer.registry` and what is below it.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, cast

from tedsl.errors import ExprError
from tedsl.tensor.tensor import Tensor
from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.elements.layouts import order_of
from tedsl.torch.elements.sizes import Sizes
from tedsl.torch.elements.value import Value, same_shape
from tedsl.torch.importer.context import Check, Context, remembered
from tedsl.torch.importer.registry import Converted, Entry, Family, entry_of
from tedsl.torch.lib import fx, torch
from tedsl.torch.refusals import NotTaken

DEEPEST = 24
"""Operations of pointwise nodes that are one definition."""


def results_read(node: Any) -> list[int]:
    """Which of several results somebody reads."""
    parts = [user for user in node.users if user.target is operator.getitem and user.users]
    return [int(part.args[1]) for part in parts]


class Walk:
    """Values of the nodes of one graph.

    Args:
        sizes: what its symbols stand for.
    """

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.checks: list[Check] = []
        self.folds: list[Tensor] = []
        self.known: dict[Any, Converted] = {}

    def put(self, node: Any, value: Value) -> None:
        """Say what an input of the graph is."""
        self.known[node] = value

    def value(self, node: Any) -> Value:
        """The value of a node with one result.

        Raises:
            NotTaken: it has several.
        """
        found = self.known[node]
        if isinstance(found, tuple):
            raise NotTaken("several results are read as one")
        return found

    def convert(self, node: Any) -> Converted:
        """The values of a node whose arguments are known.

        Raises:
            NotTaken: tensor expressions do not say it.
        """
        if node.target is operator.getitem:
            parts = self.known[node.args[0]]
            found: Converted = cast(Value, parts[node.args[1]])
        else:
            found = self._called(node)
        self.known[node] = found
        return found

    def _called(self, node: Any) -> Converted:
        entry = entry_of(node.target)
        if entry is None:
            raise NotTaken(f"{node.target} has no converter")
        given = arguments(node)
        fakes = [_faked(value) for value in given]
        val, target = node.meta["val"], node.target
        read = results_read(node)
        known = self.checks, target, read, order_of(val), self.folds
        context = Context(self.sizes, node.name, fakes, val, *known)
        try:
            result = entry.convert(context, *map(self._mapped, given))
            return self._settled(node, entry, context, result)
        except ExprError as error:
            raise NotTaken(f"{node.target}: {error.reason}") from error

    def _mapped(self, value: Any) -> Any:
        if isinstance(value, fx.Node):
            fake = value.meta.get("val")
            if isinstance(fake, (torch.Tensor, tuple, list)):
                return self.known[value]
            if isinstance(fake, (torch.SymInt, int)):
                return self.sizes.size(fake)
            raise NotTaken(f"an argument is {type(fake).__name__}")
        if isinstance(value, (list, tuple)):
            return [self._mapped(each) for each in cast("list[Any]", value)]
        return self.sizes.size(value) if isinstance(value, torch.SymInt) else value

    def _settled(self, node: Any, entry: Entry, context: Context, result: Converted) -> Converted:
        """The result with the shape and the type that PyTorch says, a stage where it is one."""
        if isinstance(result, tuple):
            fakes = list(node.meta["val"])
            if len(fakes) != len(result):
                raise NotTaken(f"{node.target}: {len(result)} results for {len(fakes)}")
            for each, fake in zip(result, fakes, strict=True):
                self._agrees(node, each, fake)
            return tuple(
                context.held(each, f"out{n}") if each.work else each
                for n, each in enumerate(result)
            )
        self._agrees(node, result, node.meta["val"])
        if result.tensor is not None or result.work == 0:
            return result
        if entry.family in (Family.POINTWISE, Family.CAST) and self._read_on(node, result):
            return Value(result.shape, result.dtype, remembered(result.element), None, result.work)
        return context.stage(result.shape, result.element)

    def _agrees(self, node: Any, value: Value, fake: Any) -> None:
        shape, dtype = self.sizes.shape(fake.shape), dtype_of(fake.dtype)
        if value.dtype is not dtype or not same_shape(value.shape, shape):
            raise NotTaken(
                f"{node.target}: a converter gives {value.dtype}{list(map(str, value.shape))}, "
                f"PyTorch {dtype}{list(map(str, shape))}"
            )

    def _read_on(self, node: Any, value: Value) -> bool:
        """True when one pointwise node of the same shape reads this, and the two are not deep."""
        if value.work > DEEPEST or len(node.users) != 1:
            return False
        (user,) = node.users
        entry = entry_of(user.target)
        if entry is None or entry.family not in (Family.POINTWISE, Family.CAST):
            return False
        fake = user.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return False
        return same_shape(self.sizes.shape(fake.shape), value.shape)


def arguments(node: Any) -> list[Any]:
    """The arguments of a call in the order of its schema.

    Raises:
        NotTaken: not a call of an operator with a schema.
    """
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        raise NotTaken(f"{node.target} is no operator of ATen")
    values: list[Any] = []
    keywords = cast("Mapping[str, Any]", node.kwargs)
    for place, argument in enumerate(schema.arguments):
        if place < len(node.args) and not argument.kwarg_only:
            values.append(node.args[place])
        elif argument.name in keywords:
            values.append(keywords[argument.name])
        else:
            values.append(argument.default_value)
    return values


def _faked(value: Any) -> Any:
    """An argument as PyTorch's own type rules take it."""
    if isinstance(value, fx.Node):
        return value.meta.get("val")
    if isinstance(value, (list, tuple)):
        return [_faked(each) for each in cast("list[Any]", value)]
    return value
