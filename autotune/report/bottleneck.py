"""Which limit binds the winner: what it takes of the device, from its code and from the static
model.  Imports `cost`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tedsl.cost.estimate import Estimate
from tedsl.cost.roofline import Roofline
from tedsl.devices import CpuDevice, Device, GpuDevice
from tedsl.runtime.timing import format_seconds

BINDS = 0.6
"""The share of a unit's peak from which on it is said to bind."""
TAIL = 0.2
"""The share of the device that the last wave of programs may leave idle."""
HIDES = 8
"""Warps on a processor below which little of the latency is hidden."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What binds, in words, and the figures that say so: (name, text)."""

    binding: str
    rows: tuple[tuple[str, str], ...]


def limits_of(
    seconds: float,
    found: Estimate,
    facts: Device,
    roof: Roofline | None,
    resources: Mapping[str, float],
) -> Limits:
    """Say what binds a kernel.

    Args:
        seconds: one call takes.
        found: by the static model.
        facts: of the device.
        roof: of the computation.
        resources: of the compiled code, as far as known.
    """
    shares = _shares(seconds, found, facts, roof)
    rows = [(name, f"{100 * min(share, 1.0):.0f} % of {peak}") for name, share, peak in shares]
    waiting = ""
    if isinstance(facts, GpuDevice):
        occupancy = list(_occupancy(found, facts, resources))
        rows += [(name, text) for name, text, _ in occupancy]
        waiting = next((why for _, _, why in occupancy if why), "")
    if found.seconds:
        rows.append(("model", f"{format_seconds(found.seconds)} predicted"))
    if (
        isinstance(facts, CpuDevice)
        and found.features.get("threads", facts.cores) < facts.cores / 2
    ):
        waiting = f"cores: {found.features['threads']:.2g} of {facts.cores} work"
    name, share, _ = max(shares, key=lambda row: row[1], default=("", 0.0, ""))
    if share >= BINDS:
        binding = f"{name}: {100 * min(share, 1.0):.0f} % of its peak"
    else:
        binding = waiting or f"no unit is near its peak ({name} is nearest): latency, or overhead"
    return Limits(binding, tuple(rows))


def _shares(
    seconds: float, found: Estimate, facts: Device, roof: Roofline | None
) -> list[tuple[str, float, str]]:
    """The units, the share of each one's peak that the kernel reaches, and that peak."""
    rows: list[tuple[str, float, str]] = []
    if found.bytes:
        rate = facts.bandwidth if roof is None else roof.bandwidth
        memory = "memory" if isinstance(facts, CpuDevice) else "device memory"
        peak = f"{rate / 1e9:,.0f} GB/s, {scaled(found.bytes)}B moved"
        rows.append((memory, found.bytes / rate / seconds, peak))
    if roof is not None and roof.flops:
        peak = f"{scaled(roof.peak)}flop/s, {scaled(roof.flops)}flop"
        rows.append(("arithmetic", roof.compute_seconds / seconds, peak))
    if isinstance(facts, CpuDevice):
        rows += _core(seconds, found.features, facts)
    if isinstance(facts, GpuDevice) and "cache_bytes" in found.features:
        nbytes = 2.0 ** found.features["cache_bytes"]
        peak = f"{facts.l2_bandwidth / 1e9:,.0f} GB/s, {scaled(nbytes)}B through it"
        rows.append(("second-level cache", nbytes / facts.l2_bandwidth / seconds, peak))
    return rows


def _core(
    seconds: float, features: Mapping[str, float], facts: CpuDevice
) -> Iterator[tuple[str, float, str]]:
    """Cycles of the cores' units in the longest kernel, by the model."""
    threads = max(1.0, features.get("threads", 1.0))
    names = (
        ("compute", "vector units"),
        ("ports", "loads and stores"),
        ("chains", "chains of dependent sums"),
    )
    for feature, name in names:
        cycles = 2.0 ** features.get(feature, -40.0)
        if cycles >= 1.0:
            share = cycles / threads / facts.clock / seconds
            yield name, share, f"the time, {scaled(cycles)}cycles on {threads:.3g} cores"


def _occupancy(
    found: Estimate, facts: GpuDevice, resources: Mapping[str, float]
) -> Iterator[tuple[str, str, str]]:
    """Figures about how full the processors are: name, text, and what is wrong, if anything."""
    warps = resources.get("num_warps") or found.features.get("warps", 4.0)
    rooms = {"warps": facts.warps_sm / warps, "programs": float(facts.blocks_sm)}
    registers = resources.get("registers") or found.registers
    if registers:
        rooms["registers"] = facts.registers_sm / (registers * warps * 32)
    shared = resources.get("shared", float(found.shared))
    if shared:
        rooms["shared memory"] = facts.shared_sm / (shared + facts.shared_reserved)
    limit = min(rooms, key=lambda name: math.floor(rooms[name]))
    resident = max(1, math.floor(rooms[limit]))
    few = resident * warps < HIDES and limit in ("registers", "shared memory")
    yield (
        "occupancy",
        f"{resident} programs of {warps:.0f} warps on a processor, by {limit} "
        f"({registers:.0f} registers, {shared / 1024:.0f} KiB shared memory)",
        f"{limit}: only {resident * warps:.0f} warps on a processor hide latency" if few else "",
    )
    spilled = resources.get("spills") or resources.get("stack", 0.0)
    if spilled:
        yield "spills", f"{spilled:.0f} bytes of each thread", "registers: some are spilled"
    programs = 2.0 ** found.features.get("programs", 0.0)
    waves = programs / (facts.sms * resident)
    tail = 1.0 - waves / math.ceil(waves)
    short = "the device is not full" if waves < 1 else f"the last of them {100 * tail:.0f} % idle"
    yield (
        "waves",
        f"{waves:.2f} of {facts.sms * resident} programs, {short}",
        f"waves: {short}" if tail > TAIL and waves < 4 else "",
    )


def scaled(value: float) -> str:
    """`12.3 G`: a number with the prefix that suits it."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value:.3g} "
