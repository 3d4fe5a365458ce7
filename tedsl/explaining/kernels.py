"""What each kernel of a lowered program moves, does and waits for, by the static model.

On a GPU the figures of `cost.gpu`, with every run of a program looked at; on the CPU
those of `cost.cpu`.  Imports `cost` and `data`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, assert_never

import numpy as np

from tedsl.cost.cpu import CpuEstimate, estimate_on_cpu
from tedsl.cost.devices import WEIGHTS
from tedsl.cost.dram_traffic import THOROUGH, Traffic
from tedsl.cost.estimate import left_in_cache
from tedsl.cost.gpu import KernelEstimate, estimate_kernel
from tedsl.cost.instruction_costs import flops_of
from tedsl.cost.sampled_indices import Points, Values
from tedsl.cost.trip_counts import Counts
from tedsl.devices import CpuDevice, Device, GpuDevice
from tedsl.explaining.data import Bound, KernelCost, Resources, StagePlace, Way
from tedsl.expr.nodes import Expr, Var
from tedsl.ir.nodes import Accumulate, Allocate, Buffer, Dot, Func, Module, Scope, Store
from tedsl.ir.visit import buffers_read, buffers_written, walk_stmts
from tedsl.runtime.arguments.sizes import Number, evaluate_shape, launched

THREADS = 32
Compiled = Mapping[str, Any]


def kernel_costs(
    module: Module,
    facts: Device,
    values: Mapping[Var, Number],
    compiled: Compiled | None = None,
) -> tuple[KernelCost, ...]:
    """The kernels that a call launches.

    Args:
        module: at TILE level, lowered for the kind of device that `facts` describe.
        facts: of the device.
        values: of the runtime scalars.
        compiled: registers, stack and shared memory of machine code, by kernel, where known.
    """
    resident: frozenset[Buffer] = frozenset()
    found: list[KernelCost] = []
    for func, known, every, times in _launches(module, values):
        if func.host_call is not None:
            found.append(_extern(func, values, times))
            continue
        match facts:
            case GpuDevice():
                one = estimate_kernel(func, known, facts, WEIGHTS, resident, THOROUGH)
                resident = left_in_cache(module, func, facts)
                own = (compiled or {}).get(func.name)
                found.append(_on_gpu(func, values, times, one, facts, own, _flops(func, every)))
            case CpuDevice():
                on_cpu = estimate_on_cpu(func, known, facts, WEIGHTS)
                found.append(_on_cpu(func, values, times, on_cpu, _flops(func, every)))
            case _ as never:
                assert_never(never)
    return tuple(found)


def buffer_bytes(buffers: Sequence[Buffer], values: Mapping[Var, Number]) -> int:
    """Bytes of whole buffers; an extent below 0 leaves none."""
    shapes = [(b, evaluate_shape(b.shape, values)) for b in buffers]
    return sum(math.prod(max(n, 0) for n in shape) * b.dtype.nbytes for b, shape in shapes)


def _launches(
    module: Module, values: Mapping[Var, Number]
) -> Iterator[tuple[Func, dict[Expr, Values], dict[Expr, Values], int]]:
    """The kernels that a call runs, the sizes that it sees in the middle one of its launches and in
    all of them, and how often it is launched."""
    sizes: dict[Expr, Values] = {
        var: int(value) for var, value in values.items() if not var.dtype.is_float
    }
    for repeat, places in module.launches():
        known, every, times = dict(sizes), dict(sizes), 1
        if repeat is not None:
            times = int(Points(sizes).value(repeat.extent))
            known[repeat.step] = times // 2
            every[repeat.step] = np.arange(times)
        for place in places:
            if launched(module.funcs[place], values):
                yield module.funcs[place], known, every, times


def _flops(func: Func, every: Mapping[Expr, Values]) -> int:
    """Operations on floats of all launches, every run of each statement counted."""
    counts = Counts(func.body, every)
    work = [s for s in walk_stmts(func.body) if isinstance(s, (Store, Accumulate, Dot))]
    distinct = {id(stmt): stmt for stmt in work}
    return round(sum(counts[stmt].entered * flops_of(stmt) for stmt in distinct.values()))


def _stages(func: Func) -> tuple[StagePlace, ...]:
    """What a kernel computes, by its buffers alone: for a program without a schedule."""
    held = [s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)]
    names = dict.fromkeys((*held, *buffers_written(func.body)))
    inner = frozenset(held)
    return tuple(StagePlace(b.name, Way.ATTACHED if b in inner else Way.ROOT) for b in names)


def _local_bytes(func: Func, values: Mapping[Var, Number]) -> int:
    held = [s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate)]
    return buffer_bytes([b for b in held if b.scope is not Scope.GLOBAL], values)


def _extern(func: Func, values: Mapping[Var, Number], times: int) -> KernelCost:
    call = func.host_call
    label = "" if call is None else call.function.label
    reads = {b.name: buffer_bytes([b], values) * times for b in buffers_read(func.body)}
    writes = {b.name: buffer_bytes([b], values) * times for b in buffers_written(func.body)}
    stages = tuple(StagePlace(name, Way.EXTERN) for name in writes)
    return KernelCost(
        func.name, stages, reads, writes, 0, 0.0, 0.0, 0.0, 0.0, Bound.MEMORY,
        times=times, calls=label,
    )  # fmt: skip


def _moved(traffic: Mapping[Buffer, Traffic], times: int) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes read and written by buffer, in the order of their names in the program."""
    reads = {b.name: round(t.read * times) for b, t in traffic.items() if t.read}
    writes = {b.name: round(t.written * times) for b, t in traffic.items() if t.written}
    return reads, writes


