"""The unfused program: every stage of a definition by itself, its inputs read from memory.

Imports `schedules`, `lower` and the other files of `explaining`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tedsl.devices import Device
from tedsl.explaining.data import KernelCost, Unfused
from tedsl.explaining.kernels import kernel_costs
from tedsl.expr.nodes import Expr, TensorRead, Var
from tedsl.expr.visit import rewrite
from tedsl.lower.pipeline import lower
from tedsl.runtime.arguments.sizes import Number
from tedsl.schedules import default_schedule
from tedsl.scheduling.plan.graph import initial_plan, tensors_read
from tedsl.target import Target
from tedsl.tensor.compute import placeholder
from tedsl.tensor.tensor import ComputeOp, ExternOp, PlaceholderOp, ScanOp, Tensor


@dataclass(frozen=True)
class Alone:
    """One stage of the definition as a program of its own: what computes it, and its cost."""

    name: str
    output: Tensor
    kernels: tuple[KernelCost, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that it moves."""
        return sum(kernel.nbytes for kernel in self.kernels)


def stages_alone(
    outputs: Sequence[Tensor], target: Target, facts: Device, sizes: Mapping[str, Number]
) -> tuple[Alone, ...] | None:
    """Each stage by itself, scheduled by the default rules; None where a scan or an extern ties
    stages together.

    Args:
        outputs: of the definition.
        target: to schedule for.
        facts: of the device.
        sizes: values of runtime scalars, by name.
    """
    stages = initial_plan(tuple(outputs)).stages
    if any(isinstance(stage.op, (ScanOp, ExternOp)) for stage in stages):
        return None
    found: list[Alone] = []
    for stage in stages:
        op = stage.op
        if not isinstance(op, ComputeOp):
            continue
        single = alone(op)
        module = lower(default_schedule(single, target).plan, target)
        values: dict[Var, Number] = {var: sizes[var.name] for var in module.sizes}
        costs = kernel_costs(module, facts, values)
        found.append(Alone(stage.name, single.outputs[0], costs))
    return tuple(found)


def alone(op: ComputeOp) -> ComputeOp:
    """The operation with an input in place of each stage that it reads."""
    inputs = {
        tensor: placeholder(tensor.shape, tensor.dtype, name=tensor.name)
        for tensor in tensors_read(op)
        if not isinstance(tensor.op, PlaceholderOp)
    }

    def given(node: Expr) -> Expr | None:
        if isinstance(node, TensorRead) and node.tensor in inputs:
            return TensorRead(inputs[node.tensor], node.indices)
        return None

    memo: dict[Expr, Expr] = {}
    return replace(op, bodies=tuple(rewrite(body, given, memo) for body in op.bodies))


def unfused(stages: Sequence[Alone]) -> Unfused:
    """The sums."""

    def kernels() -> Iterator[KernelCost]:
        return (kernel for stage in stages for kernel in stage.kernels)

    return Unfused(
        launches=sum(kernel.times for kernel in kernels()),
        reads=sum(sum(kernel.reads.values()) for kernel in kernels()),
        writes=sum(sum(kernel.writes.values()) for kernel in kernels()),
        flops=sum(kernel.flops for kernel in kernels()),
        seconds=sum(kernel.seconds for kernel in kernels()),
        stages={stage.name: stage.nbytes for stage in stages},
    )
