"""A graph with its regions as calls of kernels, the rest as it was.

Calls keep their order among those that change an argument or draw random numbers.  Imports
`partition`, `relaying`, `compiling`, `views` and `stores`.
"""

from __future__ import annotations

import heapq
import operator
from collections.abc import Sequence
from typing import Any

from tedsl.torch.backend.channels_last import chosen
from tedsl.torch.backend.compiling import compile_regions
from tedsl.torch.backend.decisions import decide
from tedsl.torch.backend.options import Options
from tedsl.torch.backend.partition import Partition
from tedsl.torch.backend.region import Part, Region, with_sizes
from tedsl.torch.backend.relaying import LAY, RELAID, relaid
from tedsl.torch.backend.report import GraphReport, RegionReport
from tedsl.torch.backend.stores import store_together
from tedsl.torch.backend.views import straighten
from tedsl.torch.lib import changes, fx, torch


def rewritten(
    module: Any,
    report: GraphReport,
    options: Options,
    given: Sequence[Any] = (),
    promised: int | None = None,
) -> Any:
    """A module that computes what `module` does, in kernels as far as they say it.

    Args:
        module: an ATen graph with fake values.
        report: written.
        options: of the model.
        given: fake arguments, which may lie otherwise than they were traced.
        promised: how many results, from the first on, lie as they were traced; None for all.
    """
    taken = _taken(module, report, options)
    training = report.kind != "forward"
    images, report.images = chosen(list(module.graph.nodes), taken, training, options.channels_last)
    laid = relaid(module, taken, images, given, promised)
    report.relaid, report.nodes = laid.module is not module, report.nodes + laid.fresh
    nodes = list(laid.module.graph.nodes)
    regions = Partition(nodes, laid.taken).regions
    inside = {node for region in regions for node in region}
    for node in laid.taken - inside:
        report.left[str(node.target), "a view or a constant by itself"] += 1
    return _Rewriter(laid.module, nodes, regions, report, options).made()


def _taken(module: Any, report: GraphReport, options: Options) -> set[Any]:
    """The nodes that tensor expressions compute; the report says of the others why not."""
    taken: set[Any] = set()
    met: set[str] = set()
    changed = False
    for node in module.graph.nodes:
        if node.op != "call_function" or not hasattr(node.target, "_schema"):
            continue
        report.nodes += 1
        if changed or changes(node):
            changed = True
            report.left[str(node.target), "at or behind a call that changes an argument"] += 1
            continue
        decision = decide(node, options.products, met)
        if decision.taken:
            taken.add(node)
        else:
            report.left[str(node.target), decision.reason] += 1
    return taken


