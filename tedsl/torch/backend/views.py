"""Chains of views between kernels as one call each: most of what PyTorch does between two kernels
is to compute sizes and strides, which are known when a graph is compiled.

A view of a view is a view of what is stored, whose strides are looked at in each call.  Views of
runtime sizes, and of what is written to, stay as they are.  Imports `lib` alone.
"""

from __future__ import annotations

import operator
from typing import Any

from tedsl.torch.lib import aten, changes, load, torch

_guards: Any = load("torch._C._dynamo.guards")
_quick: Any = getattr(_guards, "_reinterpret_tensor", None)
Ints = tuple[int, ...]


def looked_at(stored: Any, lies: Ints, size: Ints, steps: Ints, offset: int) -> Any:
    """The memory of a tensor under another size and other strides.

    Args:
        stored: the tensor.
        lies: its strides; where it has others, it is copied.
        size: of the result.
        steps: its strides.
        offset: of its first element from that of `stored`.
    """
    if stored.stride() != lies:
        fresh = torch.empty_strided(stored.shape, lies, dtype=stored.dtype, device=stored.device)
        stored = fresh.copy_(stored)
    if _quick is None:
        return torch.as_strided(stored, size, steps, stored.storage_offset() + offset)
    return _quick(stored, size, steps, offset)


def straighten(graph: Any) -> None:
    """Make each view in a graph a view of what is stored."""
    found: dict[Any, tuple[Any, Any]] = {}
    written = _written(graph)
    for node in graph.nodes:
        known = _view_of(node, found, written)
        if known is not None:
            found[node] = known
    for node, (root, view) in found.items():
        if not isinstance(view, torch.Tensor) or not any(user not in found for user in node.users):
            continue
        with graph.inserting_before(node):
            given = (root, _lies(root), tuple(view.shape), view.stride(), view.storage_offset())
            made = graph.call_function(looked_at, given)
        made.meta = dict(node.meta)
        for user in [each for each in node.users if each not in found]:
            user.replace_input_with(node, made)
    for node in reversed(list(found)):
        if not node.users:
            graph.erase_node(node)


def _written(graph: Any) -> set[Any]:
    """What calls write to, and what that is a view of."""
    found = set[Any]()
    for call in graph.nodes:
        for node in call.all_input_nodes if changes(call) else ():
            while node not in found:
                found.add(node)
                if _is_view(node.target) or node.target is operator.getitem:
                    node = node.args[0]
    return found


def _view_of(
    node: Any, known: dict[Any, tuple[Any, Any]], written: set[Any]
) -> tuple[Any, Any] | None:
    """What is stored and what a node is of it, as a tensor without data or several; None of what is
    no view, or of what is written to."""
    if node.op != "call_function" or not node.args or node.args[0] in written:
        return None
    source = node.args[0]
    if node.target is operator.getitem:
        root, several = known.get(source, (None, None))
        parts: Any = list(several) if isinstance(several, (tuple, list)) else None  # pyright: ignore
        return None if parts is None else (root, parts[node.args[1]])
    if not _is_view(node.target) or node.all_input_nodes != [source]:
        return None
    root, view = known.get(source, (source, None))
    if view is None:
        view = _stored(source)
    if not isinstance(view, torch.Tensor):
        return None
    try:
        made = node.target(view, *node.args[1:], **node.kwargs)
    except RuntimeError:  # it lies so that this would be a copy
        return None
    parts: Any = [made] if isinstance(made, torch.Tensor) else made
    return (root, made) if all(_is_plain(each, view) for each in parts) else None


def _is_plain(part: Any, whole: Any) -> bool:
    """True for elements of a tensor as they are stored: of its type, neither conjugated nor negated
    where they are read (parts of complex numbers are other types)."""
    same = part.untyped_storage()._cdata == whole.untyped_storage()._cdata
    return same and part.dtype is whole.dtype and not (part.is_conj() or part.is_neg())


def _is_view(target: Any) -> bool:
    """True of an operator whose one result, or list of results, may be its argument's memory."""
    schema = getattr(target, "_schema", None)
    if schema is None or target is aten._unsafe_view.default:
        return schema is not None
    if len(schema.returns) != 1 or any(each.name == "storage_offset" for each in schema.arguments):
        return False  # an offset that is not from where the argument begins
    alias = schema.returns[0].alias_info
    return alias is not None and not alias.is_write


def _stored(node: Any) -> Any:
    """A tensor like a node's, without data; None of what has runtime sizes or no strides."""
    fake = node.meta.get("val")
    plain = isinstance(fake, torch.Tensor) and fake.layout is torch.strided
    if not plain:
        return None
    if not all(isinstance(each, int) for each in (*fake.shape, *fake.stride())):
        return None
    return torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device="meta")


def _lies(root: Any) -> Ints:
    return tuple(root.meta["val"].stride())
