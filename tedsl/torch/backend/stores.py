"""Copies into arguments, which end a functionalised graph: those of one type as one call, since
each costs the host more than the device.  Imports `lib` alone."""

from __future__ import annotations

from typing import Any

from tedsl.torch.lib import aten, changes, torch

_COPY: Any = aten.copy_.default
_TOGETHER: Any = aten._foreach_copy_.default


def store_together(graph: Any) -> None:
    """Make copies of computed tensors into arguments on a GPU one call for each type, at the place
    of the last of them, where nothing between reads what they write."""
    nodes = list(graph.nodes)
    kinds: dict[Any, list[Any]] = {}
    stores = dict.fromkeys(node for node in nodes if _is_store(node))
    for node in stores:
        fake = node.args[0].meta["val"]
        kinds.setdefault((fake.dtype, fake.device), []).append(node)
    place = {node: n for n, node in enumerate(nodes)}
    targets = [store.args[0] for store in stores]
    for copies in kinds.values():
        first, last = place[copies[0]], place[copies[-1]]
        written = {copy.args[0] for copy in copies}
        # Stores of other types into other arguments read nothing that these write.
        between = [node for node in nodes[first:last] if node not in stores]
        once = sum(target in written for target in targets) == len(written)
        apart = once and not any(
            changes(node) or not written.isdisjoint(node.all_input_nodes) for node in between
        )
        if len(copies) < 2 or not apart:
            continue
        with graph.inserting_after(copies[-1]):
            given = [copy.args[0] for copy in copies], [copy.args[1] for copy in copies]
            graph.call_function(_TOGETHER, given)
        for copy in copies:
            graph.erase_node(copy)


def _is_store(node: Any) -> bool:
    """True of a copy, that nobody reads, of what was computed, into an argument on a GPU."""
    if node.target is not _COPY or node.users or len(node.args) != 2 or node.kwargs:
        return False
    target, source = node.args
    if not all(isinstance(each, torch.fx.Node) for each in node.args):
        return False
    to, value = (each.meta.get("val") for each in (target, source))
    if not all(
        isinstance(fake, torch.Tensor) and fake.device.type == "cuda" for fake in (to, value)
    ):
        return False
    own = target.op == "placeholder" and source.op == "call_function"
    return own and to.shape == value.shape and to.dtype is value.dtype
