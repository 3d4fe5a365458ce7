"""A graph in which chosen convolutions of the library get channels last.

What is before and behind them follows: a region writes its results as it is told, so that between
convolutions no tensor is copied.  Everything else that PyTorch runs, and every result that is
promised, gets the strides that it had.  Imports `channels_last`.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.torch.backend.channels_last import IMAGES, changes_results
from tedsl.torch.importer.registry import MOVES, entry_of
from tedsl.torch.importer.walk import arguments
from tedsl.torch.lib import aten, changes, fx, prims, pytree, torch

LAY: Any = prims.inductor_force_stride_order.default
"""The same elements under given strides."""

RELAID = "relaid"
"""What the meta of a node says that lies otherwise than PyTorch would have it."""

_BY_STRIDES = (
    aten.as_strided.default,
    aten.as_strided_copy.default,
    aten.as_strided_scatter.default,
    aten._reshape_alias.default,
)
_RESHAPES = (aten.view.default, aten._unsafe_view.default)


@dataclass(frozen=True, slots=True, eq=False)
class Relaid:
    """A graph with other strides.

    Attributes:
        module: which computes the same.
        taken: of its nodes, those that tensor expressions compute.
        fresh: how many of them were not there before.
    """

    module: Any
    taken: set[Any]
    fresh: int


def relaid(
    module: Any,
    taken: Collection[Any],
    chosen: Collection[Any],
    given: Sequence[Any],
    promised: int | None = None,
) -> Relaid:
    """The graph with channels last for the `chosen` convolutions.

    Args:
        module: with fake values.
        taken: nodes that tensor expressions compute.
        chosen: convolutions that PyTorch runs.
        given: the fake arguments, which may lie otherwise than they were traced.
        promised: how many results, from the first on, lie as they were traced; None for all.

    Returns:
        The same module where nothing lies otherwise.
    """
    walk = _Walk(module, taken, chosen, promised)
    if not chosen and not walk.differ(given):
        return Relaid(module, set(taken), 0)
    return walk.made(given)


class _Walk:
    """The new graph, node by node."""

    def __init__(
        self,
        module: Any,
        taken: Collection[Any],
        chosen: Collection[Any],
        promised: int | None,
    ) -> None:
        self.module, self.taken, self.chosen, self.promised = module, taken, chosen, promised
        self.nodes = list(module.graph.nodes)
        self.ranks = {arguments(node)[1].meta["val"].dim() for node in chosen}
        self.liking = _liking(self.nodes, taken, chosen)
        self.graph: Any = fx.Graph()
        self.made_of: dict[Any, Any] = {}
        self.laid: dict[tuple[Any, tuple[int, ...]], Any] = {}
        self.again: dict[Any, Any] = {}
        self.fresh: set[Any] = set()

    def differ(self, given: Sequence[Any]) -> bool:
        """True when an argument lies otherwise than it was traced."""
        holders = [node for node in self.nodes if node.op == "placeholder"]
        pairs = zip(holders, given, strict=False)
        return any(_otherwise(node.meta.get("val"), each) for node, each in pairs)

    def made(self, given: Sequence[Any]) -> Relaid:
        """The module."""
        waiting, still = iter(given), changes_results(self.nodes)
        for node in self.nodes:
            made = self._made(node)
            if node.op == "placeholder":
                fake, traced = next(waiting, None), made.meta.get("val")
                if _otherwise(traced, fake):
                    made.meta["val"] = fake
                    made = self._lay(made, tuple(traced.stride())) if still else made
            self.made_of[node] = made
        module = fx.GraphModule(self.module, self.graph)
        taken = {self.made_of[node] for node in self.taken} | self.fresh
        return Relaid(module, taken, len(self.fresh))

    def _made(self, node: Any) -> Any:
        if node.op == "output":
            return self._output(node)
        if node.op != "call_function":
            return self.graph.node_copy(node, self.made_of.__getitem__)
        if node.target is operator.getitem:
            made = self.graph.node_copy(node, self.made_of.__getitem__)
            if self._moved(node.args[0]):
                made.meta["val"] = made.args[0].meta["val"][node.args[1]]
            return made
        if node in self.chosen:
            return self._convolved(node)
        if node in self.taken and node.target not in _BY_STRIDES:
            return self._followed(node)
        if changes(node):
            self.laid.clear()
            self.again.clear()
        return self._kept(node)

    def _kept(self, node: Any) -> Any:
        """The call with what it had."""
        return self.graph.node_copy(node, self._restored)

    def _convolved(self, node: Any) -> Any:
        """The convolution, its images and weights with channels last."""
        given = [
            self._lay(self.made_of[each], last(each.meta["val"]))
            if place in IMAGES[node.target]
            else fx.map_arg(each, self._restored)
            for place, each in enumerate(arguments(node))
        ]
        made = self.graph.create_node("call_function", node.target, tuple(given), {}, node.name)
        made.meta = {**node.meta, "val": self._run(made)}
        return made

    def _followed(self, node: Any) -> Any:
        """A call that tensor expressions compute, of what lies otherwise: the result as PyTorch
        would have it, with channels last on the way to a convolution."""
        fake = node.meta["val"]
        moved = any(self._moved(each) for each in node.all_input_nodes)
        likes = node in self.liking and not _moves(node)
        if not (moved or likes):
            return self._kept(node)
        made = self.graph.node_copy(node, self.made_of.__getitem__)
        if likes:
            made.meta["val"] = pytree.tree_map(self._as_image, fake)
            made.meta[RELAID] = True
            return made
        if node.target in _RESHAPES:
            made.target = aten.reshape.default
        try:
            made.meta["val"] = self._run(made)
        except (LookupError, RuntimeError, TypeError, ValueError):
            self.graph.erase_node(made)
            return self._kept(node)
        return made

    def _as_image(self, fake: Any) -> Any:
        """A result with channels last, where it is an image."""
        if not isinstance(fake, torch.Tensor) or fake.dim() not in self.ranks or not _dense(fake):
            return fake
        return _strided(fake, last(fake))

    def _moved(self, node: Any) -> bool:
        """True when a node lies otherwise than it did."""
        before, after = node.meta.get("val"), self.made_of[node].meta.get("val")
        pairs = zip(pytree.tree_leaves(before), pytree.tree_leaves(after), strict=True)
        return before is not after and any(_otherwise(a, b) for a, b in pairs)

    def _restored(self, node: Any) -> Any:
        """What stands for a node, with the strides that this had."""
        made, fake = self.made_of[node], node.meta.get("val")
        if not isinstance(fake, torch.Tensor) or not self._moved(node):
            return made
        return self._lay(made, tuple(fake.stride())) if _dense(fake) else self._again(node)

    def _again(self, node: Any) -> Any:
        """A view with gaps, of what has the strides that it had."""
        if node not in self.again:
            source = self._again if node.target is operator.getitem else self._restored
            self.again[node] = self.graph.node_copy(node, source)
            if node in self.taken:
                self.fresh.add(self.again[node])
        return self.again[node]

    def _promised(self, node: Any) -> Any:
        """What stands for a result, with the strides that it had, those of dimensions of one
        element too."""
        made, fake = self._restored(node), node.meta.get("val")
        by_library = _call_of(node) in self.chosen
        if not isinstance(fake, torch.Tensor) or (made.meta["val"] is fake and not by_library):
            return made
        known = made.meta["val"].stride() == fake.stride()
        if not _dense(fake) or (known and not by_library):
            return made
        exact = self.graph.call_function(exactly, (made, tuple(fake.stride())))
        exact.meta["val"] = fake
        return exact

    def _lay(self, made: Any, strides: tuple[int, ...]) -> Any:
        """A new node under given strides: itself, or a copy, which is there once."""
        if _steps(made.meta["val"]) == _wide(made.meta["val"], strides):
            return made
        if (made, strides) not in self.laid:
            copy = self.graph.call_function(LAY, (made, list(strides)))
            copy.meta["val"] = _strided(made.meta["val"], strides)
            self.laid[made, strides] = copy
            self.fresh.add(copy)
        return self.laid[made, strides]

    def _run(self, made: Any) -> Any:
        """The fake result of a call of this graph."""
        args, kwargs = fx.map_arg((made.args, made.kwargs), _fake_of)
        fakes = [each for each in pytree.tree_leaves((args, kwargs)) if hasattr(each, "fake_mode")]
        with fakes[0].fake_mode, torch.no_grad():
            return made.target(*args, **kwargs)

    def _output(self, node: Any) -> Any:
        (results,) = node.args
        promised = {each for each in results[: self.promised] if isinstance(each, fx.Node)}

        def result(each: Any) -> Any:
            if each in promised:
                return self._promised(each)
            fake = each.meta.get("val")
            return (
                self.made_of[each] if self._moved(each) and _dense(fake) else self._restored(each)
            )

        made = self.graph.output(fx.map_arg(results, result))
        made.meta = dict(node.meta)
        return made


def exactly(tensor: Any, strides: tuple[int, ...]) -> Any:
    """A tensor under given strides, itself where it has them: those of a library's result may be
    others than were foretold, in dimensions of one element most of all."""
    if tensor.stride() == strides:
        return tensor
    if _steps(tensor) == _wide(tensor, strides):
        return tensor.as_strided(tensor.shape, strides)
    made = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _liking(nodes: Sequence[Any], taken: Collection[Any], chosen: Collection[Any]) -> set[Any]:
    """Nodes between and before the chosen convolutions, up to what PyTorch runs: what these are
    computed from, and up to the last one what is computed from those and from them."""
    liking: set[Any] = set()
    for node in reversed(nodes):
        readers = {user for user in node.users if user in chosen and node in _images(user)}
        if _call_of(node) in taken and (readers or not liking.isdisjoint(node.users)):
            liking.add(node)
    places = [n for n, node in enumerate(nodes) if node in chosen]
    for node in nodes[: max(places, default=0)]:
        if node in liking or _call_of(node) in chosen:
            liking |= {user for user in node.users if _call_of(user) in taken}
    return liking


def _fake_of(node: Any) -> Any:
    return node.meta["val"]


def _call_of(node: Any) -> Any:
    return node.args[0] if node.target is operator.getitem else node


def _images(node: Any) -> list[Any]:
    given = arguments(node)
    return [given[place] for place in IMAGES[node.target]]


def _moves(node: Any) -> bool:
    """True of a call that PyTorch may run where it is by itself."""
    entry = entry_of(node.target)
    return entry is not None and entry.family in MOVES


def last(fake: Any) -> tuple[int, ...]:
    """The strides of an image with channels last."""
    steps, step = [0] * fake.dim(), 1
    for d in (1, *range(fake.dim() - 1, 1, -1), 0):
        steps[d] = step
        step *= int(fake.shape[d])
    return tuple(steps)


def _dense(fake: Any) -> bool:
    """True of what is no tensor, and of one that has each place of its memory once."""
    if not isinstance(fake, torch.Tensor):
        return True
    expected = 1
    for step, size in sorted(zip(fake.stride(), fake.shape, strict=True)):
        if size != 1 and step != expected:
            return False
        expected *= size
    return expected > 0


def _strided(fake: Any, strides: tuple[int, ...]) -> Any:
    """A fake tensor like another one, under other strides."""
    with fake.fake_mode:
        return torch.empty_strided(fake.shape, strides, dtype=fake.dtype, device=fake.device)


def _otherwise(before: Any, after: Any) -> bool:
    """True when the second of two fakes has the shape of the first, and other strides."""
    if not (isinstance(before, torch.Tensor) and hasattr(after, "fake_mode")):
        return False
    numbers = (*before.shape, *after.shape, *before.stride(), *after.stride())
    if not all(isinstance(each, int) for each in numbers):
        return False
    return before.shape == after.shape and _steps(before) != _steps(after)


def _steps(fake: Any) -> list[Any]:
    return _wide(fake, fake.stride())


def _wide(fake: Any, strides: Sequence[Any]) -> list[Any]:
    """Strides of the dimensions that have some."""
    return [step for step, size in zip(strides, fake.shape, strict=True) if size != 1]
