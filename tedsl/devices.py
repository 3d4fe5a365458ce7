"""Devices: what there is to run on, and what it has.

`GpuDevice` and `CpuDevice` are plain figures; `GPUS` holds those of known GPUs, one of which stands
for each architecture, and `gpu_like` finds the figures of a GPU by its name.  `Target.resolve()`
gives the device of a target; the rules, the cost model, the launcher and the search ask it, and
have no figure of a device themselves.  Imports `dtypes` and `errors`.

Sources.  Shared memory, registers, warps and blocks of an SM: the table of compute capabilities in
the CUDA C++ Programming Guide.  Units by compute capability: the same guide, and the PTX ISA (TMA:
`cp.async.bulk.tensor` from sm_90; `wgmma`: sm_90a; `tcgen05`: sm_100; e4m3 and e5m2 conversions:
sm_89).  SMs, clocks, caches, bandwidths, peaks:

    A100      NVIDIA A100 Tensor Core GPU Architecture (whitepaper), A100 80GB data sheet
    RTX 3090  NVIDIA Ampere GA102 GPU Architecture (whitepaper)
    RTX 4090  NVIDIA Ada GPU Architecture (whitepaper)
    H100      NVIDIA H100 Tensor Core GPU Architecture (whitepaper), H100 SXM5
    H200      NVIDIA H200 Tensor Core GPU data sheet
    B200      NVIDIA Blackwell Architecture Technical Brief, NVIDIA Blackwell Tuning Guide
    RTX 5090  NVIDIA RTX Blackwell GPU Architecture (whitepaper)

Peaks are dense, without sparsity, and of products that are added up in float32.  `l2_bandwidth` is
in no document: bytes per cycle of all slices (5120 on an A100, by its whitepaper; 64 for each SM
and cycle later), of which requests of neighbours are merged.  Of the RTX cards it is taken as 32
bytes for each SM and cycle, which nobody here has measured.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, TypeAlias

from tedsl.dtypes import DType
from tedsl.errors import BackendError

KIB = 1024
MIB = KIB * KIB
_RATES = ("tensor", "fma")
"""Fields of a GPU that are by types."""


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU.

    Attributes:
        name: as the driver calls it.
        arch: `sm_90`.
        sms: how many SMs it has.
        shared_block: bytes of shared memory that one program may ask for.
        shared_sm: bytes of shared memory of an SM.
        clock: cycles a second.
        bandwidth: of device memory, in bytes a second.
        l2: bytes of the L2 cache.
        l2_bandwidth: of the L2 cache, in bytes a second.
        tensor: peaks of the tensor cores in operations a second, by the element type of their
            operands (float32 stands for TF32).
        fma: peaks of the CUDA cores, by type.
        l2_parts: of the L2 cache, each of which serves the SMs next to it.
        registers_sm: of 32 bits, of an SM.
        registers_thread: the most of one thread.
        warps_sm: that an SM holds at once.
        blocks_sm: programs that an SM holds at once.
        threads_block: the most threads of a program.
        shared_reserved: bytes of shared memory that the system takes of each program.
        launch: seconds between the starts of two empty kernels.
    """

    name: str
    arch: str
    sms: int
    shared_block: int
    shared_sm: int
    clock: float
    bandwidth: float
    l2: int
    l2_bandwidth: float
    tensor: Mapping[DType, float] = field(hash=False)
    fma: Mapping[DType, float] = field(hash=False)
    l2_parts: int = 2
    registers_sm: int = 65536
    registers_thread: int = 255
    warps_sm: int = 64
    blocks_sm: int = 32
    threads_block: int = 1024
    shared_reserved: int = KIB
    launch: float = 2.2e-6

    @property
    def capability(self) -> int:
        """The compute capability: 90 for `sm_90`."""
        return capability_of(self.arch)

    @property
    def has_tma(self) -> bool:
        """True when it loads boxes of tensors into shared memory by descriptors (TMA)."""
        return self.capability >= 90

    @property
    def has_clusters(self) -> bool:
        """True when programs may be clusters of thread blocks."""
        return self.capability >= 90

    @property
    def has_wgmma(self) -> bool:
        """True for Hopper's tensor cores, which four warps ask together (wgmma)."""
        return self.capability == 90

    @property
    def has_tcgen05(self) -> bool:
        """True for tensor cores that accumulate in tensor memory (tcgen05)."""
        return 100 <= self.capability < 120

    @property
    def multiplies_shared(self) -> bool:
        """True when tensor cores read operands from shared memory (wgmma, tcgen05), not from
        registers (mma)."""
        return self.has_wgmma or self.has_tcgen05

    @property
    def has_float8(self) -> bool:
        """True when it converts and multiplies 8-bit floats."""
        return self.capability >= 89

    @property
    def l2_near(self) -> int:
        """Bytes of the L2 cache that all SMs can use before lines are loaded again: each part of it
        keeps its own copy of what the SMs next to it read."""
        return self.l2 // self.l2_parts

    @property
    def products_cycle(self) -> int:
        """Operations of the tensor cores of an SM on operands of 16 bits in a cycle: a power of
        two, of which the data sheet's peak is a rounded multiple."""
        exact = self.tensor[DType.float16] / (self.sms * self.clock)
        return 1 << round(math.log2(exact))

    @property
    def bytes_cycle(self) -> float:
        """Bytes of device memory for each SM in a cycle."""
        return self.bandwidth / (self.sms * self.clock)


