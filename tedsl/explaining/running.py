"""A kernel on inputs of its own, timed: random numbers, indices inside what they index.

PyTorch makes the inputs of a GPU there.  Imports `runtime` and `checking.random_inputs`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from tedsl.checking.random_inputs import index_bounds, make_inputs
from tedsl.errors import BackendError
from tedsl.packages import install
from tedsl.runtime.kernel import Kernel
from tedsl.runtime.timing import Stats, compare, compare_cuda
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.graph import initial_plan
from tedsl.target import TargetKind
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload


def calls_of(kernel: Kernel, sizes: Mapping[str, int]) -> Callable[[], object]:
    """A call of a kernel on random inputs, into outputs that are allocated once.

    Args:
        kernel: built from a schedule.
        sizes: values of its runtime sizes, by name.

    Raises:
        BackendError: the kernel does not know its schedule, or there is no GPU for it.
    """
    if not isinstance(kernel.schedule, Schedule):
        raise BackendError(
            f"the kernel {kernel.name} does not know its schedule",
            hint="build it from a schedule or from tensors",
        )
    outputs = kernel.schedule.definition
    named = {stage.name: stage.op for stage in initial_plan(outputs).stages}
    size = Extents(Workload.of(outputs), sizes)
    arrays = (
        _on_gpu(size) if kernel.target.kind is TargetKind.CUDA else make_inputs(size, 0, "random")
    )
    by_op = {tensor.op: array for tensor, array in arrays.items()}
    given = [by_op[named[buffer.name]] for buffer in kernel.module.inputs]
    scalars = {name: sizes[name] for name in kernel.signature.keywords}
    if kernel.order is not None:
        raise BackendError(
            f"the kernel {kernel.name} was built with a list of arguments",
            hint="build it without: te.build(s, target=...)",
        )
    out: Any = kernel(*given, **scalars)
    outs: Any = out if len(kernel.module.outputs) > 1 else (out,)
    return lambda: kernel(*given, out=outs, **scalars)


def _on_gpu(size: Extents) -> dict[Any, Any]:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise BackendError("measuring on a GPU needs PyTorch", hint=install("torch")) from error
    if not torch.cuda.is_available():
        raise BackendError(
            "there is no GPU here to measure on", hint="leave measure= out, or measure on the cpu"
        )
    bounds = index_bounds(size)
    made: dict[Any, Any] = {}
    for op in size.workload.placeholders:
        tensor = op.outputs[0]
        shape, dtype = size.shape(tensor), getattr(torch, tensor.dtype.value)
        if tensor.dtype.is_float:
            made[tensor] = torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)
        else:
            high = 2 if tensor.dtype.is_bool else max(1, bounds.get(op) or 10)
            made[tensor] = torch.randint(0, high, shape, device="cuda").to(dtype)
    return made


def times(calls: Mapping[str, Callable[[], object]], gpu: bool) -> dict[str, Stats]:
    """Each call timed, in turn, with cold caches on a GPU."""
    if gpu:
        return compare_cuda(calls, repeats=30, max_seconds=20.0)
    return compare(calls, repeats=10, max_seconds=20.0)
