"""The machine that code is made for: cores, CPU name, features, vector width and registers.

LLVM's own guess of the CPU's name is unreliable in virtual machines, so the name is chosen from the
features, and on x86 a feature counts only when the operating system lists it as well.
"""

from __future__ import annotations

import importlib
import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

# What /proc/cpuinfo calls the features that decide how code looks.
_CPUINFO_NAMES = {
    "avx2": "avx2",
    "fma": "fma",
    "f16c": "f16c",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512dq": "avx512dq",
    "avx512vl": "avx512vl",
    "avx512cd": "avx512cd",
    "bmi": "bmi1",
    "bmi2": "bmi2",
    "avx512bf16": "avx512_bf16",
    "avx512fp16": "avx512_fp16",
    "avx512vnni": "avx512_vnni",
    "avx512vbmi": "avx512vbmi",
    "avx512vbmi2": "avx512_vbmi2",
    "avx512bitalg": "avx512_bitalg",
    "avx512vpopcntdq": "avx512_vpopcntdq",
    "avx512ifma": "avx512ifma",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
    "sse4.2": "sse4_2",
    "popcnt": "popcnt",
}
_LEVEL4 = frozenset({"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"})


@dataclass(frozen=True, slots=True)
class Machine:
    """What the code generator asks about: names for LLVM, native vector width, registers."""

    triple: str
    cpu: str
    features: str
    vector_bits: int
    vector_registers: int
    has_fma: bool
    has_masks: bool
    is_x86: bool
    has_half: bool = True
    """Whether there are instructions that convert float16."""

    def lanes(self, bits: int) -> int:
        """Elements of `bits` bits in one native vector."""
        return max(1, self.vector_bits // max(bits, 8))

    @property
    def attributes(self) -> str:
        """Attributes of every generated function."""
        return (
            f'nounwind "target-cpu"="{self.cpu}" "target-features"="{self.features}" '
            f'"prefer-vector-width"="{self.vector_bits}"'
        )


def binding() -> Any:
    """`llvmlite.binding` with the native target initialised, loaded on first use."""
    return _binding()


@lru_cache(maxsize=1)
def _binding() -> Any:
    llvm = importlib.import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    llvm.initialize_native_asmparser()
    for library in ("libm.so.6", "libpthread.so.0"):
        if platform.system() == "Linux" and platform.libc_ver()[0] == "glibc":
            llvm.load_library_permanently(library)
    return llvm


def _cpuinfo_flags() -> frozenset[str]:
    """The flags of the first processor in /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return frozenset()
    for line in path.read_text().splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _x86_name(features: dict[str, bool], guess: str) -> str:
    """The oldest CPU model that has the features we schedule for."""
    has = {name for name, on in features.items() if on}
    if "amx-tile" in has:
        return "sapphirerapids"
    if has >= _LEVEL4:
        return guess if guess.startswith("znver") else "icelake-server"
    if "avx2" in has and "fma" in has:
        return guess if guess.startswith("znver") else "haswell"
    return "x86-64"


def machine() -> Machine:
    """The machine code is made for: the one this process runs on."""
    return detect()


@lru_cache(maxsize=1)
def detect() -> Machine:
    """Look at the processor, once."""
    llvm = binding()
    triple = str(llvm.get_process_triple())
    features: dict[str, bool] = dict(llvm.get_host_cpu_features())
    cpu = str(llvm.get_host_cpu_name())
    is_x86 = triple.startswith(("x86_64", "i686"))
    if not is_x86:
        flags = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
        return Machine(triple, cpu, flags, 128, 32, True, False, False)
    flags = _cpuinfo_flags()
    if flags:
        for name, listed in _CPUINFO_NAMES.items():
            features[name] = features.get(name, False) and listed in flags
    wide = all(features.get(name, False) for name in _LEVEL4)
    bits = 512 if wide else 256 if features.get("avx2") else 128
    cpu = _x86_name(features, cpu)
    text = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
    return Machine(
        triple,
        cpu,
        text,
        bits,
        32 if wide else 16,
        bool(features.get("fma")),
        wide,
        is_x86,
        bool(features.get("f16c")),
    )


def usable_cores() -> int:
    """Processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
