"""What the cost model knows of devices beside their figures (`tedsl.devices`): the weights that are
fitted to measured kernels, and the bandwidth of this processor's memory, which is measured.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from tedsl.devices import MIB, CpuDevice, Device, gpu_like
from tedsl.folders import cache_root, write_whole
from tedsl.target import Target, TargetKind


def device_for(target: str | Target, name: str = "", features: str = "") -> Device:
    """The device of a target, for the cost model.

    Args:
        target: `cpu`, `cuda`, `cuda:sm_80` and so on.
        name: the GPU, as its driver calls it, where another than the one here may be meant.
        features: as records have them: `sm_90, 132 SMs, ...`.
    """
    where = Target.parse(target)
    if where.kind is TargetKind.CPU or not name:
        return measured(where.resolve())
    arch, _, rest = features.partition(", ")
    sms = rest.partition(" ")[0]
    return gpu_like(name, where.arch or arch, int(sms) if sms.isdigit() else None)


def measured(device: Device) -> Device:
    """The device, with the bandwidth of a processor's memory, which is measured once and kept on
    disk."""
    if isinstance(device, CpuDevice) and not device.bandwidth:
        return replace(device, bandwidth=_kept_bandwidth(device.cores))
    return device


def _kept_bandwidth(cores: int) -> float:
    """The measured bandwidth from the cache folder, else measured now and kept there."""
    path = cache_root() / "processor.json"
    key = f"copy on {cores} cores"
    try:
        known = json.loads(path.read_text())
        return float(known[key])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    found = _measured_bandwidth(cores)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [json.dumps({key: found})])
    except OSError:
        pass
    return found


def _measured_bandwidth(cores: int) -> float:
    """`copy_bandwidth` to one digit: what noise there is must not reorder candidates."""
    return float(f"{copy_bandwidth(cores):.0e}")


def copy_bandwidth(cores: int) -> float:
    """Bytes a second, read and written together, of long copies on all cores: measured now."""
    pairs = [(np.ones(8 * MIB, np.float32), np.empty(8 * MIB, np.float32)) for _ in range(cores)]
    best = float("inf")
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(6):
            begin = time.perf_counter()
            for done in [pool.submit(np.copyto, target, source) for source, target in pairs]:
                done.result()
            best = min(best, time.perf_counter() - begin)
    return 2 * cores * pairs[0][0].nbytes / best


@dataclass(frozen=True, slots=True)
class Weights:
    """What no data sheet says: fitted to measured kernels, one place for all of it.

    Attributes:
        dram_share, l2_share, tensor_share, mma_share: of the peaks, what a good kernel reaches;
            `mma_share` where matrix units read registers although they could read shared memory.
        latency: seconds until a load of device memory is there.
        unrolled: iterations of a loop without barriers whose loads are under way at once.
        barrier: seconds of a reduction across the threads of a program.
        issue: instructions that a warp issues per cycle by itself.
        sharpness: of the maximum over units that work side by side; infinite is perfect overlap.
        step: seconds from products that a program waits for to its next ones.
        spill: instructions for each register that is put away and fetched again, over two.
        evicted: how many of those a register counts of an accumulator that does not fit by itself.
        enter: seconds until all threads of a processor have begun a parallel loop.
    """

    dram_share: float = 0.92
    l2_share: float = 1.0
    tensor_share: float = 0.88
    mma_share: float = 0.55
    fma_share: float = 0.5
    latency: float = 0.8e-6
    unrolled: float = 4.0
    barrier: float = 0.15e-6
    issue: float = 0.45
    sharpness: float = 6.0
    step: float = 0.1e-6
    spill: float = 1.0
    evicted: float = 2.0
    enter: float = 5e-6


WEIGHTS = Weights()
