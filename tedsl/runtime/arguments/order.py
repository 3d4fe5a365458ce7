"""The order of arguments that a user named: `te.build(s, [A, B, C])`, as TVM has it.

A kernel with such an order takes its inputs, results and scalars by position and writes the
results; without one it takes the inputs and returns the results.  Imports `errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tedsl.errors import BackendError


def placed(
    kernel: str, names: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by position where some are given by name, and the keywords that are none of them.

    Args:
        kernel: what is called.
        names: of its arguments, in their order.
        given: the arguments by position.
        named: the keywords.

    Raises:
        BackendError: an argument that is given twice, or not at all.
    """
    mine = {name: named[name] for name in names if name in named}
    if not mine:
        return tuple(given), dict(named)
    behind = list(names[len(given) :])
    twice = [name for name in mine if name not in behind or names.count(name) > 1]
    missing = [name for name in behind if name not in mine]
    if twice or missing:
        wrong = f"argument {missing[0]!r} is missing" if missing else f"{twice[0]!r} is given twice"
        if twice and names.count(twice[0]) > 1:
            wrong = f"{twice[0]!r} is the name of two arguments"
        raise BackendError(
            wrong,
            subject=kernel,
            facts=[("allowed", f"{kernel}({', '.join(names)})")],
            hint="give each argument once, by its place or its name",
        )
    rest = {name: value for name, value in named.items() if name not in mine}
    return (*given, *(mine[name] for name in behind)), rest


@dataclass(frozen=True, slots=True)
class ArgumentOrder:
    """Where each argument of a kernel stands in a call: places of the inputs, of the outputs, and
    of scalars by name.

    `shapes` are scalars that are not given: the dimension of a result, by place and number.
    `again` are places at which the array of another place stands once more, and `sizes` those of
    numbers that the shape of an array has anyway.
    """

    names: tuple[str, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    scalars: Mapping[str, int]
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    again: Mapping[int, int] = field(default_factory=dict[int, int])
    sizes: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])

    def spread(
        self, kernel: str, given: Sequence[Any], out: Any, scalars: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], tuple[Any, ...], dict[str, Any]]:
        """The inputs, outputs and scalars of a call.

        Raises:
            BackendError: not as many arguments as were named, one twice, or `out=` besides; another
                array where one is repeated, or another number than the size of an array.
        """
        given, scalars = placed(kernel, self.names, given, scalars)
        if len(given) != len(self.names) or out is not None:
            wrong = "out= is given" if out is not None else f"{len(given)} arguments given"
            raise BackendError(
                f"{wrong}, but the kernel was built with a list of {len(self.names)} arguments",
                subject=kernel,
                facts=[("allowed", f"{kernel}({', '.join(self.names)})")],
                hint="pass all of them in this order, results included; or build without the list, "
                "call with the inputs and take what the call returns",
            )
        self._check(kernel, given)
        named = {name: given[place] for name, place in self.scalars.items()}
        for name, (place, dimension) in self.shapes.items():
            named[name] = int(given[place].shape[dimension])
        return (
            tuple(given[place] for place in self.inputs),
            tuple(given[place] for place in self.outputs),
            {**scalars, **named},
        )

    def _check(self, kernel: str, given: Sequence[Any]) -> None:
        for place, first in self.again.items():
            if given[place] is not given[first]:
                raise BackendError(
                    f"argument {place + 1} ({self.names[place]}) is another array than argument "
                    f"{first + 1}, which it repeats",
                    subject=kernel,
                    hint="pass the same array twice, or list the tensor once",
                )
        for place, (array, dimension) in self.sizes.items():
            size = int(given[array].shape[dimension])
            if int(given[place]) != size:
                raise BackendError(
                    f"argument {place + 1} ({self.names[place]}) is {given[place]}, and dimension "
                    f"{dimension} of {self.names[array]} has {size} elements",
                    subject=kernel,
                    hint=f"pass {size}, or leave {self.names[place]} out of the list",
                )
