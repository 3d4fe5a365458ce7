"""The closed-form estimate of a lowered program: resources, traffic, seconds, and the features that
a learned model is given.  No GPU, no compiler.  Imports the rest of `static`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

from tedsl.cost.cpu import estimate_on_cpu
from tedsl.cost.devices import WEIGHTS, Weights
from tedsl.cost.gpu import KernelEstimate, estimate_kernel, global_buffers
from tedsl.cost.sampled_indices import Points, Values
from tedsl.devices import CpuDevice, Device, GpuDevice
from tedsl.expr.nodes import Expr, Var
from tedsl.ir.nodes import Buffer, Func, Module

Features: TypeAlias = Mapping[str, float]
UNLIKELY = 16.0
"""Times as slow is what seems to ask for more shared memory than there is, though nothing is
proved: it comes after all others."""
__all__ = ["Estimate", "Features", "estimate"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a program asks for and how long it should take.

    Of several kernels, `registers`, `shared` and `occupancy` are those of the greediest, `programs`
    of the longest; `bytes`, `flops` and `seconds` are of all launches.  `cannot_launch` is a reason
    that is proved, or None.
    """

    seconds: float
    registers: float = 0.0
    shared: int = 0
    occupancy: float = 0.0
    waves: float = 0.0
    bytes: float = 0.0
    flops: float = 0.0
    programs: float = 0.0
    kernels: int = 0
    cannot_launch: str | None = None
    features: Features = field(default_factory=dict[str, float])


def estimate(
    module: Module,
    facts: Device,
    sizes: Mapping[Var, int | float] | None = None,
    weights: Weights = WEIGHTS,
) -> Estimate:
    """The estimate of a lowered program.

    Args:
        module: at TILE level, lowered for the kind of device that `facts` describe.
        facts: of the device.
        sizes: values of the runtime sizes.
        weights: of the model.
    """
    values: dict[Expr, Values] = {
        var: int(value) for var, value in (sizes or {}).items() if not var.dtype.is_float
    }
    match facts:
        case GpuDevice():
            return _on_gpu(module, facts, values, weights)
        case CpuDevice():
            return _on_cpu(module, facts, values, weights)
        case _ as never:
            assert_never(never)


def _on_gpu(
    module: Module, facts: GpuDevice, sizes: Mapping[Expr, Values], weights: Weights
) -> Estimate:
    found: list[tuple[KernelEstimate, float]] = []
    resident: frozenset[Buffer] = frozenset()
    seconds = 0.0
    for func, known, times in _kernels(module, sizes):
        one = estimate_kernel(func, known, facts, weights, resident)
        found.append((one, times))
        seconds += times * (one.seconds + facts.launch)
        resident = left_in_cache(module, func, facts)
    if any(one.held.shared > facts.shared_block for one, _ in found):
        seconds *= UNLIKELY
    return Estimate(
        seconds=seconds,
        registers=max((k.held.registers for k, _ in found), default=0.0),
        shared=max((k.held.shared for k, _ in found), default=0),
        occupancy=min((float(k.occupancy) for k, _ in found), default=0.0),
        waves=max((k.waves for k, _ in found), default=0.0),
        bytes=sum(k.dram * n for k, n in found),
        flops=sum(k.flops * n for k, n in found),
        programs=max(found, key=lambda pair: pair[0].seconds * pair[1])[0].programs if found else 0,
        kernels=len(found),
        cannot_launch=next(
            (f"{k.name}: {k.cannot_launch}" for k, _ in found if k.cannot_launch), None
        ),
        features=_features(found, seconds, facts),
    )


