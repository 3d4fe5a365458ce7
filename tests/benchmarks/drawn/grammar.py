"""What drawn rows are made of: choices from a seed, inputs, and the text of a function of PyTorch.

A row is a function as a user would write it, with the tensors that it is called with.  Reference,
peers and our definition come from this one text.  Nobody chooses a shape: the kinds of rows
(`kinds.py`) say what a row of their class looks like, and everything else is drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Choice = TypeVar("Choice")
Shape = tuple[int, ...]
ROUND = 0.55
"""How often a size is a multiple of a power of two."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How large rows are: `elements` of the largest tensor, `products` that are added up in all,
    and the `smallest` part of that which is drawn."""

    elements: int
    products: int
    smallest: float = 1 / 16


SCALES = {
    "tiny": Scale(512, 1 << 15, 1.0),
    "cpu": Scale(1 << 21, 1 << 27),
    "cuda": Scale(1 << 26, 1 << 35, 1 / 64),
}


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that a row is called with.

    Attributes:
        name: of the argument.
        shape: as the function sees it.
        dtype: PyTorch's name.
        content: "normal", "positive" (0.5 to 1.5), or "below", integers from 0 on.
        below: what the integers are below of.
        order: the dimensions in the order of memory, None for row-major.
        step: it is every so many-th element of a longer last dimension.
    """

    name: str
    shape: Shape
    dtype: str
    content: str = "normal"
    below: int = 2
    order: tuple[int, ...] | None = None
    step: int = 1

    def told(self) -> str:
        """One line for people."""
        layout = "" if self.order is None else f" in the order {self.order}"
        step = "" if self.step == 1 else f", every {self.step}nd element"
        return f"{self.name}: {self.dtype} {list(self.shape)}{layout}{step}"


@dataclass(frozen=True, slots=True)
class Row:
    """A drawn workload: `name` says by which seed, `kind` which class it is of."""

    name: str
    kind: str
    inputs: tuple[Input, ...]
    lines: tuple[str, ...]

    def source(self) -> str:
        """A module with the function `f`."""
        names = ", ".join(each.name for each in self.inputs)
        body = "\n".join(f"    {line}" for line in self.lines)
        told = "\n".join(f"# {each.told()}" for each in self.inputs)
        head = "import torch\nimport torch.nn.functional as F\n"
        return f"{head}\n\n{told}\ndef f({names}):\n{body}\n"


@dataclass(frozen=True, slots=True)
class Value:
    """An expression of the text, with its shape."""

    text: str
    shape: Shape

    def __str__(self) -> str:
        return self.text


class Draw:
    """Choices from a seed, and the text and inputs that they lead to.

    Args:
        seed: equal seeds draw equal rows.
        scale: how large rows are.
        dtypes: of floating-point tensors, one for a row.
    """

    def __init__(self, seed: str, scale: Scale, dtypes: Sequence[str]) -> None:
        self._random = random.Random(seed)
        self.scale = scale
        self.dtype = self.one_of(dtypes)
        self.inputs: list[Input] = []
        self.lines: list[str] = []

    def chance(self, part: float) -> bool:
        """True in `part` of the draws."""
        return self._random.random() < part

    def one_of(self, choices: Sequence[Choice]) -> Choice:
        """One of them, each as often."""
        return self._random.choice(choices)

    def some_of(self, choices: Sequence[Choice], least: int = 1) -> list[Choice]:
        """At least so many of them, in their order."""
        count = self._random.randint(least, len(choices))
        kept = sorted(self._random.sample(range(len(choices)), count))
        return [choices[n] for n in kept]

    def shuffled(self, choices: Sequence[Choice]) -> list[Choice]:
        """All of them in any order."""
        return self._random.sample(list(choices), len(choices))

    def whole(self, low: int, high: int) -> int:
        """A number between both, which are among them."""
        return self._random.randint(low, high)

    def near(self, size: float) -> int:
        """About as large: a multiple of a power of two, or whatever it is."""
        count = max(1, round(size * self._random.uniform(0.8, 1.25)))
        if count >= 8 and self.chance(ROUND):
            unit = 1 << self._random.randint(2, max(2, count.bit_length() - 2))
            count = max(unit, round(count / unit) * unit)
        return count

    def size(self, low: int, high: int) -> int:
        """A size between both, small ones as often as large ones."""
        high = max(low, high)
        drawn = self.near(math.exp(self._random.uniform(math.log(low), math.log(high))))
        return min(high, max(low, drawn))

    def part(self, most: int) -> int:
        """How much of a budget a row uses."""
        return self.size(max(1, int(most * self.scale.smallest)), most)

    def shape(self, rank: int, elements: int | None = None) -> Shape:
        """The sizes of a tensor of about so many elements, of those of the scale if not given."""
        total = self.part(self.scale.elements) if elements is None else elements
        weights = [self._random.uniform(0.4, 1.6) for _ in range(rank)]
        parts = [math.log(max(2, total)) * weight / sum(weights) for weight in weights]
        return tuple(self.near(math.exp(part)) for part in parts)

    def input(
        self,
        shape: Sequence[int],
        dtype: str | None = None,
        content: str = "normal",
        below: int = 2,
        laid: float = 0.0,
    ) -> Value:
        """A new argument; `laid` is how often its memory is not row-major."""
        order, step = None, 1
        if len(shape) > 1 and self.chance(laid):
            order = tuple(self.shuffled(range(len(shape))))
            order = None if order == tuple(range(len(shape))) else order
        elif len(shape) > 0 and self.chance(laid / 4):
            step = 2
        name = f"x{len(self.inputs)}"
        self.inputs.append(
            Input(name, tuple(shape), dtype or self.dtype, content, below, order, step)
        )
        return Value(name, tuple(shape))

    def indices(self, shape: Sequence[int], below: int) -> Value:
        """A new argument of indices."""
        return self.input(shape, "int64", "below", below)

    def let(self, text: object, shape: Sequence[int]) -> Value:
        """A line that names an expression."""
        name = f"t{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return Value(name, tuple(shape))

    def line(self, text: str) -> None:
        """A line as it is."""
        self.lines.append(text)

    def row(self, name: str, kind: str, result: object) -> Row:
        """The row that ends with this result."""
        return Row(name, kind, tuple(self.inputs), (*self.lines, f"return {result}"))


Kind = Callable[[Draw], object]
"""Draws a row of a class: writes lines, and gives the expression that is returned."""
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    """Register a class of rows under the name of its function."""
    KINDS[function.__name__] = function
    return function
