"""`trace`: a PyTorch function or module as a `Program`.  Imports the importer and `program`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from tedsl.torch.decompositions import table
from tedsl.torch.importer.graph import import_nodes
from tedsl.torch.lib import load, pytree, torch
from tedsl.torch.program import Program
from tedsl.torch.refusals import NotTaken

_proxies: Any = load("torch.fx.experimental.proxy_tensor")


def trace(fn: Callable[..., Any], *arguments: Any) -> Program:
    """A function as tensor expressions, to be looked at and scheduled.

    Args:
        fn: a function of tensors, or a module; its parameters and buffers become inputs too, which
            the program fills in.
        arguments: an example: tensors, and lists, tuples and dictionaries of them.  Shapes, types
            and strides are those of the program.

    Raises:
        NotTaken: an operator that tensor expressions do not say; `te.torch.compile` leaves it to
            PyTorch.
    """
    leaves = list(pytree.tree_leaves(arguments))
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        raise NotTaken(
            "an argument is no tensor", subject="trace", hint="bind it: lambda x: f(x, 2)"
        )
    held = _state(fn)
    spec = pytree.tree_structure(arguments)
    shapes: list[Any] = []

    def flat(*tensors: Any) -> list[Any]:
        given = pytree.tree_unflatten(list(tensors[: len(leaves)]), spec)
        state = dict(zip(held, tensors[len(leaves) :], strict=True))
        result = torch.func.functional_call(fn, state, given) if held else fn(*given)
        found, structure = pytree.tree_flatten(result)
        shapes[:] = [structure]
        return found

    graph = _graph(flat, [*leaves, *held.values()])
    names = _unique([*_names(fn, arguments), *held])
    nodes = list(graph.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    constants = [node for node in nodes if node.op == "get_attr"]
    results = _results(nodes[-1])
    called = [node for node in nodes if node.op == "call_function"]
    fixed = {len(placeholders) + n: _attribute(graph, each) for n, each in enumerate(constants)}
    fixed.update({len(leaves) + n: tensor for n, tensor in enumerate(held.values())})
    imported = import_nodes(
        [*placeholders, *constants],
        called,
        results,
        names=[*names, *(str(each.name) for each in constants)],
    )
    return Program(imported, fixed, shapes[0], len(leaves), fn)


def _graph(flat: Callable[..., Any], tensors: Sequence[Any]) -> Any:
    """The ATen graph, functionalised and decomposed, without what nothing reads."""
    fake_mode: Any = load("torch._subclasses.fake_tensor").FakeTensorMode(
        allow_non_fake_inputs=True
    )
    fakes = [fake_mode.from_tensor(_laid_out(tensor), static_shapes=True) for tensor in tensors]
    made: Any = flat
    with torch.no_grad():
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


def changes(node: Any) -> bool:
    """True of a call that writes to an argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


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


def _results(output: Any) -> list[Any]:
    found = list(pytree.tree_leaves(output.args[0]))
    if not all(hasattr(each, "meta") for each in found):
        raise NotTaken("a result is no tensor", subject="trace")
    return found


def _state(fn: Callable[..., Any]) -> dict[str, Any]:
    if not isinstance(fn, torch.nn.Module):
        return {}
    module: Any = fn
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _names(fn: Callable[..., Any], arguments: Sequence[Any]) -> list[str]:
    """The names of the function's arguments, one for each tensor in them."""
    function: Any = getattr(fn, "forward", fn)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for place, argument in enumerate(arguments):
        called = f"arg{place}"
        if (
            place < len(parameters)
            and parameters[place].kind is not inspect.Parameter.VAR_POSITIONAL
        ):
            called = parameters[place].name
        count = len(list(pytree.tree_leaves(argument)))
        single = isinstance(argument, torch.Tensor)
        names += [called] if single else [f"{called}_{n}" for n in range(count)]
    return names


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name)
        while plain in found:
            plain += "_"
        found.append(plain)
    return found
