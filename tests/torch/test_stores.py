"""Copies into arguments as one call."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
fx: Any = importlib.import_module("torch.fx")
stores: Any = importlib.import_module("tedsl.torch.backend.stores")
aten = torch.ops.aten


class OnGpu(torch.Tensor):
    """A tensor in host memory that says otherwise."""

    device = torch.device("cuda")


def graph_of(*steps: tuple[str, str, str], dtypes: str = "fff", device: Any = OnGpu) -> Any:
    """Arguments a, b, c of the dtypes, and steps (name, operator, names of arguments)."""
    graph, kinds = fx.Graph(), {"f": torch.float32, "i": torch.int64}
    nodes: dict[str, Any] = {}
    for name, kind in zip("abc", dtypes, strict=True):
        nodes[name] = graph.placeholder(name)
        nodes[name].meta["val"] = torch.zeros(3, dtype=kinds[kind]).as_subclass(device)
    for name, operator, names in steps:
        given = tuple(nodes[each] for each in names)
        nodes[name] = graph.call_function(getattr(aten, operator).default, given)
        nodes[name].meta = dict(given[0].meta)
    graph.output(tuple(nodes[name] for name, operator, _ in steps if operator == "neg"))
    return graph


def called(graph: Any) -> list[str]:
    return [str(n.target.__name__) for n in graph.nodes if n.op == "call_function"]


def ran(graph: Any) -> list[Any]:
    given = [torch.full((3,), float(n)) for n in (1, 2, 3)]
    fx.GraphModule(torch.nn.Module(), graph)(*given)
    return given


THREE = (("x", "neg", "b"), ("y", "neg", "a"), ("p", "copy_", "ax"), ("q", "copy_", "by"))


def test_copies_of_one_type_are_one_call() -> None:
    graph, before = graph_of(*THREE), graph_of(*THREE)
    stores.store_together(graph)
    graph.lint()
    assert called(graph) == ["neg.default", "neg.default", "_foreach_copy_.default"]
    for found, wanted in zip(ran(graph), ran(before), strict=True):
        assert torch.equal(found, wanted)


def test_copies_of_two_types_by_turns_are_a_call_for_each() -> None:
    """As batch norms count, and keep means and variances."""
    steps = (*THREE, ("z", "neg", "c"), ("r", "copy_", "cz"))
    steps = (*steps[:3], *steps[4:], steps[3])
    graph, before = graph_of(*steps, dtypes="ffi"), graph_of(*steps, dtypes="ffi")
    stores.store_together(graph)
    graph.lint()
    assert called(graph).count("_foreach_copy_.default") == 1
    assert called(graph).count("copy_.default") == 1
    for found, wanted in zip(ran(graph), ran(before), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (THREE, {"dtypes": "ifi"}),  # of two types
        (THREE[:3], {}),  # one copy
        (THREE, {"device": torch.Tensor}),  # on the processor
        ((*THREE[:3], ("z", "neg", "a"), ("r", "copy_", "bz")), {}),  # it is read between
        ((*THREE[:3], ("r", "copy_", "ay")), {}),  # written twice
        ((("p", "copy_", "ab"), ("q", "copy_", "bc")), {}),  # of arguments
        ((*THREE[:3], ("z", "neg", "p"), ("r", "copy_", "by")), {}),  # it is read
    ],
)
def test_others_stay(steps: Any, told: dict[str, Any]) -> None:
    graph = graph_of(*steps, **told)
    before = called(graph)
    stores.store_together(graph)
    assert called(graph) == before
