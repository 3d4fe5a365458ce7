"""Arrival counters of last-block reductions (`ir.Finish`) and grid barriers (`ir.Meet`): semaphores
in global memory.

Each launch finds zeros and leaves zeros, so the memory is cleared when it is made and never again.
Launches that may run at the same time have memory of their own: each stream does, and each CUDA
graph.  Knows neither expressions nor Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MAX_STREAMS = 64

# Counters of a CUDA graph, whose replays may outlive the kernel.
_OF_GRAPHS: list[Any] = []


class Counters:
    """The counters of one plan.

    Args:
        make: makes cleared memory, in the order of the current stream.
        capturing: whether the current stream is being captured into a graph.
    """

    def __init__(self, make: Callable[[], Any], capturing: Callable[[], bool]) -> None:
        self._make = make
        self._capturing = capturing
        self._streams: dict[int, Any] = {}
        self._spare: dict[str, Any] = {}

    def on(self, stream: int) -> Any:
        """The memory for a launch on the current stream.

        A graph takes what was cleared before its capture, at the last call outside of one: memory
        that is made during a capture is cleared by each replay once more.
        """
        if self._capturing():
            spare = self._spare.pop("cleared", None)
            if spare is None:
                return self._make()
            _OF_GRAPHS.append(spare)
            return spare
        if not self._spare:
            self._spare["cleared"] = self._make()
        found = self._streams.get(stream)
        if found is None:
            if len(self._streams) >= MAX_STREAMS:
                self._streams.clear()
            found = self._streams[stream] = self._make()
        return found
