"""Kernels for many sizes behind one call: which of them serves a call is decided by plain Python.

`Dispatcher.source` is that Python, whole: a table that is exact for the sizes that were tuned, and
for others the kernel of the nearest tuned size, by the distance of logarithms, that may be called
there.  A decision is kept by the shapes of the arguments, so that it costs one look into a
dictionary from the second call on.  Imports `runtime`.
"""

from __future__ import annotations

import builtins
import keyword
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.errors import BackendError
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Compare, Const, Expr, Var
from tedsl.runtime.arguments.sizes import bare_var
from tedsl.runtime.kernel import Kernel
from tedsl.runtime.timing import format_seconds
from tedsl.scheduling.plan.labels import unique_name

KEPT = 4096
"""Decisions kept before all are forgotten."""
_INFIX = {
    **{op: op.value for op in (BinaryOp.ADD, BinaryOp.SUB, BinaryOp.MUL)},
    BinaryOp.FLOORDIV: "//",
    BinaryOp.FLOORMOD: "%",
    BinaryOp.AND: "and",
    BinaryOp.OR: "or",
}
_CALLED = {BinaryOp.MIN: "min", BinaryOp.MAX: "max"}


@dataclass(frozen=True, slots=True)
class Row:
    """What a size got.

    Attributes:
        sizes: the values.
        kernel: number of the kernel that serves it.
        seconds: its time there.
        slowdown: that over the least time of all candidates tried there.
        weight: of this size.
    """

    sizes: Mapping[str, int]
    kernel: int
    seconds: float
    slowdown: float
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel of the set: its decisions in words, and when it may be called, as Python."""

    text: str
    condition: str = "True"


Build = Callable[[int, Mapping[str, int]], Kernel]
"""The kernel of a number, for these sizes."""


class Dispatcher:
    """Serves calls of any size with one of a few kernels.  Called as a `Kernel` is.

    Args:
        choices: the kernels of the set.
        rows: what the tuned sizes got.
        build: makes a kernel of the set for a size; the same one where it serves several.
        places: for each size the argument and the dimension that tell it.
        names: what the sizes are called.

    Attributes:
        source: the Python program that decides.
        table: what the tuned sizes got.
        choices: the kernels of the set in words.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        rows: Sequence[Row],
        build: Build,
        places: Mapping[str, tuple[int, int]],
    ) -> None:
        self.choices = tuple(choices)
        self.table = tuple(rows)
        self.names = tuple(rows[0].sizes)
        self.source = write_source(self.names, choices, rows)
        self._build = build
        self._places = dict(places)
        self._choose = _compile(self.source)
        self._known: dict[object, Kernel] = {}

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels that serve the tuned sizes, each once."""
        return tuple(dict.fromkeys(self._build(row.kernel, row.sizes) for row in self.table))

    @property
    def slowdown(self) -> float:
        """Geometric mean over the tuned sizes of the slowdown against the best known there."""
        total = sum(row.weight for row in self.table)
        return math.exp(sum(row.weight * math.log(row.slowdown) for row in self.table) / total)

    def number(self, /, **sizes: int) -> int:
        """The number of the kernel that serves a size.

        Raises:
            BackendError: none may.
        """
        found = self._choose(*(sizes[name] for name in self.names))
        if found is None:
            where = ", ".join(f"{name} = {sizes[name]}" for name in self.names)
            conditions = "; ".join(f"{n}: {c.condition}" for n, c in enumerate(self.choices))
            raise BackendError(
                "none of the kernels may be called with these sizes",
                subject="dispatch",
                facts=[("sizes", where), ("allowed", conditions)],
                hint="tune with such a size among sizes=[...]",
            )
        return found

    def kernel(self, /, **sizes: int) -> Kernel:
        """The kernel that serves a size."""
        return self._build(self.number(**sizes), sizes)

    def __call__(self, /, *inputs: Any, out: Any = None, **scalars: Any) -> Any:
        """Run the kernel for the sizes of the arguments; see `Kernel.__call__`."""
        try:
            form: object = tuple([array.shape for array in inputs])
            if scalars:
                form = form, tuple(sorted(scalars.items()))
            kernel = self._known[form]
        except (KeyError, AttributeError, TypeError):
            kernel = self._decide(inputs, scalars)
        return kernel(*inputs, out=out, **scalars)

    def __repr__(self) -> str:
        return f"<tedsl.Dispatcher of {len(self.choices)} kernels for {', '.join(self.names)}>"

    def __str__(self) -> str:
        """The table: a row per size."""
        head = [*self.names, "kernel", "time", "slowdown"]
        lines = [
            [
                *(str(row.sizes[name]) for name in self.names),
                str(row.kernel),
                format_seconds(row.seconds),
                f"{row.slowdown:.3f}x",
            ]
            for row in self.table
        ]
        widths = [max(len(line[n]) for line in [head, *lines]) for n in range(len(head))]
        text = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
        first = "  ".join(c.rjust(w) for c, w in zip(head, widths, strict=True))
        kernels = [f"kernel {n}: {choice.text}" for n, choice in enumerate(self.choices)]
        return "\n".join([first, *text, *kernels, f"geometric mean {self.slowdown:.3f}x"])

    def _decide(self, inputs: Sequence[Any], scalars: Mapping[str, Any]) -> Kernel:
        """The kernel for a call of new shapes; kept, where the arguments have shapes."""
        shapes = [getattr(array, "shape", None) for array in inputs]
        sizes: dict[str, int] = {}
        for name in self.names:
            argument, dimension = self._places.get(name, (len(shapes), 0))
            shape: Any = shapes[argument] if argument < len(shapes) else None
            if shape is not None and dimension < len(shape):
                sizes[name] = int(shape[dimension])
            elif name in scalars:
                sizes[name] = int(scalars[name])
            else:
                return self._unknown(name)
        kernel = self.kernel(**sizes)
        if None not in shapes:
            form: object = tuple(shapes)
            if len(self._known) >= KEPT:
                self._known.clear()
            self._known[(form, tuple(sorted(scalars.items()))) if scalars else form] = kernel
        return kernel

    def _unknown(self, name: str) -> Kernel:
        """A kernel of the set, which says what is wrong with the arguments.

        Raises:
            BackendError: no argument tells a size.
        """
        if name in self._places:
            return self._build(self.table[0].kernel, self.table[0].sizes)
        raise BackendError(
            f"no argument tells the size {name!r}",
            subject="dispatch",
            facts=[("told by arguments", ", ".join(self._places) or "none")],
            hint=f"take the kernel by its sizes: dispatch.kernel({name}=..., ...)(...)",
        )


def places_of(kernel: Kernel, names: Sequence[str]) -> dict[str, tuple[int, int]]:
    """For each symbolic size the first argument and dimension that is it."""
    found: dict[str, tuple[int, int]] = {}
    for argument, buffer in enumerate(kernel.signature.inputs):
        for dimension, extent in enumerate(buffer.shape):
            var = bare_var(extent)
            if var is not None and var.name in names:
                found.setdefault(var.name, (argument, dimension))
    return found


def variables_of(names: Sequence[str]) -> dict[str, str]:
    """What the program calls the sizes: by their names where these can be variables, else by their
    places; and by no name that it has already."""
    taken = {*dir(builtins), "log", "TABLE", "serves", "choose", "kernel", "size", "distance"}
    taken |= {"near", "other", "a", "b"}
    found: dict[str, str] = {}
    for place, name in enumerate(names):
        plain = name.isascii() and name.isidentifier() and not keyword.iskeyword(name)
        found[name] = unique_name(name if plain else f"_{place}", taken)
        taken.add(found[name])
    return found


def condition_of(conditions: Sequence[Expr], called: Mapping[str, str] | None = None) -> str:
    """Conditions on sizes as one Python expression; False for what cannot be written so.

    Args:
        conditions: all of them must hold.
        called: what the expression calls each size that it may use; their names unless given, which
            is a text to read.
    """
    texts = [_python(condition, called) for condition in conditions]
    if None in texts:
        return "False"
    return " and ".join(_bare(text) for text in texts if text) or "True"


def _bare(text: str) -> str:
    """A comparison without the parentheses around it."""
    inside = text[1:-1]
    depth, lowest = 0, 0
    for letter in inside:
        depth += (letter == "(") - (letter == ")")
        lowest = min(lowest, depth)
    plain = text.startswith("(") and text.endswith(")") and lowest == 0
    return inside if plain and " or " not in inside else text


def _python(expr: Expr, called: Mapping[str, str] | None) -> str | None:
    match expr:
        case Const(value=value):
            return repr(value)
        case Var(name=name):
            return name if called is None else called.get(name)
        case Cast(a=a) if expr.dtype.is_integer:
            return _python(a, called)
        case Binary(op=op, a=a, b=b) if op in _INFIX or op in _CALLED:
            left, right = _python(a, called), _python(b, called)
            if left is None or right is None:
                return None
            if op in _CALLED:
                return f"{_CALLED[op]}({left}, {right})"
            return f"({left} {_INFIX[op]} {right})"
        case Compare(op=op, a=a, b=b):
            left, right = _python(a, called), _python(b, called)
            return (
                None
                if left is None or right is None
                else f"({_bare(left)} {op.value} {_bare(right)})"
            )
        case _:
            return None


_HEAD = '''"""Which kernel serves which sizes."""

from math import log

# kernels
{kernels}

TABLE = {{
    # {names}: kernel
{rows}
}}


def serves(kernel, {names}):
    """Whether a kernel may be called with these sizes."""
{conditions}


def choose({names}):
    """The number of the kernel of the nearest tuned size that may be called here, else None."""
    size = ({tuple})
    if size in TABLE:
        return TABLE[size]

    def distance(other):
        return sum((log(max(a, 1)) - log(max(b, 1))) ** 2 for a, b in zip(size, other))

    for near in sorted(TABLE, key=distance):
        if serves(TABLE[near], {names}):
            return TABLE[near]
    return None
'''


def write_source(names: Sequence[str], choices: Sequence[Choice], rows: Sequence[Row]) -> str:
    """The program that decides."""

    def point(parts: Sequence[object]) -> str:
        return ", ".join(map(str, parts)) + ("," if len(parts) == 1 else "")

    called = variables_of(names)
    kernels = "\n".join(f"#   {n}  {_line(choice.text)}" for n, choice in enumerate(choices))
    renamed = [f"# {called[name]} is {_line(name)}" for name in names if called[name] != name]
    entries = [(f"    ({point(list(row.sizes.values()))}): {row.kernel},", row) for row in rows]
    width = max(len(text) for text, _ in entries)
    table = "\n".join(
        f"{text:<{width}}  # {format_seconds(row.seconds)}, {row.slowdown:.2f}x"
        for text, row in entries
    )
    limited = [
        f"    if kernel == {n}:\n        return {choice.condition}"
        for n, choice in enumerate(choices)
        if choice.condition != "True"
    ]
    return _HEAD.format(
        kernels="\n".join([kernels, *(["#", *renamed] if renamed else [])]),
        names=", ".join(called.values()),
        tuple=point(list(called.values())),
        rows=table,
        conditions="\n".join([*limited, "    return True"]),
    )


def _line(text: str) -> str:
    """A text as the rest of a line."""
    return "".join(c if c.isprintable() else " " for c in text)


def _compile(source: str) -> Callable[..., int | None]:
    """The function `choose` of a program that was written here."""
    space: dict[str, Any] = {}
    exec(compile(source, "<dispatch>", "exec"), space)
    choose: Callable[..., int | None] = space["choose"]
    return choose
