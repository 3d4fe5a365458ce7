"""What became of the graphs of a model: regions, nodes left to PyTorch, and why.

Imports nothing of the folder.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class RegionReport:
    """One kernel of a graph.

    Attributes:
        name: in the graph.
        nodes: ATen calls that it stands for.
        kernels: of the target, once it is compiled.
        shared: it is one that was compiled before.
        search: what a search found, where one was asked for.
        fault: why it is not compiled; PyTorch runs it then.
        calls, eager_calls: how often the kernel ran, and PyTorch in its place.
        specialised: sizes that it was compiled for, where it does not serve all.
    """

    name: str
    nodes: tuple[str, ...]
    kernels: int = 0
    shared: bool = False
    search: str = ""
    fault: str = ""
    calls: int = 0
    eager_calls: int = 0
    specialised: list[str] = field(default_factory=list[str])

    def __str__(self) -> str:
        what = f"{len(self.nodes)} operators in {self.kernels} kernels"
        if self.fault:
            what = f"{len(self.nodes)} operators left to PyTorch: {self.fault}"
        notes = [f"{self.calls} calls"] if self.calls else []
        notes += [f"{self.eager_calls} calls by PyTorch"] if self.eager_calls else []
        notes += [f"search: {self.search}"] if self.search else []
        notes += ["compiled before"] if self.shared else []
        notes += [f"for the sizes {each}" for each in self.specialised]
        tail = f" ({'; '.join(notes)})" if notes else ""
        return f"{self.name}: {what}{tail}: {', '.join(self.nodes)}"


@dataclass
class GraphReport:
    """One graph that PyTorch gave the backend: the forward or the backward pass of a part.

    Attributes:
        kind: which pass.
        nodes: operators, with the copies that other strides ask for.
        regions: kernels.
        left: operators that PyTorch runs, with the reason, and how many.
        images: convolutions that PyTorch runs, with how their images lie, and how many.
        relaid: whether anything lies otherwise than PyTorch traced it.
    """

    kind: str
    nodes: int = 0
    regions: list[RegionReport] = field(default_factory=list[RegionReport])
    left: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    images: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    relaid: bool = False

    @property
    def taken(self) -> int:
        """Nodes that kernels compute."""
        return sum(len(region.nodes) for region in self.regions if not region.fault)

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.taken} of {self.nodes} operators in tedsl's kernels"]
        lines += [f"  {region}" for region in self.regions]
        lines += [
            f"  left to PyTorch: {target} ({count}): {reason}"
            for (target, reason), count in self.left.most_common()
        ]
        lines += [
            f"  images of {target} ({count}): {reason}"
            for (target, reason), count in self.images.most_common()
        ]
        return "\n".join(lines)


@dataclass
class Report:
    """Everything compiled for one model, in the order in which PyTorch asked for it.

    Attributes:
        graphs: of which there is more than one where Python code breaks a graph, or for training.
    """

    graphs: list[GraphReport] = field(default_factory=list[GraphReport])

    @property
    def faults(self) -> list[str]:
        """What the compiler should have compiled and did not."""
        return [r.fault for graph in self.graphs for r in graph.regions if r.fault]

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs)) or "nothing was compiled"