@dataclass(frozen=True, slots=True)
class CpuDevice:
    """A processor.

    Attributes:
        name: as the system calls it.
        cores: how many threads may run.
        vector_bits: of a vector register that generated code uses.
        vector_registers: how many of these there are.
        flops: of one core in float32, a second.
        l1: bytes of the first data cache of a core.
        l2: bytes of the second cache, which each core has for itself.
        l3: bytes of the last cache, which all cores share.
        bandwidth: of copies on all cores together, in bytes a second; 0 until it is measured, which
            the cost model does and the rules do not.
        clock: cycles a second.
    """

    name: str
    cores: int
    vector_bits: int
    vector_registers: int
    flops: float = 0.0
    l1: int = 32 * KIB
    l2: int = MIB
    l3: int = 16 * MIB
    bandwidth: float = 0.0
    clock: float = 2.5e9

    def lanes(self, nbytes: int) -> int:
        """Elements of `nbytes` bytes in one vector register."""
        return max(1, self.vector_bits // (8 * max(1, nbytes)))


Device: TypeAlias = GpuDevice | CpuDevice


def capability_of(arch: str) -> int:
    """90 for `sm_90`."""
    return int(arch.removeprefix("sm_"))


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


A100 = GpuDevice(
    "NVIDIA A100-SXM4-80GB", "sm_80",
    108, 163 * KIB, 164 * KIB, 1.41e9, 2.04e12, 40 * MIB, 7.0e12,
    _peaks(312e12, 156e12, 624e12, 19.5e12, 312e12), _plain(19.5e12, 9.7e12),
)  # fmt: skip
RTX3090 = GpuDevice(
    "NVIDIA GeForce RTX 3090", "sm_86",
    82, 99 * KIB, 100 * KIB, 1.695e9, 0.936e12, 6 * MIB, 4.4e12,
    _peaks(71e12, 35.6e12, 284e12, 0.556e12, 71e12), _plain(35.6e12, 0.556e12),
    l2_parts=1, warps_sm=48, blocks_sm=16,
)  # fmt: skip
RTX4090 = GpuDevice(
    "NVIDIA GeForce RTX 4090", "sm_89",
    128, 99 * KIB, 100 * KIB, 2.52e9, 1.008e12, 72 * MIB, 10.3e12,
    _peaks(165.2e12, 82.6e12, 660.6e12, 1.29e12, 330.3e12), _plain(82.6e12, 1.29e12),
    l2_parts=1, warps_sm=48, blocks_sm=24,
)  # fmt: skip
H100 = GpuDevice(
    "NVIDIA H100 80GB HBM3", "sm_90",
    132, 227 * KIB, 228 * KIB, 1.755e9, 3.35e12, 50 * MIB, 11.0e12,
    _peaks(989e12, 495e12, 1979e12, 67e12, 1979e12), _plain(67e12, 34e12),
)  # fmt: skip
H200 = replace(H100, name="NVIDIA H200", bandwidth=4.8e12)
B200 = GpuDevice(
    "NVIDIA B200", "sm_100",
    148, 227 * KIB, 228 * KIB, 1.85e9, 8.0e12, 126 * MIB, 17.0e12,
    _peaks(2250e12, 1125e12, 4500e12, 40e12, 4500e12), _plain(80e12, 40e12),
)  # fmt: skip
RTX5090 = GpuDevice(
    "NVIDIA GeForce RTX 5090", "sm_120",
    170, 99 * KIB, 100 * KIB, 2.407e9, 1.792e12, 96 * MIB, 13.1e12,
    _peaks(209.5e12, 104.8e12, 838e12, 1.64e12, 419e12), _plain(104.8e12, 1.64e12),
    l2_parts=1, warps_sm=48, blocks_sm=24,
)  # fmt: skip
GPUS = (A100, RTX3090, RTX4090, H200, H100, B200, RTX5090)
"""The first of each architecture stands for it."""
DEFAULT = "sm_90"
"""The architecture that `cuda` means where no GPU is: that of an H200, on which the constants of
the rules were fitted."""
ARCHITECTURES = tuple(dict.fromkeys(gpu.arch for gpu in GPUS))


def gpu_of(arch: str) -> GpuDevice:
    """The GPU that stands for an architecture.

    Raises:
        BackendError: not one of the known architectures.
    """
    found = next((gpu for gpu in GPUS if gpu.arch == arch), None)
    if found is None:
        raise BackendError(
            f"unknown architecture {arch!r}",
            facts=[("allowed", ", ".join(ARCHITECTURES))],
            hint="a GPU of another architecture is found out where it is: use cuda",
        )
    return found


def gpu_like(name: str, arch: str = "", sms: int | None = None) -> GpuDevice:
    """The figures of a GPU that is not looked at.

    Args:
        name: as the driver calls it, or a part of that with the model in it (`H200`).
        arch: its architecture, where that is known.
        sms: how many SMs it has, where that is known.

    Returns:
        The GPU of that name; else the nearest known one, which stands for its architecture, or for
        the last one before it.
    """
    named = next((gpu for gpu in GPUS if arch in ("", gpu.arch) and _alike(gpu.name, name)), None)
    found = named or _nearest(arch or DEFAULT)
    return replace(found, arch=arch or found.arch, sms=sms or found.sms)


def gpu_to_json(gpu: GpuDevice) -> dict[str, Any]:
    """A GPU as JSON."""
    told = {each.name: getattr(gpu, each.name) for each in fields(gpu)}
    rates = {name: {dtype.value: rate for dtype, rate in told[name].items()} for name in _RATES}
    return {**told, **rates}


def gpu_from_json(told: Mapping[str, Any]) -> GpuDevice:
    """The GPU that `gpu_to_json` wrote."""
    rates: dict[str, Any] = {
        name: MappingProxyType({DType(dtype): rate for dtype, rate in told[name].items()})
        for name in _RATES
    }
    return GpuDevice(**{**told, **rates})


def is_named(gpu: GpuDevice, name: str) -> bool:
    """True when the driver's name for a GPU is that of `gpu`, whose figures are known then."""
    return _alike(gpu.name, name)


def _nearest(arch: str) -> GpuDevice:
    capability = capability_of(arch)
    before = [gpu for gpu in GPUS if gpu.capability <= capability]
    latest = max((gpu.capability for gpu in before), default=GPUS[0].capability)
    return next(gpu for gpu in GPUS if gpu.capability == latest)


def _alike(known: str, device: str) -> bool:
    """True when both name one product: the word with digits in it decides; of a GeForce, whose
    model is a number, that after `RTX`."""
    models = re.findall(r"[A-Z]+\d+\w*|(?<=RTX )\d+", known)
    words = device.replace("-", " ").split()
    plain = not {"Ti", "SUPER", "Laptop"}.intersection(words)
    return any(model in words and (plain or model[0].isalpha()) for model in models)
