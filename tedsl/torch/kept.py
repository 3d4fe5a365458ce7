"""Kernels of regions on disk, found again by the region's text: neither scheduled nor lowered.

An entry holds for the sources of tedsl, the versions of its tools and of PyTorch, and the device.
Imports `runtime` and the importer.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from tedsl import schedules
from tedsl.backends.processes.beside import Beside
from tedsl.build import build_beside
from tedsl.dtypes import DType
from tedsl.expr.nodes import Var
from tedsl.runtime.cache import lowered
from tedsl.runtime.cache.disk import DiskCache, disk_cache
from tedsl.runtime.cache.fingerprint import code_version, tool_versions, version_of
from tedsl.runtime.executors import by_target as executors
from tedsl.runtime.kernel import Kernel
from tedsl.target import Target
from tedsl.tensor.axis import size_var
from tedsl.torch.importer.graph import Imported


def key_of(text: str, target: str) -> str:
    """Under what the kernel of a region is kept.

    Args:
        text: the region's, with everything that its kernel follows from.
        target: `cpu` or `cuda`.
    """
    device = repr(Target.parse(target).resolve())
    return hashlib.sha256("\n".join((tools(), device, target, text)).encode()).hexdigest()


@cache
def tools() -> str:
    """What makes code here."""
    rules = version_of(Path(schedules.__file__).resolve().parent)
    front = version_of(Path(__file__).resolve().parent)
    tools = tool_versions("numpy", "llvmlite", "triton", "torch")
    return f"{code_version()} {rules} {front} {tools}"


def find(key: str, sizes: Iterable[str], target: str) -> tuple[Kernel, list[int]] | None:
    """A kernel that was kept, and which inputs of the graph it takes; None where there is none.

    It has no schedule: nothing was scheduled.

    Args:
        key: of the region.
        sizes: the names of the graph's runtime sizes.
        target: as for `key_of`.
    """
    disk = disk_cache()
    if disk is None:
        return None
    variables = {name: size_var(name, DType.int64) for name in sizes}
    found = lowered.find(disk, _plan_key(key, variables))
    places = disk.get(_places_key(key), "places")
    if found is None or places is None:
        return None
    chosen = Target.parse(target)
    executor = executors.make_executor(found.module, chosen, digest=found.digest)
    return Kernel(found.module, chosen, executor), json.loads(places["places"])


def keep(key: str, imported: Imported, kernel: Kernel, places: list[int]) -> None:
    """Keep a kernel, which takes the inputs of the graph at `places`."""
    disk = disk_cache()
    if disk is not None:
        lowered.keep(disk, _plan_key(key, imported.sizes.variables), kernel.module)
        _keep_places(disk, key, places)


def is_kept(key: str) -> bool:
    """Whether `find` will probably find a kernel; no more is asked of the disk than that."""
    disk = disk_cache()
    return disk is None or disk.get(_places_key(key), "places") is not None


def make_beside(where: Beside, key: str, imported: Imported) -> None:
    """Have the kernel of the default rules for `cuda` made and kept by another process, where there
    is none yet."""
    disk = disk_cache()
    if disk is None or is_kept(key):
        return
    taken = build_beside(where, imported.tensors, key, sorted(imported.sizes.variables))
    if taken is not None:
        places = {each.tensor: n for n, each in enumerate(imported.inputs)}
        _keep_places(disk, key, [places[tensor] for tensor in taken])


def _keep_places(disk: DiskCache, key: str, places: list[int]) -> None:
    disk.put(_places_key(key), {"places": json.dumps(places).encode()})


def _plan_key(key: str, variables: Mapping[str, Var]) -> lowered.PlanKey:
    return lowered.PlanKey(key, tuple(variables[name] for name in sorted(variables)))


def _places_key(key: str) -> str:
    return hashlib.sha256(f"places {key}".encode()).hexdigest()
