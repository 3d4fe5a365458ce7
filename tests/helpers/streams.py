"""Kernels with counters in memory, called from several streams and from a graph at once."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import tedsl as te


def check_streams_and_graphs(kernel: te.Kernel, inputs: Sequence[Any]) -> None:
    """Every call has the bits of a call alone, whatever else runs: they share no counter."""
    torch: Any = importlib.import_module("torch")
    wanted = [kernel(x).clone() for x in inputs]
    replayed = kernel.graphed()
    replayed(inputs[0])
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in inputs]
    results: list[list[Any]] = [[] for _ in inputs]
    for _ in range(50):
        for x, stream, found in zip(inputs, streams, results, strict=True):
            with torch.cuda.stream(stream):
                found.append(kernel(x))
        assert torch.equal(replayed(inputs[0]), wanted[0])
    torch.cuda.synchronize()
    for found, want in zip(results, wanted, strict=True):
        assert all(torch.equal(each, want) for each in found)
