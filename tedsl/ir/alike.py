"""Kernels that are one but for names: a form that they share, and one as the other.

A graph of equal layers has equal kernels, which differ in what their buffers, axes and stages are
called and in nothing that is computed.  They are lowered and compiled once.  Imports `tokens` and
the nodes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any, TypeVar, cast

from tedsl.expr.nodes import Axis, Var
from tedsl.ir.nodes import Buffer, Func
from tedsl.ir.tokens import Tokens, field_names, from_outside, has_fields

Node = TypeVar("Node")


@dataclass(frozen=True, slots=True)
class Form:
    """Of kernels with equal keys, the nodes that stand for each other and the names of them are at
    the same places; they have the same runtime sizes."""

    key: tuple[str, ...]
    nodes: Sequence[object]
    names: tuple[str, ...]

    def buffers_in(self, other: Form) -> dict[Buffer, Buffer]:
        """Which buffer of `other`, which has an equal key, stands for each of this."""
        pairs = zip(self.nodes, other.nodes, strict=True)
        return {a: b for a, b in pairs if isinstance(a, Buffer) and isinstance(b, Buffer)}


def form_of(func: Func, marked: Collection[Buffer] = ()) -> Form:
    """The form of a kernel.

    Args:
        func: no call of the host.
        marked: buffers that stand for none that is not marked.
    """
    write = _Nameless(func, marked)
    write(func)
    met = set(map(id, write.nodes))
    for buffer in func.params:
        if id(buffer) not in met:
            write(buffer)
    return Form(tuple(write.tokens), write.nodes, tuple(write.names))


_NAMES: dict[type, tuple[str, ...]] = {
    Func: ("name",),
    Buffer: ("name", "part_of"),
    Axis: ("name",),
}


class _Nameless(Tokens):
    """Writes a kernel with its names numbered in the order in which they are met."""

    def __init__(self, func: Func, marked: Collection[Buffer]) -> None:
        super().__init__()
        self._sizes, self._params = frozenset(func.sizes), frozenset(func.params)
        self._marked = frozenset(marked)
        self.names: dict[str, int] = {}

    def parts(self, node: object) -> Sequence[object]:
        """What is written of a dataclass: of a size, which it is; of a kernel neither its remarks
        nor the order of its parameters."""
        match node:
            case Var() if node in self._sizes:
                return (id(node),)
            case Func():
                what = (node.body, node.sizes, node.launch, node.assumptions, node.when)
                return (self._number(node.name), *what)
            case Axis():
                return self._unnamed(node)
            case Buffer():
                return (*self._unnamed(node), node in self._params, node in self._marked)
            case _:
                return super().parts(node)

    def _unnamed(self, node: Axis | Buffer) -> list[object]:
        own = _NAMES[type(node)]
        values = [(name, getattr(node, name)) for name in field_names(type(node))]
        return [self._number(value) if name in own else value for name, value in values]

    def _number(self, name: str) -> int:
        """The number of a name; that of none is no number."""
        return self.names.setdefault(name, len(self.names)) if name else -1


class Template:
    """A kernel without names, to make what passes leave of one that is alike."""

    def __init__(self, func: Func, form: Form) -> None:
        numbers = {name: f"\x01{number}\x01" for number, name in enumerate(form.names)}
        copy = _Copy({}, lambda name: numbers.get(name, name))
        self.func = replace(copy(func), remarks=())
        self._nodes = [copy(node) for node in form.nodes]

    def filled_in(self, passed: Func, func: Func, form: Form) -> Func:
        """What passes would leave of `func`, of this form.

        Args:
            passed: what they left of the template's own kernel; names are made of names there, and
                decide nothing.
            func: a kernel of this form.
            form: its form.
        """
        known = dict(zip(map(id, self._nodes), form.nodes, strict=True))

        def named(text: str) -> str:
            return _PLACE.sub(lambda found: form.names[int(found[1])], text)

        made = _Copy(known, named)(passed)
        params = tuple(dict.fromkeys((*func.params, *made.params)))
        return replace(made, params=params, remarks=func.remarks)


_PLACE = re.compile("\x01(\\d+)\x01")


class _Copy:
    """Copies nodes of which a name or another node changes; `known` are copies, by `id`."""

    def __init__(self, known: dict[int, object], named: Callable[[str], str]) -> None:
        self._known, self._named = known, named

    def __call__(self, value: Node) -> Node:
        return cast("Node", self._copied(value))

    def _copied(self, value: object) -> object:
        if type(value) is tuple:
            items = cast("tuple[object, ...]", value)
            made = tuple([self._copied(item) for item in items])
            return items if all(map(is_, items, made)) else made
        if not has_fields(type(value)):
            return value
        found = self._known.get(id(value))
        if found is None:
            found = self._known[id(value)] = self._rebuilt(value)
        return found

    def _rebuilt(self, node: object) -> object:
        if from_outside(type(node)):
            return node
        names, own = field_names(type(node)), _NAMES.get(type(node), ())
        old = [getattr(node, name) for name in names]
        pairs = zip(names, old, strict=True)
        new = [self._named(v) if name in own else self._copied(v) for name, v in pairs]
        if all(map(is_, old, new)):
            return node
        made: Any = object.__new__(type(node))
        for name, value in zip(names, new, strict=True):
            object.__setattr__(made, name, value)
        return made
