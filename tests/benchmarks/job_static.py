"""Compile a row at its real size for Hopper without a GPU, and say what that tells of its speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import expected
from workload import Workload

import tedsl as te
from tedsl.backends.triton.compile.offline import CompiledInfo, compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.cost.devices import device_for
from tedsl.cost.estimate import estimate
from tedsl.expr.nodes import Const
from tedsl.ir.nodes import Module
from tedsl.lower.pipeline import lower
from tedsl.schedules import schedule_for
from tedsl.target import Target

ARCH = "sm_90"
DEVICE = "NVIDIA H200"
SHARED = 227 << 10


def run(load: Workload, settings: Mapping[str, Any], wait: Callable[[], None]) -> dict[str, Any]:
    """Resources of every kernel, the predicted time, and remarks on what will miss the bar."""
    del settings, wait
    target = Target.parse(f"cuda:{ARCH}")
    outputs = load.outputs()
    schedule = outputs if isinstance(outputs, te.Schedule) else schedule_for(outputs, target)
    module = lower(schedule.plan, target)
    program = emit(module, target)
    infos = compile_offline(program, ARCH)
    found = estimate(module, device_for(target, DEVICE))
    allowed = expected.allowed(load)
    row: dict[str, Any] = {
        "kernels": [kernel(info, program.source) for info in infos],
        "workspace": sum(_bytes(buffer) for buffer in module.workspaces),
        "predicted_ms": 1e3 * found.seconds,
        "floor_ms": 1e3 * expected.floor(load),
        "allowed_ms": None if allowed is None else 1e3 * allowed,
        "dots": program.source.count("tl.dot("),
    }
    row["remarks"] = remarks(load, row, found.cannot_launch, module)
    return row


def kernel(info: CompiledInfo, source: str) -> dict[str, Any]:
    """What one kernel asks for."""
    own = source.partition(f"def {info.function}(")[2].partition("@triton.jit")[0]
    return {
        "name": info.name,
        "registers": info.registers,
        "spills": info.stack,
        "shared": info.shared,
        "warps": info.num_warps,
        "dots": own.count("tl.dot("),
        "wgmma": "wgmma.mma_async" in info.ptx,
        "descriptors": "cp.async.bulk.tensor" in info.ptx,
    }


def _bytes(buffer: Any) -> int:
    sizes = [int(n.value) if isinstance(n, Const) else 1 for n in buffer.shape]
    return math.prod(sizes) * int(buffer.dtype.nbytes)


def remarks(
    load: Workload, row: Mapping[str, Any], cannot_launch: str | None, module: Module
) -> list[str]:
    """What of a row is known to cost time, the worst first."""
    kernels: list[dict[str, Any]] = row["kernels"]
    found: list[str] = []
    if cannot_launch:
        found.append(f"cannot launch: {cannot_launch}")
    if any(each["shared"] > SHARED for each in kernels):
        found.append(f"{max(k['shared'] for k in kernels) >> 10} KiB of shared memory")
    if row["workspace"] > load.moved / 8 + (1 << 20):
        found.append(f"{row['workspace'] / 2**20:.0f} MiB of workspace")
    if load.one_kernel and len(module.funcs) > 1:
        found.append(f"{len(module.funcs)} kernels")
    if load.uses_dot:
        multiplying = [each for each in kernels if each["dots"]]
        if not multiplying:
            found.append("no tl.dot")
        elif load.sizes.get("dtype") != "float32":
            if not all(each["wgmma"] for each in multiplying):
                found.append("no wgmma")
            if not all(each["descriptors"] for each in multiplying):
                found.append("no descriptors")
    spilled = max((each["spills"] or 0 for each in kernels), default=0)
    if spilled:
        found.append(f"spills {spilled} B")
    allowed = row["allowed_ms"]
    if allowed and row["predicted_ms"] > 1.15 * allowed:
        found.append(f"predicted {row['predicted_ms'] / allowed:.1f}x what the bar allows")
    return found
