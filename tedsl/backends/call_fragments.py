"""Text of Python that a backend contributes to the function that a kernel's calls become.

`runtime.calls.direct` writes that function; what stands in it between the addresses of a call and
its end is the backend's.  The same text serves many kernels and sizes: what differs has a name in
it.  Imports nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Inlined:
    """The launches of one call.

    Attributes:
        unready: an expression: whether they cannot be done now.
        lines: statements.  `p0`, `p1`, ... are the addresses of inputs and outputs in order, each a
            multiple of `alignment`.
        alignment: what every address has to be a multiple of.
        names: what else stands in `unready` and `lines`.
    """

    unready: str
    lines: tuple[str, ...]
    alignment: int
    names: Mapping[str, Any]


def shown(value: Any, name: str, names: dict[str, Any]) -> str:
    """A value as text: `name`, put into `names`, but for what is the same in most calls."""
    if value is None or isinstance(value, bool):
        return repr(value)
    names[name] = value
    return name
