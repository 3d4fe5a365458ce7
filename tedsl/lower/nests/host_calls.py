"""Which function of an extern a target runs."""

from __future__ import annotations

from dataclasses import replace

from tedsl.errors import LowerError
from tedsl.ir.nodes import Func, HostCall, Module
from tedsl.target import Target, TargetKind
from tedsl.tensor.foreign import Foreign, PythonFunction, TritonKernel


def choose_functions(module: Module, target: Target) -> Module:
    """Every call of the host with the function that runs on `target`.

    Before:  E = call sort(A)
    After:   E = launch sort_kernel(A)
    Raises:
        LowerError: the GPU cannot run it.
    """

    def chosen(func: Func) -> Func:
        call = func.host_call
        if call is None:
            return func
        function = _function(call, target)
        return func if function is call.function else replace(func, body=_with(call, function))

    return replace(module, funcs=tuple(map(chosen, module.funcs)))


def _with(call: HostCall, function: Foreign) -> HostCall:
    return replace(call, function=function)


def _function(call: HostCall, target: Target) -> Foreign:
    match target.kind:
        case TargetKind.CPU:
            return call.meaning
        case TargetKind.TRITON_INTERPRET:
            return call.gpu if isinstance(call.gpu, TritonKernel) else call.meaning
        case TargetKind.CUDA if call.gpu is not None:
            return call.gpu
        case TargetKind.CUDA:
            if isinstance(call.meaning, PythonFunction) and call.meaning.torch:
                return call.meaning
    raise LowerError(
        f"the extern {call.name} calls {call.meaning.label}, which runs on the CPU only",
        subject=f"lower for {target}",
        hint="give te.extern a gpu=: a function of PyTorch tensors, or te.triton_kernel(source, "
        'grid); or use target="cpu"',
    )
