"""What this machine can do at most, measured once: a copy, and a matrix product of each type.

On the CPU NumPy copies on all cores and multiplies through its BLAS; on a GPU PyTorch does both.
What was measured is kept in the on-disk cache.  Without the device the figures are those of its
data sheet.  Imports `runtime` and `cost`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np

from tedsl.build import default_target
from tedsl.cost.devices import copy_bandwidth, measured
from tedsl.detect import gpu_here
from tedsl.devices import CpuDevice, GpuDevice
from tedsl.dtypes import DType
from tedsl.runtime.cache.disk import disk_cache
from tedsl.runtime.timing import measure_cuda
from tedsl.target import Target, TargetKind

VERSION = 2
CPU_EDGE, GPU_EDGE = 1536, 8192
"""Rows and columns of the matrices that are multiplied."""
COPIED = 1 << 30
"""Bytes that a GPU copies."""
TF32 = "tfloat32"
GPU_TYPES = ("float16", "bfloat16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The limits of one device.

    Attributes:
        device: its name.
        bandwidth: bytes a second, read and written together.
        flops: operations a second of a matrix product, by the type of its operands; `tfloat32` is
            32-bit floats on the matrix units of a GPU.
        measured: False for figures of a data sheet.
    """

    device: str
    bandwidth: float
    flops: Mapping[str, float]
    measured: bool

    def ridge(self, dtype: str) -> float:
        """Operations for each byte from which on a program of this type waits for arithmetic."""
        return self.peak(dtype) / self.bandwidth

    def peak(self, dtype: str) -> float:
        """Operations a second of a type; that of float32 where the type was not measured."""
        return self.flops.get(dtype) or self.flops["float32"]

    def seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """The least time for so many operations and bytes."""
        return max(flops / self.peak(dtype), nbytes / self.bandwidth)

    def higher(self, other: Ceilings) -> Ceilings:
        """Of two measurements of one device the higher figures: a busy machine only lowers them."""
        names = dict.fromkeys((*self.flops, *other.flops))
        flops = {n: max(self.flops.get(n, 0.0), other.flops.get(n, 0.0)) for n in names}
        bandwidth = max(self.bandwidth, other.bandwidth)
        return Ceilings(self.device, bandwidth, flops, self.measured and other.measured)

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps(
            {
                "device": self.device,
                "bandwidth": self.bandwidth,
                "flops": dict(self.flops),
                "measured": self.measured,
            }
        )

    @staticmethod
    def from_json(text: str) -> Ceilings:
        """What `to_json` wrote."""
        data = json.loads(text)
        return Ceilings(data["device"], data["bandwidth"], data["flops"], data["measured"])


def ceilings(target: str | Target | None = None, *, fresh: bool = False) -> Ceilings:
    """The limits of the device of a target.

    Args:
        target: as for `te.build`.
        fresh: measure again, whatever is in the cache.

    Returns:
        What was measured here, now or earlier; the data sheet's figures for a GPU that is not here.
    """
    where = default_target() if target is None else Target.parse(target)
    facts = measured(where.resolve())
    if isinstance(facts, GpuDevice):
        if where.kind is not TargetKind.CUDA or where.arch is not None or gpu_here() is None:
            return _data_sheet(facts)
        device = facts.name
    else:
        device = f"{facts.name}, {facts.cores} cores"
    key = hashlib.sha256(f"ceilings {VERSION} {device} {_versions(where)}".encode()).hexdigest()
    cache = disk_cache()
    known = None if cache is None or fresh else cache.get(key, "json")
    if known is not None:
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # whole, but no ceilings
            return Ceilings.from_json(known["json"].decode())
    found = _of_cpu(device, facts) if isinstance(facts, CpuDevice) else _of_gpu(device, facts)
    if cache is not None:
        cache.put(key, {"json": found.to_json().encode()})
    return found


def _data_sheet(facts: GpuDevice) -> Ceilings:
    flops = {dtype.value: rate for dtype, rate in facts.tensor.items() if dtype.is_float}
    flops[TF32] = flops["float32"]
    flops.update({dtype.value: max(rate, flops.get(dtype.value, 0.0) * (dtype.bits != 32))
                  for dtype, rate in facts.fma.items()})  # fmt: skip
    return Ceilings(facts.name, facts.bandwidth, flops, False)


def _versions(target: Target) -> str:
    """Of what is measured with."""
    return metadata.version("torch" if target.kind is TargetKind.CUDA else "numpy")


def _of_cpu(device: str, facts: CpuDevice) -> Ceilings:
    flops: dict[str, float] = {}
    for dtype in (np.float32, np.float64):
        a, b = (np.ones((CPU_EDGE, CPU_EDGE), dtype) for _ in range(2))
        best = _best(lambda a=a, b=b: a @ b)
        flops[np.dtype(dtype).name] = 2.0 * CPU_EDGE**3 / best
    return Ceilings(device, copy_bandwidth(facts.cores), flops, True)


def _best(call: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of a few calls."""
    call()
    found: list[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def _of_gpu(device: str, facts: GpuDevice) -> Ceilings:
    """Measured; 8-bit floats as many times float16 as the data sheet says."""
    torch: Any = importlib.import_module("torch")
    source = torch.ones(COPIED, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    moved = measure_cuda(lambda: target.copy_(source), repeats=20, flush=False)
    flops: dict[str, float] = {}
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    try:
        for name in (*GPU_TYPES, TF32):
            matmul.allow_tf32 = name == TF32
            dtype = torch.float32 if name == TF32 else getattr(torch, name)
            edge = GPU_EDGE // 2 if name in ("float32", "float64") else GPU_EDGE
            a, b = (torch.randn(edge, edge, device="cuda").to(dtype) for _ in range(2))
            taken = measure_cuda(lambda a=a, b=b: a @ b, repeats=10, flush=False)
            flops[name] = 2.0 * edge**3 / taken.median
    finally:
        matmul.allow_tf32 = before
    half = flops["float16"] / facts.tensor[DType.float16]
    flops.update({d.value: half * rate for d, rate in facts.tensor.items() if d.is_float8})
    return Ceilings(device, 2.0 * COPIED / moved.median, flops, True)
