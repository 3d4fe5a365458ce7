"""What is here to run on: asks the CUDA driver and the operating system.

The driver is asked for name, architecture, SMs, shared memory, registers, warps and the L2 cache.
The cache, clocks, bandwidths and peaks are those of the documents where the GPU is known by its
name and has as many SMs (the driver of an H200 tells 60 MiB of L2), so that one model of GPU always
gets the same schedules; of other GPUs the driver's clocks and its memory bus are taken, and the
peaks of the nearest known GPU for each SM and cycle.  Needs no PyTorch: where that is loaded, its
current GPU is looked at, else the first one.  What vectors the CPU has is asked of `processor`.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tedsl.devices import CpuDevice, GpuDevice, gpu_like, is_named
from tedsl.late import late

if TYPE_CHECKING:
    from tedsl import processor
else:
    processor = late("tedsl.processor")

DRIVER = "libcuda.so.1"
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
CPUINFO = Path("/proc/cpuinfo")
MOST_THREADS = 256
"""Threads that a parallel loop of generated code may have."""


class Asked(IntEnum):
    """Attributes of a device, by their numbers in the driver's interface (`CUdevice_attribute`)."""

    CLOCK = 13
    SMS = 16
    MEMORY_CLOCK = 36
    MEMORY_BUS = 37
    L2 = 38
    THREADS_SM = 39
    MAJOR = 75
    MINOR = 76
    SHARED_SM = 81
    REGISTERS_SM = 82
    SHARED_BLOCK = 97
    BLOCKS_SM = 106
    SHARED_RESERVED = 111


COMMON = CpuDevice("processor", 8, 256, 16)
"""Assumed where the code generator is not installed, so that schedules can be looked at."""


_told: list[GpuDevice] = []


def gpu_here() -> GpuDevice | None:
    """The GPU that kernels for `cuda` run on; None where there is none."""
    return _told[0] if _told else _gpu(_current())


def take_for_here(gpu: GpuDevice) -> None:
    """Have this process, which is to touch no device, compile for the GPU of another."""
    _told[:] = [gpu]


def is_told() -> bool:
    """True where this process compiles for the GPU of another."""
    return bool(_told)


def _current() -> int:
    """The number of PyTorch's current device, where PyTorch uses one."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.current_device())


def has_driver() -> bool:
    """Whether the driver's library is here; it is not asked anything."""
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


@cache
def _gpu(number: int) -> GpuDevice | None:
    if not has_driver():
        return None
    driver: Any = ctypes.CDLL(DRIVER)
    device, count = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or number >= count.value:
        return None
    name = ctypes.create_string_buffer(256)
    if driver.cuDeviceGet(ctypes.byref(device), number) or driver.cuDeviceGetName(
        name, len(name), device
    ):
        return None

    def asked(what: Asked) -> int:
        found = ctypes.c_int()
        failed = driver.cuDeviceGetAttribute(ctypes.byref(found), int(what), device)
        return 0 if failed else found.value

    return described(name.value.decode(errors="replace"), asked)


def described(name: str, asked: Callable[[Asked], int]) -> GpuDevice:
    """A GPU by what its driver says.

    Args:
        name: of the GPU.
        asked: gives an attribute; 0 where the driver does not know it.
    """
    known = gpu_like(name, f"sm_{asked(Asked.MAJOR)}{asked(Asked.MINOR)}")
    here = replace(
        known,
        sms=asked(Asked.SMS) or known.sms,
        shared_block=asked(Asked.SHARED_BLOCK) or known.shared_block,
        shared_sm=asked(Asked.SHARED_SM) or known.shared_sm,
        registers_sm=asked(Asked.REGISTERS_SM) or known.registers_sm,
        warps_sm=asked(Asked.THREADS_SM) // 32 or known.warps_sm,
        blocks_sm=asked(Asked.BLOCKS_SM) or known.blocks_sm,
        shared_reserved=asked(Asked.SHARED_RESERVED) or known.shared_reserved,
    )
    if is_named(known, name) and here.sms == known.sms:
        return here
    clock = 1e3 * asked(Asked.CLOCK) or known.clock
    # Two transfers in a cycle of the memory clock, which is in kHz; the bus is in bits.
    bandwidth = 2e3 * asked(Asked.MEMORY_CLOCK) * asked(Asked.MEMORY_BUS) / 8
    faster = here.sms * clock / (known.sms * known.clock)
    return replace(
        here,
        name=name,
        l2=asked(Asked.L2) or known.l2,
        clock=clock,
        bandwidth=bandwidth or known.bandwidth,
        l2_bandwidth=known.l2_bandwidth * faster,
        tensor=MappingProxyType({dtype: rate * faster for dtype, rate in known.tensor.items()}),
        fma=MappingProxyType({dtype: rate * faster for dtype, rate in known.fma.items()}),
    )


def cpu_here() -> CpuDevice:
    """The processor of this machine."""
    if importlib.util.find_spec("llvmlite") is None:
        return COMMON
    made = processor.machine()
    return _cpu(made.vector_bits, made.vector_registers)


@cache
def _cpu(vector_bits: int, vector_registers: int) -> CpuDevice:
    text = text_of(CPUINFO)
    names = re.findall(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    rates = [float(rate) for rate in re.findall(r"^cpu MHz\s*:\s*([\d.]+)", text, re.MULTILINE)]
    clock = max(rates) * 1e6 if rates else COMMON.clock
    sizes = cache_sizes()
    found = CpuDevice(
        name=names[0].strip() if names else COMMON.name,
        cores=min(processor.usable_cores(), MOST_THREADS),
        vector_bits=vector_bits,
        vector_registers=vector_registers,
        l1=sizes.get(1, COMMON.l1),
        l2=sizes.get(2, COMMON.l2),
        l3=sizes.get(3, COMMON.l3),
        clock=clock,
    )
    return replace(found, flops=clock * found.lanes(4) * 4)  # two units of multiply-add


def cache_sizes(folder: Path = CACHES) -> dict[int, int]:
    """Bytes of the data caches of a processor by level; empty where the system does not tell."""
    found: dict[int, int] = {}
    for each in sorted(folder.glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", text_of(each / "size"))
        level = text_of(each / "level")
        if size and level.isdigit() and text_of(each / "type") != "Instruction":
            found[int(level)] = int(size[1]) << {"K": 10, "M": 20, "G": 30}.get(size[2], 0)
    return found


def text_of(path: Path) -> str:
    """The text of a system file; empty where there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
