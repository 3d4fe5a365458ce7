"""The unfused program: every stage of a definition by itself, its inputs read from memory.

Imports `schedules`, `lower` and the other files of `explaining`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tedsl.cost.estimate import stays_in_cache
from tedsl.devices import Device
from tedsl.explaining.data import KernelCost, Unfused
from tedsl.explaining.kernels import buffer_bytes, kernel_costs
from tedsl.expr.nodes import Var
from tedsl.lower.pipeline import lower
from tedsl.runtime.arguments.sizes import Number
from tedsl.schedules import default_schedule
from tedsl.schedules.analysis.views import alone
from tedsl.scheduling.plan.graph import initial_plan
from tedsl.scheduling.plan.scan_structure import inputs_of
from tedsl.target import Target
from tedsl.tensor.tensor import ComputeOp, ExternOp, ScanOp, Tensor


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
    outputs: Sequence[Tensor],
    target: Target,
    facts: Device,
    sizes: Mapping[str, Number],
    *,
    caches: bool = True,
) -> tuple[Alone, ...] | None:
    """Each stage by itself, scheduled by the default rules; None where a scan or an extern ties
    stages together.  A stage finds in a GPU's last cache what the stage before has left there.

    Args:
        outputs: of the definition.
        target: to schedule for.
        facts: of the device.
        sizes: values of runtime scalars, by name.
        caches: as for `kernel_costs`.
    """
    stages = initial_plan(tuple(outputs)).stages
    if any(isinstance(stage.op, (ScanOp, ExternOp)) for stage in stages):
        return None
    found: list[Alone] = []
    left: frozenset[Tensor] = frozenset()
    for stage in stages:
        op = stage.op
        if not isinstance(op, ComputeOp):
            continue
        (single,), given = alone([op])
        schedule = default_schedule(single, target)
        module = lower(schedule.plan, target)
        values: dict[Var, Number] = {var: sizes[var.name] for var in module.sizes}
        buffers = zip(inputs_of(schedule.plan), module.inputs, strict=True)
        resident = frozenset(b for tensor, b in buffers if given.get(tensor) in left)
        costs = kernel_costs(module, facts, values, resident=resident, caches=caches)
        found.append(Alone(stage.name, single.outputs[0], costs))
        kept = buffer_bytes(module.outputs, values) < stays_in_cache(facts)
        left = frozenset(op.outputs) - frozenset(outputs) if kept else frozenset()
    return tuple(found)


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
