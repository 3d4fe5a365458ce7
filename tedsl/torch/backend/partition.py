"""Regions of a graph: as many taken nodes as can run as one call.

A region may not depend on itself through what is outside, also not through other regions.  Nodes
are visited in order, and each joins the regions that it reads where that holds.  Imports nothing of
the folder but `decisions`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from tedsl.torch.backend.decisions import pays
from tedsl.torch.importer.registry import MOVES, Family, entry_of

LARGEST = 64
"""Nodes of one region: the default rules take more than linear time in the stages."""


class Partition:
    """The regions of a graph.

    Args:
        nodes: of the graph, in order.
        taken: those that tensor expressions compute.
    """

    def __init__(self, nodes: Sequence[Any], taken: set[Any]) -> None:
        self.place = {node: n for n, node in enumerate(nodes)}
        self.group: dict[Any, set[Any]] = {}
        for node in nodes:
            if node in taken and node.target is not operator.getitem:
                self._join(node)
        found = {id(group): group for group in self.group.values()}
        self.regions = [self._ordered(trimmed(group)) for group in found.values()]
        self.regions = [region for region in self.regions if region and pays(region)]

    def _ordered(self, group: set[Any]) -> list[Any]:
        return sorted(group, key=lambda node: self.place[node])

    def _join(self, node: Any) -> None:
        """Put the node into the regions of what it reads, as far as they may be one."""
        region = {node, *parts_of(node)}
        sources = [_call_of(source) for source in node.all_input_nodes]
        for source in sorted(sources, key=lambda each: -self.place.get(each, 0)):
            other = self.group.get(source)
            if other is None or source in region:
                continue
            whole = region | other
            if calls(whole) <= LARGEST and not self._returns(whole):
                region = whole
        for each in region:
            self.group[each] = region

    def _returns(self, region: set[Any]) -> bool:
        """True when something outside is read from the region and read by it."""
        waiting = [user for node in region for user in node.users if user not in region]
        seen: set[Any] = set()
        while waiting:
            node = waiting.pop()
            if node in region:
                return True
            if node in seen:
                continue
            unit = self.group.get(node, {node})
            seen |= unit
            waiting += [user for each in unit for user in each.users if user not in unit]
        return False


def parts_of(node: Any) -> list[Any]:
    """The nodes that take one result of several."""
    return [user for user in node.users if user.target is operator.getitem]


def _call_of(node: Any) -> Any:
    return node.args[0] if node.target is operator.getitem else node


def calls(region: set[Any]) -> int:
    """How many operators a region has."""
    return sum(node.target is not operator.getitem for node in region)


def trimmed(group: set[Any]) -> set[Any]:
    """Without the views at the end, and those of inputs that are read outside too: as PyTorch's
    they are free, and keep their strides."""
    region = set(group)
    changed = True
    while changed:
        changed = False
        for node in [each for each in region if _is_view(each)]:
            parts = parts_of(node)
            users = [user for part in parts or [node] for user in part.users]
            inside = [user for user in users if user in region]
            outside = len(inside) < len(users)
            of_inputs = all(source not in region for source in node.all_input_nodes)
            if not inside or (of_inputs and outside):
                region -= {node, *parts}
                changed = True
    return region


def _is_view(node: Any) -> bool:
    entry = entry_of(node.target)
    if entry is None or entry.family not in MOVES:
        return False
    schema = node.target._schema
    return entry.family is Family.CREATION or any(
        argument.alias_info is not None for argument in schema.arguments
    )
