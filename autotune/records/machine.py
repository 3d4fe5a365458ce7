"""Where results hold: the device, its features, and the versions of everything that makes code.

Asked in the parent before a search, to look up records.  Imports `runtime`; the CPU's description
loads llvmlite and the GPU's loads PyTorch, both only when asked.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tedsl.autotune.records.record_key import Context
from tedsl.errors import TuneError
from tedsl.packages import install
from tedsl.processor import usable_cores
from tedsl.runtime.cache.fingerprint import code_version, package_version
from tedsl.workload.workload import Workload


def context_of(
    workload: Workload,
    target: str,
    space: str,
    sizes: str,
    facts: Mapping[str, str] | None = None,
) -> Context:
    """The context of tuning `workload` here, or where `facts_of` gave `facts`.

    `sizes` are the values of symbolic sizes, as JSON.
    """
    return Context(
        workload=workload.hash,
        family=workload.family,
        sizes=sizes if workload.variables else workload.sizes,
        dtypes=workload.dtypes,
        target=target,
        space=space,
        **(facts_of(target) if facts is None else facts),
    )


def facts_of(target: str) -> dict[str, str]:
    """Device, its features, and what makes the code, of this machine."""
    device, features = describe_cpu() if target == "cpu" else describe_gpu()
    return {
        "device": device,
        "features": features,
        "toolchain": toolchain(target),
        "codegen": code_version(),
    }


def describe_cpu() -> tuple[str, str]:
    """The processor's name with the number of usable threads, and its features."""
    machine: Any = importlib.import_module("tedsl.processor").machine()
    names = re.findall(r"^model name\s*:\s*(.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
    name = names[0].strip() if names else machine.cpu
    on = [flag[1:] for flag in machine.features.split(",") if flag.startswith("+")]
    return f"{name} ({machine.cpu}, {usable_cores()} threads)", ",".join(sorted(on))


def describe_gpu(index: int | None = None) -> tuple[str, str]:
    """Name of a GPU (the current one by default), and its compute capability and size.

    Raises:
        TuneError: no GPU that PyTorch can reach.
    """
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        raise TuneError(
            'target="cuda" is measured through PyTorch, which is not installed',
            hint=f'{install("torch")}, or tune with target="cpu"',
        ) from error
    if not torch.cuda.is_available():
        raise TuneError(
            'target="cuda" needs a GPU to measure on, and there is none here',
            hint='tune with target="cpu", or replay records made on a GPU with te.build',
        )
    here = torch.cuda.current_device() if index is None else index
    found = torch.cuda.get_device_properties(here)
    memory = f"{found.total_memory >> 30} GiB"
    return (
        str(found.name),
        f"sm_{found.major}{found.minor}, {found.multi_processor_count} processors, {memory}",
    )


def toolchain(target: str) -> str:
    """Versions that change what is generated or how fast it runs."""
    if target == "cpu":
        return f"tedsl {_version('tedsl')}; llvmlite {_version('llvmlite')}"
    driver = re.findall(r"\b\d+\.\d+(?:\.\d+)?\b", _text("/proc/driver/nvidia/version"))
    return "; ".join(
        (
            f"tedsl {_version('tedsl')}",
            f"triton {_version('triton')}",
            f"driver {driver[0] if driver else 'unknown'}",
        )
    )


def pressure() -> float:
    """By how much processes here wait for a processor: 1 where none does, 2 where half of those
    that would run wait."""
    if not hasattr(os, "getloadavg"):
        return 1.0
    return max(1.0, os.getloadavg()[0] / usable_cores())


def _version(package: str) -> str:
    return package_version(package) or "unknown"


def _text(path: str) -> str:
    """The text of a system file; empty where there is none."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
