"""A kernel built in a process beside the one that is going to call it, which finds it on disk.

That process has no PyTorch and touches no device: it is told what the GPU is.  Imports `build` and
`workload`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tedsl.backends.processes.beside import Beside, made_beside
from tedsl.build import build
from tedsl.detect import take_for_here
from tedsl.devices import gpu_from_json, gpu_to_json
from tedsl.dtypes import DType
from tedsl.errors import TuneError
from tedsl.runtime.cache import lowered
from tedsl.runtime.cache.disk import disk_cache
from tedsl.target import Target
from tedsl.tensor.axis import size_var
from tedsl.tensor.tensor import Tensor
from tedsl.workload.workload import Workload

FUNCTION = f"{__name__}:build_from_json"
SECONDS = 0.6
"""About how long it takes."""


def build_beside(
    where: Beside, outputs: Sequence[Tensor], key: str, sizes: Sequence[str]
) -> list[Tensor] | None:
    """Have `outputs` built for the GPU that is here, by the default rules, and kept on disk.

    Args:
        where: who is asked.
        outputs: what to compute.
        key: under what the module is kept.
        sizes: the names of its symbolic sizes, in the order in which the module is kept.

    Returns:
        The inputs that the kernel takes, in its order; None where it was not built.
    """
    try:
        workload = Workload.of(outputs)
    except TuneError:
        return None  # not all that can be built can be written down
    given = {
        "workload": workload.to_json(),
        "gpu": gpu_to_json(Target.parse("cuda").resolve_gpu()),
        "key": key,
        "sizes": list(sizes),
    }
    made = made_beside(where, FUNCTION, given)
    if made is None:
        return None
    return [workload.placeholders[place].outputs[0] for place in made["places"]]


def build_from_json(given: dict[str, Any]) -> dict[str, Any]:
    """Build what `build_beside` has written down, in another process."""
    take_for_here(gpu_from_json(given["gpu"]))
    workload = Workload.from_json(given["workload"])
    kernel = build(list(workload.outputs), "cuda")
    sizes = {name: size_var(name, DType.int64) for name in given["sizes"]}
    sizes |= {size.name: size for size in workload.variables}
    disk = disk_cache()
    if disk is not None:
        lowered.keep(
            disk,
            lowered.PlanKey(given["key"], tuple(sizes[name] for name in given["sizes"])),
            kernel.module,
        )
    made: Any = kernel.schedule
    numbers = {op.outputs[0]: place for place, op in enumerate(workload.placeholders)}
    inputs = (made[buffer.name].op.outputs[0] for buffer in kernel.module.inputs)
    return {"places": [numbers[tensor] for tensor in inputs]}