def _on_cpu(
    module: Module, facts: CpuDevice, sizes: Mapping[Expr, Values], weights: Weights
) -> Estimate:
    found = [
        (estimate_on_cpu(func, known, facts, weights), times)
        for func, known, times in _kernels(module, sizes)
    ]
    seconds = sum(one.seconds * times for one, times in found)
    if not found:
        return Estimate(seconds=0.0)
    main, _ = max(found, key=lambda pair: pair[0].seconds * pair[1])
    features = {
        "seconds": seconds,
        "kernels": float(len(found)),
        "bytes": _log(sum(k.dram * n for k, n in found)),
        "cache_bytes": _log(sum(k.from_l2 * n for k, n in found)),
        "far_bytes": _log(sum(k.from_l3 * n for k, n in found)),
        "flops": _log(sum(k.flops * n for k, n in found)),
        "compute": _log(main.compute),
        "ports": _log(main.ports),
        "chains": _log(main.chains),
        "vectors": _log(main.vectors),
        "lanes": main.lanes,
        "threads": main.threads,
        "entered": _log(main.entered),
    }
    return Estimate(
        seconds=seconds,
        bytes=sum(k.dram * n for k, n in found),
        flops=sum(k.flops * n for k, n in found),
        programs=main.threads,
        kernels=len(found),
        features=features,
    )


def _kernels(
    module: Module, sizes: Mapping[Expr, Values]
) -> Iterator[tuple[Func, Mapping[Expr, Values], float]]:
    """The kernels that a call launches, the sizes each sees, and how often it is launched."""
    for repeat, places in module.launches():
        known = dict(sizes)
        times = 1.0
        if repeat is not None:
            times = float(Points(sizes).value(repeat.extent))
            known[repeat.step] = int(times) // 2
        for place in places:
            func = module.funcs[place]
            if func.host_call is None and _launched(func, known):
                yield func, known, times


def _launched(func: Func, values: Mapping[Expr, Values]) -> bool:
    return func.when is None or bool(Points(values).value(func.when))


def left_in_cache(module: Module, func: Func, facts: GpuDevice) -> frozenset[Buffer]:
    """Workspaces of a kernel that the next one finds in the second-level cache."""
    mine = global_buffers(func) & frozenset(module.workspaces)
    sizes = {b: math.prod(int(getattr(n, "value", 1 << 20)) for n in b.shape) for b in mine}
    return frozenset(b for b in mine if sizes[b] * b.dtype.nbytes < stays_in_cache(facts))


def stays_in_cache(facts: Device) -> float:
    """Bytes of a buffer that a GPU's last cache keeps for the next kernel; 0 on a CPU, whose
    kernels are counted from cold caches each."""
    return facts.l2 / 3 if isinstance(facts, GpuDevice) else 0.0


def _features(
    found: list[tuple[KernelEstimate, float]], seconds: float, facts: GpuDevice
) -> dict[str, float]:
    """What a learned model sees of a candidate: sums over kernels, and figures of the longest."""
    if not found:
        return {"seconds": seconds}
    main, _ = max(found, key=lambda pair: pair[0].seconds * pair[1])
    threads = main.warps * 32
    most = min(facts.registers_thread, facts.registers_sm / threads)
    return {
        "seconds": seconds,
        "kernels": float(len(found)),
        "bytes": _log(sum(k.dram * n for k, n in found)),
        "cache_bytes": _log(sum(k.l2 * n for k, n in found)),
        "flops": _log(sum(k.flops * n for k, n in found)),
        "registers": main.held.registers,
        "accumulators": main.held.accumulators,
        "spilled": max(0.0, main.held.registers - most),
        "shared": main.held.shared / 1024,
        "largest": _log(main.held.largest),
        "each": _log(main.held.largest / threads),
        "warps": float(main.warps),
        "stages": float(main.stages),
        "programs": _log(main.programs),
        "occupancy": float(main.occupancy),
        "resident_warps": float(main.occupancy * main.warps),
        "waves": _log(main.waves),
        "tail": math.ceil(main.waves) / main.waves if main.waves else 1.0,
        "trips": _log(main.trips),
        "vector": main.vector,
        "imbalance": main.imbalance,
        "alone": _log(main.alone),
        "busy": _log(main.busy),
        "processor": _log(main.processor),
        "memory": _log(main.memory),
        "cache": _log(main.cache),
        "special": _log(main.special),
        "instructions": _log(main.instructions),
    }


def _log(value: float) -> float:
    return math.log2(max(float(value), 1e-12))
