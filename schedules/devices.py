"""The device that a schedule is made for, as the rules ask it."""

from __future__ import annotations

from tedsl.devices import CpuDevice, GpuDevice
from tedsl.errors import InternalError
from tedsl.scheduling.handles.schedule import Schedule


def gpu_of(s: Schedule) -> GpuDevice:
    """The GPU that a schedule is made for."""
    if not isinstance(s.device, GpuDevice):
        raise InternalError(f"a rule for GPUs was asked of a schedule for {s.device}")
    return s.device


def cpu_of(s: Schedule) -> CpuDevice:
    """The processor that a schedule is made for."""
    if not isinstance(s.device, CpuDevice):
        raise InternalError(f"a rule for the CPU was asked of a schedule for {s.device}")
    return s.device
