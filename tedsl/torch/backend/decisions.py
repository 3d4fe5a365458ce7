"""Which nodes tensor expressions compute, decided in one place, with the reason where not.

Imports the importer and `library`.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.errors import ExprError
from tedsl.tensor.compute import compute, placeholder
from tedsl.torch.backend.library import is_faster
from tedsl.torch.backend.region import Part, structure
from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.elements.layouts import layout_of
from tedsl.torch.elements.sizes import Sizes
from tedsl.torch.elements.value import Value, whole
from tedsl.torch.importer.left import left_reason
from tedsl.torch.importer.registry import Family, entry_of
from tedsl.torch.importer.walk import Walk, results_read
from tedsl.torch.lib import pytree, torch
from tedsl.torch.refusals import FAULTS, NotTaken, first_line

LIBRARY = (Family.PRODUCT, Family.CONVOLUTION)
_MOVES = (Family.VIEW, Family.CREATION)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a node is taken; else why PyTorch keeps it."""

    taken: bool
    reason: str = ""


def decide(node: Any, products: bool = False, met: set[str] | None = None) -> Decision:
    """Whether tensor expressions compute a node.

    Args:
        node: of a functionalised graph, with fake values.
        products: take products and convolutions too where a library is faster.
        met: what nodes of the graph that were taken are by themselves; one like them is not
            converted again, and another is added.
    """
    if node.op != "call_function":
        return Decision(False)
    if node.target is operator.getitem:
        return decide(node.args[0], products, met)
    entry = entry_of(node.target)
    if entry is None:
        return Decision(False, left_reason(node.target))
    if entry.family in LIBRARY and not products:
        on_gpu = node.meta["val"].device.type == "cuda"
        if not on_gpu or is_faster(node, entry.family):
            return Decision(False, "a library is faster")
    fault = _device_fault(node)
    if fault:
        return Decision(False, fault)
    met = set() if met is None else met
    try:
        form = _form(node)
        if form not in met:
            _tried(node)
            met.add(form)
    except NotTaken as refusal:
        return Decision(False, refusal.reason)
    except FAULTS as error:
        return Decision(False, f"the converter fails: {first_line(error)}")
    return Decision(True)


def pays(nodes: Sequence[Any]) -> bool:
    """True where a region computes something, or lays a tensor out anew on a GPU, where PyTorch's
    copy is slow: views and constants alone are PyTorch's."""
    entries = [(node, entry_of(node.target)) for node in nodes]
    return any(e is not None and (e.family not in _MOVES or _turns(node)) for node, e in entries)


def _turns(node: Any) -> bool:
    """True of a copy, on a GPU, of a tensor that lies in another order."""
    sources, fake = node.all_input_nodes, node.meta.get("val")
    if len(sources) != 1 or not isinstance(fake, torch.Tensor) or fake.device.type != "cuda":
        return False
    if any(argument.alias_info is not None for argument in node.target._schema.arguments):
        return False
    given = sources[0].meta.get("val")
    alike = isinstance(given, torch.Tensor) and given.shape == fake.shape
    if not alike or given.dtype is not fake.dtype:
        return False
    long = [d for d, size in enumerate(fake.shape) if size != 1]
    return any(given.stride(d) != fake.stride(d) for d in long)


def _device_fault(node: Any) -> str:
    """Why the tensors around a node cannot meet in one kernel."""
    fakes = [fake for fake in _fakes(node) if isinstance(fake, torch.Tensor)]
    kinds = {fake.device for fake in fakes}
    if len(kinds) > 1:
        return "tensors on several devices"
    if kinds and next(iter(kinds)).type not in ("cpu", "cuda"):
        return f"no target for {next(iter(kinds)).type}"
    if any(type(fake).__name__ != "FakeTensor" for fake in fakes):
        return "a tensor subclass"
    return ""


def _fakes(node: Any) -> list[Any]:
    read = [each.meta.get("val") for each in node.all_input_nodes]
    return list(pytree.tree_leaves([node.meta.get("val"), *read]))


def _form(node: Any) -> str:
    """The same of nodes that are converted alike."""
    if any(isinstance(f, torch.Tensor) and f.layout is not torch.strided for f in _fakes(node)):
        raise NotTaken("a tensor without strides")
    alone = Part(tuple(node.all_input_nodes), (node,), (node,))
    return f"{structure(alone)}\n{results_read(node)}"


def _tried(node: Any) -> None:
    """Convert the node alone.

    Raises:
        NotTaken: tensor expressions do not say it.
    """
    walk = Walk(Sizes())
    for source in node.all_input_nodes:
        fake = source.meta.get("val")
        if isinstance(fake, torch.Tensor):
            walk.put(source, _given(fake, str(source.name), walk.sizes))
        elif isinstance(fake, (tuple, list)):
            raise NotTaken("an argument is several tensors")
    result = walk.convert(node)
    read = [result[n] for n in results_read(node)] if isinstance(result, tuple) else [result]
    for value in read:
        _defined(value, str(node.name))
    for fake in pytree.tree_leaves(node.meta["val"]):
        layout_of(fake, walk.sizes)


def _given(fake: Any, name: str, sizes: Sizes) -> Value:
    layout = layout_of(fake, sizes)
    return layout.value(whole(placeholder(layout.memory, dtype_of(fake.dtype), name=name)))


def _defined(value: Value, name: str) -> None:
    """Make a stage of a value that is none, so that its reads are checked.

    Raises:
        NotTaken: the language refuses the definition.
    """
    if value.tensor is not None:
        return
    try:
        compute(value.shape, lambda *i: value.element(i), name=name)
    except ExprError as error:
        raise NotTaken(error.reason) from error
