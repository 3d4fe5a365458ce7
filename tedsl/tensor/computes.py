"""What stands for tensors wherever those that are to be computed are asked for.

Imports nothing of the room.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from tedsl.tensor.tensor import Tensor


class Computes:
    """Base of what is taken in the place of the tensors that it computes: operations, and programs
    of other front ends."""

    __slots__ = ()

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """All tensors that it computes."""
        raise NotImplementedError


def listed(outputs: object) -> list[object]:
    """What was given alone or as a list, with the tensors of what computes some in its place."""
    several = isinstance(outputs, (list, tuple))
    items = cast("Sequence[object]", outputs) if several else (outputs,)
    return [
        tensor
        for item in items
        for tensor in (item.outputs if isinstance(item, Computes) else (item,))
    ]
