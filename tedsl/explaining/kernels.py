"""What each kernel of a lowered program moves, does and waits for, by the static model.

On a GPU the figures of `cost.gpu`, with every run of a program looked at; on the CPU
those of `cost.cpu`; what is touched at all is counted exactly.  Imports `cost` and `data`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never

import numpy as np

from tedsl.cost.cpu import CpuEstimate, estimate_on_cpu
from tedsl.cost.devices import WEIGHTS
from tedsl.cost.dram_traffic import THOROUGH, Traffic
from tedsl.cost.estimate import left_in_cache
from tedsl.cost.exact_bytes import Counted, exact_bytes
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
from tedsl.scheduling.memo import Memory

THREADS = 32
NOTHING = Counted()
_EXACT = Memory(64)
Compiled = Mapping[str, Any]


def kernel_costs(
    module: Module,
    facts: Device,
    values: Mapping[Var, Number],
    compiled: Compiled | None = None,
    *,
    resident: frozenset[Buffer] = frozenset(),
    caches: bool = True,
) -> tuple[KernelCost, ...]:
    """The kernels that a call launches.

    Args:
        module: at TILE level, lowered for the kind of device that `facts` describe.
        facts: of the device.
        values: of the runtime scalars.
        compiled: registers, stack and shared memory of machine code, by kernel, where known.
        resident: buffers that a GPU's last cache holds before the first kernel.
        caches: False for bytes of every access in place of those of device memory.
    """
    found: list[KernelCost] = []
    for func, known, every, times in kernel_launches(module, values):
        if func.host_call is not None:
            found.append(_extern(func, values, times))
            continue
        match facts:
            case GpuDevice():
                one = estimate_kernel(func, known, facts, WEIGHTS, resident, THOROUGH)
                own = (compiled or {}).get(func.name)
                cost = _on_gpu(func, values, times, one, facts, own, _flops(func, every))
                found.append(_counted(cost, func, one.traffic, every, resident, caches))
                resident = left_in_cache(module, func, facts)
            case CpuDevice():
                on_cpu = estimate_on_cpu(func, known, facts, WEIGHTS)
                cost = _on_cpu(func, values, times, on_cpu, _flops(func, every))
                found.append(_counted(cost, func, on_cpu.traffic, every, frozenset(), caches))
            case _ as never:
                assert_never(never)
    return tuple(found)


def _counted(
    cost: KernelCost,
    func: Func,
    traffic: Mapping[Buffer, Traffic],
    every: Mapping[Expr, Values],
    resident: frozenset[Buffer],
    caches: bool,
) -> KernelCost:
    """The cost with what is counted exactly: what is read or written at all moves at least once,
    except what the kernel before has left in the cache."""
    exact = _exact(func, every)
    order = list(dict.fromkeys((*traffic, *exact)))
    made = {buffer for buffer, one in exact.items() if one.stores}
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    cached: dict[str, int] = {}
    for buffer in order:
        one, name = exact.get(buffer, NOTHING), buffer.name
        moved = traffic.get(buffer, Traffic())
        read, written = round(moved.read * cost.times), round(moved.written * cost.times)
        least = 0 if buffer in made else one.read or 0
        if buffer in resident and least > read:
            cached[name] = least - read
            least = read
        reads[name], writes[name] = max(read, least), max(written, one.written or 0)
    loads = {b.name: exact[b].loads for b in order if b in exact and exact[b].loads}
    stores = {b.name: exact[b].stores for b in order if b in exact and exact[b].stores}
    nothing = dict[str, int]()
    given = (reads, writes, cached) if caches else (loads, stores, nothing)
    reads, writes, cached = ({n: size for n, size in each.items() if size} for each in given)
    doubtful = tuple(b.name for b, one in exact.items() if not one.exact)
    return replace(
        cost, reads=reads, writes=writes, cached=cached, loads=loads, stores=stores,
        doubtful=doubtful, touched={b.name: (one.read, one.written) for b, one in exact.items()},
    )  # fmt: skip


def _exact(func: Func, every: Mapping[Expr, Values]) -> Mapping[Buffer, Counted]:
    """`exact_bytes`, counted once for a kernel that is explained again at the same sizes."""
    sizes = tuple(every.items())
    if any(np.ndim(value) for _, value in sizes):
        return exact_bytes(func, every)
    return _EXACT.get((func, *sizes), lambda: exact_bytes(func, every))


def buffer_bytes(buffers: Sequence[Buffer], values: Mapping[Var, Number]) -> int:
    """Bytes of whole buffers; an extent below 0 leaves none."""
    shapes = [(b, evaluate_shape(b.shape, values)) for b in buffers]
    return sum(math.prod(max(n, 0) for n in shape) * b.dtype.nbytes for b, shape in shapes)


def kernel_launches(
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
        times=times, calls=label, loads=reads, stores=writes,
    )  # fmt: skip


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
    memory = max(one.memory, one.cache)
    return KernelCost(
        name=func.name,
        stages=_stages(func),
        reads={},
        writes={},
        flops=flops,
        seconds=(one.seconds + facts.launch) * times,
        memory_seconds=memory * times,
        compute_seconds=one.processor * times,
        launch_seconds=facts.launch * times,
        bound=_bound(memory, one.processor, facts.launch),
        local_bytes=_local_bytes(func, values),
        times=times,
        resources=_resources(one, facts, compiled),
        remarks=func.remarks,
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
            share, False, limit,
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
    return KernelCost(
        name=func.name,
        stages=_stages(func),
        reads={},
        writes={},
        flops=flops,
        seconds=one.seconds * times,
        memory_seconds=one.memory_seconds * times,
        compute_seconds=one.core_seconds * times,
        launch_seconds=one.enter_seconds * times,
        bound=_bound(one.memory_seconds, one.core_seconds, one.enter_seconds),
        local_bytes=_local_bytes(func, values),
        times=times,
        remarks=func.remarks,
    )
