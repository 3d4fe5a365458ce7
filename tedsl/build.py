"""`build` and `lower`: from a tensor or a schedule to a kernel or to loop IR.

The last room of the pipeline below the public names; imports everything above it, and the default
rules of `tedsl.schedules` by name when a tensor comes without a schedule.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

from tedsl.errors import BackendError
from tedsl.expr.tensor import Operation, Tensor
from tedsl.ir.nodes import Module
from tedsl.runtime.executors import check_target, make_executor
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.schedule import Schedule
from tedsl.target import Target, TargetKind

# The empty package is bound now, so that loading the lowering later does not hide `te.lower`.
importlib.import_module("tedsl.lower")

Buildable = Schedule | Tensor | Operation | Sequence[Tensor | Operation]
Dump = Callable[[str, Module], None]


def build(
    obj: Buildable,
    target: str | Target | None = None,
    *,
    name: str | None = None,
    cache: bool = True,
) -> Kernel:
    """Compile a computation.

    Args:
        obj: a schedule; or tensors to compute, scheduled by the default rules.
        target: `"cpu"`, `"cuda"`, `"cuda:sm_90"` (compile only) or `"triton-interpret"`; by default
            `"cuda"` where there is a GPU and PyTorch to reach it, else `"cpu"`.
        name: what the kernel calls itself in messages and listings.
        cache: use the on-disk cache of generated code.

    Returns:
        The kernel; call it with the inputs in the order of `kernel.signature`.

    Raises:
        LowerError: the schedule cannot be carried out on the target.
        BackendError: the target's compiler or device refused, or there is no such device.
    """
    chosen = default_target() if target is None else Target.parse(target)
    check_target(chosen)
    seconds: dict[str, float] = {}
    with _timed(seconds, "schedule"):
        schedule = _scheduled(obj, chosen)
    with _timed(seconds, "lower"):
        module = _lowered(schedule, chosen, name)
    with _timed(seconds, "compile"):
        executor = make_executor(module, chosen, cache=cache)
    return Kernel(module, chosen, executor, schedule=schedule, build_seconds=seconds)


def lower(
    obj: Buildable,
    target: str | Target | None = None,
    *,
    name: str | None = None,
    dump: Dump | None = None,
    check: bool = False,
) -> Module:
    """The loop IR that `build` would compile; `print` shows it.

    Args:
        obj: as for `build`.
        target: as for `build`.
        name: as for `build`.
        dump: called with the name of each pass and the module after it.
        check: verify the rules of the level after each pass.

    Raises:
        LowerError: the schedule cannot be carried out on the target.
    """
    chosen = default_target() if target is None else Target.parse(target)
    return _lowered(_scheduled(obj, chosen), chosen, name, dump, check)


def default_target() -> Target:
    """`cuda` where an NVIDIA GPU and PyTorch are, else `cpu`.  Imports neither."""
    device = any(Path(path).exists() for path in ("/dev/nvidiactl", "/dev/dxg"))
    usable = device and importlib.util.find_spec("torch") and importlib.util.find_spec("triton")
    return Target(TargetKind.CUDA if usable else TargetKind.CPU)


def _scheduled(obj: object, target: Target) -> Schedule:
    """A copy of the user's schedule, so that the kernel's does not change later, or the rules'."""
    if isinstance(obj, Schedule):
        return obj.copy()
    several = isinstance(obj, (list, tuple))
    items = cast(Sequence[object], obj) if several else (obj,)
    if not items or not all(isinstance(item, (Tensor, Operation)) for item in items):
        raise BackendError(
            f"{type(obj).__name__} cannot be built",
            subject="build",
            facts=[("allowed", "a schedule, a tensor, or a list of tensors")],
            hint="pass the tensors that te.compute returned, or te.create_schedule of them",
        )
    rules = importlib.import_module("tedsl.schedules")
    schedule: Schedule = rules.default_schedule(list(items), target)
    return schedule


def _lowered(
    schedule: Schedule,
    target: Target,
    name: str | None,
    dump: Dump | None = None,
    check: bool = False,
) -> Module:
    module = _lowering()(schedule.plan, target, dump=dump, check=check)
    return module if name is None else replace(module, name=name)


def _lowering() -> Callable[..., Module]:
    """The lowering, loaded when it is first used: `import tedsl` stays light."""
    return cast("Callable[..., Module]", importlib.import_module("tedsl.lower.pipeline").lower)


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Generator[None]:
    begin = time.perf_counter()
    yield
    seconds[phase] = time.perf_counter() - begin
