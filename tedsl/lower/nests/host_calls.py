"""Calls of externs between kernels: which function of one a target runs.

Part of `build_nests`; imports `ir`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tedsl.errors import LowerError
from tedsl.ir.nodes import Buffer, HostCall
from tedsl.scheduling.plan import StagePlan
from tedsl.target import Target, TargetKind
from tedsl.tensor.foreign import Foreign, PythonFunction, TritonKernel
from tedsl.tensor.tensor import ExternOp, Tensor


def host_call(
    stage: StagePlan, op: ExternOp, buffers: Mapping[Tensor, Buffer], target: Target
) -> HostCall:
    """The call of an extern, of the function that runs on the target.

    Raises:
        LowerError: the GPU cannot run it.
    """
    inputs = tuple(buffers[tensor] for tensor in op.inputs)
    outputs = tuple(dict.fromkeys(buffers[tensor] for tensor in op.outputs))
    function = _function(stage.name, op, target)
    return HostCall(stage.name, op.function, op.gpu, function, inputs, outputs)


def _function(name: str, op: ExternOp, target: Target) -> Foreign:
    match target.kind:
        case TargetKind.CPU:
            return op.function
        case TargetKind.TRITON_INTERPRET:
            return op.gpu if isinstance(op.gpu, TritonKernel) else op.function
        case TargetKind.CUDA if op.gpu is not None:
            return op.gpu
        case TargetKind.CUDA:
            if isinstance(op.function, PythonFunction) and op.function.torch:
                return op.function
    raise LowerError(
        f"the extern {name} calls {op.function.label}, which runs on the CPU only",
        subject=f"lower for {target}",
        hint="give te.extern a gpu=: a function of PyTorch tensors, or te.triton_kernel(source, "
        'grid); or use target="cpu"',
    )
