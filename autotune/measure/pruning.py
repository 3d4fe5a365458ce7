"""The tiers as a worker applies them to a candidate: the estimate first, then Triton stopped early,
and only then a whole compilation.

Imports `runtime`, `backends` by name, and the rest of `static`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tedsl.backends.triton.compile import compile_time as effort
from tedsl.cost.devices import device_for
from tedsl.cost.estimate import Estimate, estimate
from tedsl.devices import Device, GpuDevice
from tedsl.errors import BackendError, LowerError, ScheduleError
from tedsl.expr.nodes import Var
from tedsl.ir.nodes import Module
from tedsl.target import Target, TargetKind

AT = "seconds at "
"""What the features are called that are times at other sizes, with the place of the size."""
NEAR = 0.8
"""Of the device's shared memory: above it Triton is asked before the kernel is compiled."""
PATIENCE = 3
"""Times as long as for a default schedule a search lets compilers take, as told before."""


@dataclass(frozen=True, slots=True)
class Tiers:
    """What is known of the device, and the sizes that candidates are judged at."""

    target: Target
    facts: Device
    sizes: Mapping[str, int]

    @staticmethod
    def of(target: str, sizes: Mapping[str, int], device: str = "", features: str = "") -> Tiers:
        """The tiers for a target; `device` and `features` are those of the GPU where it is not
        looked at."""
        parsed = Target.parse(target)
        return Tiers(parsed, device_for(parsed, device, features), dict(sizes))

    def estimate(self, module: Module) -> Estimate:
        """Tier 0."""
        values: dict[Var, int | float] = {
            var: self.sizes[var.name] for var in module.sizes if var.name in self.sizes
        }
        return estimate(module, self.facts, values)

    def refusal(self, module: Module) -> str | None:
        """Why a candidate cannot launch, by what is known before it is compiled; None where nothing
        is known against it.

        Raises:
            BackendError: Triton refused the kernel.
        """
        found = self.estimate(module)
        if found.cannot_launch is not None or not isinstance(self.facts, GpuDevice):
            return found.cannot_launch
        if (long := self.too_long(module)) is not None:
            return long
        if found.shared <= NEAR * self.facts.shared_block:
            return None
        emitter: Any = importlib.import_module("tedsl.backends.triton.emit.module")
        early: Any = importlib.import_module("tedsl.backends.triton.compile.shared_memory_early")
        program = emitter.emit(module, Target(TargetKind.CUDA), self.facts)
        for one in early.allocate(program, self.facts.arch):
            if one.shared > self.facts.shared_block:
                return self.too_much(one.name, one.shared)
        return None

    def too_long(self, module: Module) -> str | None:
        """Why no candidate of a search waits for the compilers of a program; None when it may."""
        if not isinstance(self.facts, GpuDevice):
            return None
        _, seconds = effort.slowest(module)
        if seconds <= PATIENCE * effort.LIMIT:
            return None
        return (
            f"compilers would take some {seconds:.0f} s, of {PATIENCE * effort.LIMIT:.0f} allowed"
        )

    def too_much(self, name: str, shared: float) -> str | None:
        """Why a kernel of so many bytes of shared memory cannot launch; None when it can."""
        facts = self.facts
        if not isinstance(facts, GpuDevice) or shared <= facts.shared_block:
            return None
        allowed = facts.shared_block
        return f"{name}: {shared:.0f} bytes of shared memory, the device allows {allowed}"


def estimates(
    tiers: Tiers, requests: Sequence[Mapping[str, Any]], lowered: Callable[[Any], Module]
) -> list[dict[str, float] | None]:
    """The features of candidates; None for one that cannot be lowered or launched.

    Args:
        tiers: of the device.
        requests: that describe the candidates; `at` names other sizes whose times are wanted too.
        lowered: a request's program.
    """
    found: list[dict[str, float] | None] = []
    for request in requests:
        others = [replace(tiers, sizes=sizes) for sizes in request.get("at", ())]
        try:
            module = lowered(request)
            one = tiers.estimate(module)
            times = [_seconds(other.estimate(module)) for other in others]
        except (ScheduleError, LowerError, BackendError):
            found.append(None)
            continue
        features = {**one.features, **{f"{AT}{n}": time for n, time in enumerate(times)}}
        if one.cannot_launch is not None or tiers.too_long(module) is not None:
            features["seconds"] = _never(one)
        found.append(features)
    return found


def _seconds(one: Estimate) -> float:
    """The predicted time, very long where it cannot launch."""
    return one.seconds if one.cannot_launch is None else _never(one)


def _never(one: Estimate) -> float:
    return 1e3 * max(one.seconds, 1e-6)