def _bound(memory: float, compute: float, launch: float) -> Bound:
    longest = max(memory, compute, launch)
    if longest == launch:
        return Bound.LAUNCH
    return Bound.MEMORY if longest == memory else Bound.COMPUTE


def _on_gpu(
    func: Func,
    values: Mapping[Var, Number],
    times: int,
    one: KernelEstimate,
    facts: GpuDevice,
    compiled: Any,
    flops: int,
) -> KernelCost:
    reads, writes = _moved(one.traffic, times)
    memory = max(one.memory, one.cache)
    return KernelCost(
        name=func.name,
        stages=_stages(func),
        reads=reads,
        writes=writes,
        flops=flops,
        seconds=(one.seconds + facts.launch) * times,
        memory_seconds=memory * times,
        compute_seconds=one.processor * times,
        launch_seconds=facts.launch * times,
        bound=_bound(memory, one.processor, facts.launch),
        local_bytes=_local_bytes(func, values),
        times=times,
        resources=_resources(one, facts, compiled),
    )


def _resources(one: KernelEstimate, facts: GpuDevice, compiled: Any) -> Resources:
    """Of machine code where there is some, else estimated."""
    warps = one.warps
    if compiled is None or compiled.registers is None:
        limit = min(facts.registers_thread, facts.registers_sm // (warps * THREADS))
        share = min(1.0, one.occupancy * warps / facts.warps_sm)
        needed = math.ceil(one.held.registers)
        return Resources(
            min(needed, limit), max(0, needed - limit), one.held.shared, warps, one.programs,
            share, False,
        )  # fmt: skip
    warps = compiled.num_warps
    each = -(-compiled.registers // 8) * 8 * warps * THREADS
    resident = min(
        facts.blocks_sm,
        facts.warps_sm // warps,
        facts.registers_sm // max(each, 1),
        facts.shared_sm // (compiled.shared + facts.shared_reserved),
    )
    share = min(1.0, resident * warps / facts.warps_sm)
    return Resources(
        compiled.registers, compiled.stack or 0, compiled.shared, warps, one.programs, share, True
    )


def _on_cpu(
    func: Func, values: Mapping[Var, Number], times: int, one: CpuEstimate, flops: int
) -> KernelCost:
    reads, writes = _moved(one.traffic, times)
    return KernelCost(
        name=func.name,
        stages=_stages(func),
        reads=reads,
        writes=writes,
        flops=flops,
        seconds=one.seconds * times,
        memory_seconds=one.memory_seconds * times,
        compute_seconds=one.core_seconds * times,
        launch_seconds=one.enter_seconds * times,
        bound=_bound(one.memory_seconds, one.core_seconds, one.enter_seconds),
        local_bytes=_local_bytes(func, values),
        times=times,
    )
