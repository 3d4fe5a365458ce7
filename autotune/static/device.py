"""What the model knows of a device: figures of a data sheet, or of this processor.

GPU figures are those of NVIDIA's data sheets and of the table of compute capabilities in the CUDA
C++ programming guide (shared memory, registers, warps and blocks per processor); peaks are dense,
without sparsity.  `l2_bandwidth` is in no data sheet: bytes per cycle of all slices (5120 on
sm_80; 64 for each processor and cycle later), of which requests of neighbours are merged.
Imports `target`; the processor's figures load llvmlite when asked for.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from tedsl.autotune.writing import write_whole
from tedsl.dtypes import DType
from tedsl.folders import cache_root
from tedsl.target import Target, TargetKind

KIB = 1024
MIB = KIB * KIB


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """A GPU.

    `shared_block` and `shared_processor` are bytes that a program may ask for and that a processor
    has; `bandwidth` is of device memory, `l2_bandwidth` of the second-level cache, in bytes a
    second; `tensor` are peaks of the matrix units in operations a second, by the element type of
    their operands (float32 stands for TF32), `fma` those of the ordinary units by type; `launch` is
    seconds between the starts of two empty kernels.
    """

    name: str
    arch: str
    processors: int
    shared_block: int
    shared_processor: int
    clock: float
    bandwidth: float
    l2: int
    l2_bandwidth: float
    tensor: Mapping[DType, float]
    fma: Mapping[DType, float]
    registers: int = 65536
    registers_thread: int = 255
    warps: int = 64
    blocks: int = 32
    threads_block: int = 1024
    shared_reserved: int = KIB
    launch: float = 2.2e-6

    @property
    def wgmma(self) -> bool:
        """True when groups of four warps multiply operands that stay in shared memory."""
        return self.arch in ("sm_90", "sm_100")


@dataclass(frozen=True, slots=True)
class CpuFacts:
    """A processor: `flops` of one core in float32 and `bandwidth` of all cores together are per
    second, the caches in bytes (the last is shared by all cores)."""

    name: str
    cores: int
    vector_bits: int
    vector_registers: int
    flops: float
    l1: int
    l2: int
    l3: int
    bandwidth: float
    clock: float

    @property
    def lanes(self) -> int:
        """Float32 elements of one vector register."""
        return max(1, self.vector_bits // 32)


DeviceFacts: TypeAlias = GpuFacts | CpuFacts


def _peaks(
    half: float, tf32: float, int8: float, double: float, float8: float
) -> Mapping[DType, float]:
    """By the type of the operands; without units of their own, 8-bit floats are 16-bit ones."""
    return MappingProxyType(
        {
            DType.float16: half,
            DType.bfloat16: half,
            DType.float32: tf32,
            DType.int8: int8,
            DType.uint8: int8,
            DType.float8_e4m3fn: float8,
            DType.float8_e5m2: float8,
            DType.float64: double,
        }
    )


def _plain(single: float, double: float) -> Mapping[DType, float]:
    return MappingProxyType({DType.float32: single, DType.float64: double})


A100 = GpuFacts(
    "NVIDIA A100-SXM4-80GB", "sm_80",
    108, 163 * KIB, 164 * KIB, 1.41e9, 2.04e12, 40 * MIB, 7.0e12,
    _peaks(312e12, 156e12, 624e12, 19.5e12, 312e12), _plain(19.5e12, 9.7e12),
)  # fmt: skip
H100 = GpuFacts(
    "NVIDIA H100 80GB HBM3", "sm_90",
    132, 227 * KIB, 228 * KIB, 1.755e9, 3.35e12, 50 * MIB, 11.0e12,
    _peaks(989e12, 495e12, 1979e12, 67e12, 1979e12), _plain(67e12, 34e12),
)  # fmt: skip
H200 = replace(H100, name="NVIDIA H200", bandwidth=4.8e12)
B200 = GpuFacts(
    "NVIDIA B200", "sm_100",
    148, 227 * KIB, 228 * KIB, 1.85e9, 8.0e12, 126 * MIB, 17.0e12,
    _peaks(2250e12, 1125e12, 4500e12, 40e12, 4500e12), _plain(80e12, 40e12),
)  # fmt: skip
GPUS = (A100, H100, H200, B200)


def facts_of(target: str | Target, device: str = "", processors: int | None = None) -> DeviceFacts:
    """The figures of a target.

    Args:
        target: `cpu`, `cuda`, `cuda:sm_80` and so on.
        device: the name of the GPU, as the driver calls it; a GPU that is not known by name has the
            figures of the first known one of its architecture.
        processors: how many the device has, where that is known.
    """
    parsed = Target.parse(target)
    if parsed.kind is TargetKind.CPU:
        return processor_facts()
    known = [gpu for gpu in GPUS if parsed.arch in (None, gpu.arch)]
    named = [gpu for gpu in known if _alike(gpu.name, device)]
    found = (named or [gpu for gpu in known if gpu.arch == (parsed.arch or "sm_90")])[0]
    return replace(found, processors=processors or found.processors)


def _alike(known: str, device: str) -> bool:
    """True when both name one product: the word with digits in it decides."""
    models = re.findall(r"[A-Z]+\d+\w*", known)
    return any(model in device.replace("-", " ").split() for model in models)


@cache
def processor_facts() -> CpuFacts:
    """The figures of this processor; the bandwidth is measured once and kept on disk."""
    machine: Any = importlib.import_module("tedsl.runtime.processor")
    here = machine.processor()
    text = _text("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    rates = [float(rate) for rate in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)]
    clock = (max(rates) if rates else 2500.0) * 1e6
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    sizes = machine.cache_sizes()
    lanes = max(1, here.vector_bits // 32)
    return CpuFacts(
        name=names[0].strip() if names else "processor",
        cores=cores or 1,
        vector_bits=here.vector_bits,
        vector_registers=here.vector_registers,
        flops=clock * lanes * 4,  # two units of multiply-add
        l1=sizes.get(1, 32 * KIB),
        l2=sizes.get(2, MIB),
        l3=sizes.get(3, 16 * MIB),
        bandwidth=_kept_bandwidth(cores or 1),
        clock=clock,
    )


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


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Weights:
    """What no data sheet says: fitted to measured kernels, one place for all of it.

    Attributes:
        dram_share, l2_share, tensor_share, mma_share: of the peaks, what a good kernel reaches;
            `mma_share` where matrix units read registers although they could read shared memory.
        latency: seconds until a load of device memory is there.
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
    barrier: float = 0.15e-6
    issue: float = 0.45
    sharpness: float = 6.0
    step: float = 0.1e-6
    spill: float = 1.0
    evicted: float = 2.0
    enter: float = 5e-6


WEIGHTS = Weights()
