"""Calls of functions from outside between kernels, on the memory of one call of a kernel.

Imports `tensor.foreign` and `runtime.arrays.allocation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tedsl.ir.nodes import HostCall, Module
from tedsl.runtime.arguments.signature import Binding
from tedsl.runtime.arrays.allocation import numpy_at
from tedsl.tensor.foreign import run_on_host


class HostSteps:
    """The calls that a module makes in host memory, for the sizes of one binding."""

    def __init__(self, module: Module, binding: Binding) -> None:
        buffers = (*module.inputs, *module.outputs, *module.workspaces)
        specs = (*binding.inputs, *binding.outputs, *binding.workspaces)
        self._place = {buffer: place for place, buffer in enumerate(buffers)}
        self._specs = specs

    def step(self, call: HostCall) -> Callable[[Sequence[int]], None]:
        """A function that makes the call, given the addresses of all buffers."""
        specs, function, name = self._specs, call.function, call.name
        ins = [self._place[buffer] for buffer in call.inputs]
        outs = [self._place[buffer] for buffer in call.outputs]

        def run(pointers: Sequence[int]) -> None:
            given = [numpy_at(pointers[place], specs[place]) for place in ins]
            made = [numpy_at(pointers[place], specs[place]) for place in outs]
            run_on_host(function, name, given, made)

        return run