class _Rewriter:
    """The new graph, unit by unit: a region, or a node by itself."""

    def __init__(
        self,
        module: Any,
        nodes: Sequence[Any],
        regions: Sequence[list[Any]],
        report: GraphReport,
        options: Options,
    ) -> None:
        self.module, self.report, self.options = module, report, options
        self.units: list[list[Any]] = []
        unit_of: dict[Any, int] = {}
        region_of = {node: region for region in regions for node in region}
        for node in nodes:
            if node in unit_of:
                continue
            unit = region_of.get(node, [node])
            unit_of.update(dict.fromkeys(unit, len(self.units)))
            self.units.append(unit)
        self.unit_of = unit_of
        self.parts = {id(region): _part_of(region, nodes) for region in regions}
        self.made_of: dict[Any, Any] = {}
        self.graph: Any = fx.Graph()

    def made(self) -> Any:
        """The module."""
        root: Any = torch.nn.Module()
        for name, value in _held(self.module):
            setattr(root, name, value)
        made: list[Region] = []
        for unit in self._order():
            part = self.parts.get(id(unit))
            if part is not None:
                made.append(self._region(root, part))
            else:
                (node,) = unit
                self.made_of[node] = self.graph.node_copy(node, self.made_of.__getitem__)
        compile_regions(made, self.options)
        straighten(self.graph)
        store_together(self.graph)
        return fx.GraphModule(root, self.graph)

    def _order(self) -> list[list[Any]]:
        """The units, each behind what it needs, as early as they were."""
        needs: list[set[int]] = [set() for _ in self.units]
        last = changed = -1
        for n, unit in enumerate(self.units):
            part = self.parts.get(id(unit))
            sources = unit[0].all_input_nodes if part is None else part.inputs
            needs[n] |= {self.unit_of[source] for source in sources}
            if changed >= 0:
                needs[n].add(changed)
            if len(unit) == 1 and _is_ordered(unit[0]):
                if changes(unit[0]):
                    needs[n] |= set(range(n))
                    changed = n
                elif last >= 0:
                    needs[n].add(last)
                last = n
            needs[n].discard(n)
        return [self.units[n] for n in _sorted(needs)]

    def _region(self, root: Any, part: Part) -> Region:
        name = f"region_{len(self.report.regions)}"
        report = RegionReport(name, part.names)
        self.report.regions.append(report)
        region = Region(part, eager_of(self.module, part), report, _target(part.results[0]))
        holder: Any = torch.nn.Module()
        holder.forward = region
        setattr(root, name, holder)
        called = self.graph.call_module(name, tuple(self.made_of[each] for each in part.inputs))
        for n, node in enumerate(part.results):
            self.made_of[node] = self.graph.call_function(operator.getitem, (called, n))
            self.made_of[node].meta = dict(node.meta)
        return region


def _part_of(region: Sequence[Any], nodes: Sequence[Any]) -> Part:
    """A region of a graph as a function."""
    own = set(region)
    inputs = dict.fromkeys(
        source for node in region for source in node.all_input_nodes if source not in own
    )
    results = [
        node
        for node in region
        if not isinstance(node.meta["val"], (tuple, list))
        and any(user not in own for user in node.users)
    ]
    return with_sizes(Part(tuple(inputs), tuple(region), tuple(results)), nodes)


def eager_of(module: Any, part: Part) -> Any:
    """The part by PyTorch."""
    graph: Any = fx.Graph()
    made = {node: graph.placeholder(str(node.name)) for node in part.inputs}
    for node in part.nodes:
        made[node] = graph.node_copy(node, made.__getitem__)
    for node in part.results:
        if RELAID in node.meta:
            strides = list(node.meta["val"].stride())
            made[node] = graph.call_function(LAY, (made[node], strides))
    graph.output(tuple(made[node] for node in part.results))
    return fx.GraphModule(module, graph)


def _held(module: Any) -> list[tuple[str, Any]]:
    """What `get_attr` nodes and submodules of the graph name, by the first part of the name."""
    names = {
        str(node.target).split(".")[0]
        for node in module.graph.nodes
        if node.op in ("get_attr", "call_module")
    }
    return [(name, getattr(module, name)) for name in sorted(names)]


def _target(node: Any) -> str:
    return str(node.meta["val"].device.type)


def _is_ordered(node: Any) -> bool:
    """True of a call that may not change places with its like."""
    if node.op != "call_function":
        return False
    tags = getattr(node.target, "tags", ())
    return changes(node) or torch.Tag.nondeterministic_seeded in tags or node.is_impure()


def _sorted(needs: Sequence[set[int]]) -> list[int]:
    """Numbers, each behind those that it needs, the lowest first."""
    users: list[list[int]] = [[] for _ in needs]
    for n, each in enumerate(needs):
        for source in each:
            users[source].append(n)
    open_needs = [len(each) for each in needs]
    ready = [n for n, count in enumerate(open_needs) if count == 0]
    heapq.heapify(ready)
    found: list[int] = []
    while ready:
        n = heapq.heappop(ready)
        found.append(n)
        for user in users[n]:
            open_needs[user] -= 1
            if open_needs[user] == 0:
                heapq.heappush(ready, user)
    if len(found) != len(needs):
        raise ValueError("regions depend on each other")
    return found
