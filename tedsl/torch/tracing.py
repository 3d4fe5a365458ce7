"""A function of tensors as an ATen graph, and its derivative as another one.

Graphs are functionalised and decomposed, without what nothing reads.  The derivative is PyTorch's
own, node by node, so that ties and edges are those of eager; where it computes a result of the
function again it takes the one that is there.  Imports `decompositions`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.torch.attention import AsFused
from tedsl.torch.decompositions import IN_PLACE, table
from tedsl.torch.lib import aten, changes, load, pytree, torch, undisturbed
from tedsl.torch.refusals import NotTaken

_proxies: Any = load("torch.fx.experimental.proxy_tensor")
_fake_tensors: Any = load("torch._subclasses.fake_tensor")
_attention: Any = load("torch.nn.attention")


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """A function and its graph.

    Attributes:
        flat: the function, from tensors to a list of tensors.
        fakes: an example of its arguments, without memory.
        names: of the arguments.
        graph: a `GraphModule` of as many placeholders.
        results: its result nodes, placeholders among them.
    """

    flat: Callable[..., list[Any]]
    fakes: tuple[Any, ...]
    names: tuple[str, ...]
    graph: Any
    results: tuple[Any, ...]

    @property
    def placeholders(self) -> list[Any]:
        """The nodes of the arguments."""
        return [node for node in self.graph.graph.nodes if node.op == "placeholder"]

    @property
    def constants(self) -> list[Any]:
        """The nodes of tensors that the function holds itself."""
        return [node for node in self.graph.graph.nodes if node.op == "get_attr"]

    @property
    def called(self) -> list[Any]:
        """The nodes of operators, in order."""
        return [node for node in self.graph.graph.nodes if node.op == "call_function"]

    def constant(self, node: Any) -> Any:
        """The tensor of a `get_attr` node."""
        return _attribute(self.graph, node)

    @property
    def computed(self) -> list[int]:
        """Which results are computed; the others are arguments as they were given."""
        return [n for n, node in enumerate(self.results) if node.op != "placeholder"]


@dataclass(frozen=True, slots=True, eq=False)
class Pullback:
    """The derivative of a function.

    Attributes:
        traced: from the arguments, the computed results and the derivatives by those of `heads` to
            the derivatives by those of `inputs`.
        inputs: of the arguments asked for, those that the results depend on.
        heads: of the computed results, those that have derivatives.
    """

    traced: Traced
    inputs: tuple[int, ...]
    heads: tuple[int, ...]


def trace_flat(
    flat: Callable[..., list[Any]], tensors: Sequence[Any], names: Sequence[str]
) -> Traced:
    """The graph of a function of tensors alone.

    Args:
        flat: the function.
        tensors: an example; shapes, types and strides are those of the graph.
        names: of the arguments.

    Raises:
        NotTaken: a result is no tensor, or an argument is changed.
    """
    mode: Any = _fake_tensors.FakeTensorMode(allow_non_fake_inputs=True)
    fakes = tuple(mode.from_tensor(_laid_out(tensor), static_shapes=True) for tensor in tensors)
    graph = _graph(flat, fakes)
    changed = [node for node in graph.graph.nodes if changes(node)]
    if changed:
        raise NotTaken(
            "the function changes an argument",
            subject=f"trace: {changed[0].target}",
            hint="return the new value, or leave it to torch.compile(model, backend='tedsl')",
        )
    return Traced(flat, fakes, tuple(names), graph, tuple(_results(graph)))


def pullback(traced: Traced, asked: Sequence[int]) -> Pullback:
    """The derivative of the computed results by the arguments `asked` for.

    Raises:
        NotTaken: no result depends on them by a differentiable way.
    """
    count, computed = len(traced.fakes), traced.computed
    metas = [traced.results[n].meta["val"] for n in computed]
    floats = [n for n, meta in enumerate(metas) if meta.is_floating_point()]
    found: list[tuple[list[int], list[int]]] = []

    def pulled(tensors: Sequence[Any], heads: Sequence[Any], heads_of: Sequence[int]) -> Any:
        with torch.enable_grad():
            given = [_leaf(each, n in asked) for n, each in enumerate(tensors)]
            every = traced.flat(*given)
            outs = [every[n] for n in computed]
            live = [n for n in heads_of if outs[n].requires_grad]
            if not live:
                raise NotTaken("no result has a derivative", subject="gradient")
            grads = torch.autograd.grad(
                [outs[n] for n in live],
                [given[n] for n in asked],
                [heads[heads_of.index(n)] for n in live],
                allow_unused=True,
                create_graph=True,
            )
        reached = [n for n, grad in zip(asked, grads, strict=True) if grad is not None]
        found[:] = [(reached, live)]
        return outs, [grad for grad in grads if grad is not None]

    def joint(*given: Any) -> list[Any]:
        outs, grads = pulled(given[:count], given[count:], floats)
        return [each.detach() for each in (*outs, *grads)]

    heads = [_empty_like(metas[n]) for n in floats]
    example = [*traced.fakes, *heads]
    graph = _without_detaching(_graph(joint, example))
    ((reached, live),) = found

    def flat(*given: Any) -> list[Any]:
        return list(pulled(given[:count], given[count + len(computed) :], live)[1])

    used, results = _reading_results(graph, count, len(computed), floats, live)
    single = len(computed) == 1
    out_names = ["result" if single else f"result{n}" for n in range(len(computed))]
    names = [*traced.names, *out_names, *(f"d_{out_names[n]}" for n in live)]
    fakes = (*traced.fakes, *metas, *(metas[n] for n in live))
    return Pullback(Traced(flat, fakes, tuple(names), used, results), tuple(reached), tuple(live))


def _leaf(tensor: Any, wanted: bool) -> Any:
    """An argument by which a derivative is taken; the same where one is recorded already."""
    if not wanted or tensor.requires_grad:
        return tensor
    return tensor.detach().requires_grad_()


def _without_detaching(graph: Any) -> Any:
    """The graph without copies that only leave PyTorch's record of derivatives."""
    for node in list(graph.graph.nodes):
        if node.target is aten.detach_copy.default:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    return graph


def _empty_like(meta: Any) -> Any:
    with meta.fake_mode:
        return torch.empty_strided(
            tuple(meta.shape), meta.stride(), dtype=meta.dtype, device=meta.device
        )


def _reading_results(
    graph: Any, count: int, outs: int, floats: Sequence[int], live: Sequence[int]
) -> tuple[Any, tuple[Any, ...]]:
    """The graph of a function and its derivative as one of the derivative alone, which takes the
    function's results as arguments in the place of computing them."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    results = _results(graph)
    with graph.graph.inserting_after(placeholders[count - 1] if count else None):
        made: list[Any] = []
        for n in reversed(range(outs)):
            made.insert(0, graph.graph.placeholder(f"result_{n}"))
            made[0].meta["val"] = results[n].meta["val"]
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    output.args = (tuple(results[outs:]),)
    for n, node in enumerate(results[:outs]):
        if node.op == "call_function":
            node.replace_all_uses_with(made[n])
    unread = set(floats) - set(live)
    for place, n in enumerate(floats):
        if n in unread:
            graph.graph.erase_node(placeholders[count + place])
    graph.graph.eliminate_dead_code()
    graph.recompile()
    return graph, tuple(_results(graph))


def _graph(flat: Callable[..., Any], fakes: Sequence[Any]) -> Any:
    """The ATen graph, functionalised and decomposed, without what nothing reads.

    It is recorded first, as functionalisation knows changes in place by operators of ATen's core
    alone.  Attention is products and a softmax.
    """
    with undisturbed(), torch.no_grad(), _attention.sdpa_kernel(_attention.SDPBackend.MATH):
        with AsFused():
            made = _proxies.make_fx(flat, decomposition_table=IN_PLACE, tracing_mode="fake")(*fakes)
        for _ in range(2):  # once more where decompositions change a tensor of their own
            made = _proxies.make_fx(
                torch.func.functionalize(made, remove="mutations_and_views"),
                decomposition_table=table(),
                tracing_mode="fake",
            )(*fakes)
            if not any(changes(node) for node in made.graph.nodes):
                break
    made.graph.eliminate_dead_code()
    for node in made.graph.nodes:
        if node.op == "get_attr":
            node.meta.setdefault("val", _attribute(made, node))
    return made


def _laid_out(tensor: Any) -> Any:
    """The tensor; a row-major one for memory that is read several times, as other calls may give
    memory that is not."""
    found = tensor.detach()
    return found.contiguous() if 0 in found.stride() else found


def _attribute(module: Any, node: Any) -> Any:
    found = module
    for part in str(node.target).split("."):
        found = getattr(found, part)
    return found.detach()


def _results(graph: Any) -> list[Any]:
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    found = list(pytree.tree_leaves(output.args[0]))
    if not all(hasattr(each, "meta") for each in found):
        raise NotTaken("a result is no tensor", subject="trace")
    return found
