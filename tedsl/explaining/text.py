"""An explanation as text.  Imports `data`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tedsl.explaining.data import (
    Explanation,
    KernelCost,
    Pair,
    Relation,
    Resources,
    StagePlace,
    Verdict,
    Way,
)
from tedsl.runtime.timing import format_seconds

MOST_WARPS = 8
"""Warps of which each thread may have all registers that it can name; with more, a program has no
more registers."""


def explanation_lines(found: Explanation) -> Iterator[str]:
    """Totals, each kernel, each pair."""
    calls = sum(bool(kernel.calls) for kernel in found.kernels)
    count = len(found.kernels) - calls
    also = f" and {calls} extern{'s' if calls != 1 else ''}" if calls else ""
    yield (
        f"{count} kernel{'s' if count != 1 else ''}{also} for {found.target}: "
        f"{scaled(found.nbytes)}B moved, {scaled(found.flops)}flop, "
        f"predicted {format_seconds(found.seconds)}"
    )
    if found.sizes:
        yield "with " + ", ".join(f"{name} = {value}" for name, value in found.sizes.items())
    floor = f"inputs and outputs once each: {scaled(found.least_bytes)}B"
    if found.workspace_bytes:
        floor += f"; workspaces hold {scaled(found.workspace_bytes)}B"
    yield floor
    yield bytes_text(found)
    for each in found.fallbacks:
        yield f"fallback: {each}"
    for kernel in found.kernels:
        if kernel.resources is not None and kernel.resources.spilled:
            yield f"spills: kernel {kernel.name}, {spilled_text(kernel.resources)}"
    if found.unfused is not None:
        yield unfused_text(found)
    for kernel in found.kernels:
        yield from kernel_lines(kernel, found.alone(kernel))
    for pair in found.pairs:
        yield from pair_lines(pair)


def bytes_text(found: Explanation) -> str:
    """Which bytes these are, and how many the others."""
    most = " at most" if any(kernel.doubtful for kernel in found.kernels) else ""
    if not found.caches:
        return "bytes of every access, without caches"
    return (
        "bytes from and to device memory, caches counted and cold at first; "
        f"of every access, without caches:{most} {scaled(found.accessed)}B"
    )


def unfused_text(found: Explanation) -> str:
    """The program without fusion, and what fusion saves."""
    other = found.unfused
    if other is None:
        return ""
    share = f" ({found.saved / other.nbytes:.0%})" if other.nbytes else ""
    verb = "saves" if found.saved >= 0 else "costs"
    longer = ""
    if found.saved > 0 and found.seconds > other.seconds:
        longest = max(found.kernels, key=lambda kernel: kernel.seconds)
        longer = (
            f"; yet predicted to take longer: the {longest.bound.value} of {longest.name}, which "
            "the schedule decides, is more than the bytes saved"
        )
    return (
        f"unfused: {other.launches} kernel{'s' if other.launches != 1 else ''}, "
        f"{scaled(other.nbytes)}B, predicted {format_seconds(other.seconds)}; "
        f"fusion {verb} {scaled(abs(found.saved))}B{share if found.saved >= 0 else ''}{longer}"
    )


def kernel_lines(kernel: KernelCost, alone: int = 0) -> Iterator[str]:
    """What a kernel computes, moves, does and waits for; `alone` are the bytes that its stages move
    as kernels of their own."""
    if kernel.calls:
        yield f"extern {kernel.name}, a call of {kernel.calls}"
    else:
        yield f"kernel {kernel.name}" + (f", {kernel.times} times" if kernel.times != 1 else "")
    yield f"  computes {', '.join(map(stage_text, kernel.stages))}"
    reads = buffers_text(kernel.reads)
    if kernel.cached:
        reads += f"; from the cache {buffers_text(kernel.cached)}"
    yield f"  reads    {reads}"
    yield f"  writes   {buffers_text(kernel.writes)}"
    if alone > kernel.nbytes:
        yield (
            f"  saves    {scaled(alone - kernel.nbytes)}B of the {scaled(alone)}B that its stages "
            "move as kernels of their own"
        )
    if kernel.calls:
        return
    yield f"  does     {scaled(kernel.flops)}flop, {kernel.intensity:.3g} per byte"
    memory = format_seconds(kernel.memory_seconds)
    if not kernel.memory_seconds and kernel.nbytes:
        memory = "not counted: between calls all of it stays in the last cache"
    yield (
        f"  bound    {kernel.bound.value}: {format_seconds(kernel.seconds)} predicted "
        f"(memory {memory}, compute "
        f"{format_seconds(kernel.compute_seconds)}, launch {format_seconds(kernel.launch_seconds)})"
    )
    for each in kernel.missed:
        yield f"  note     {each}"
        yield f"  do       {each.hint}"
    if kernel.resources is not None:
        yield f"  uses     {resources_text(kernel.resources)}"
        if kernel.resources.spilled:
            yield f"  do       {_against_spills(kernel.resources)}"
    for remark in kernel.remarks:
        yield f"  remark   {remark}"


def stage_text(stage: StagePlace) -> str:
    """`softmax.max (attached at softmax.i, computed 2 times)`."""
    joint = {
        Way.ATTACHED: " at ",
        Way.ONLINE: " along ",
        Way.WITH: " ",
        Way.LAST: " of ",
        Way.ACROSS: " programs ",
        Way.INLINED: " into ",
    }
    notes: list[str] = []
    if stage.way is not Way.ROOT:
        notes.append(stage.way.value + (joint.get(stage.way, " at ") * bool(stage.where)))
        notes[-1] += stage.where
    if stage.recomputed > 1.005:
        notes.append(f"computed {stage.recomputed:.3g} times")
    return f"{stage.stage} ({', '.join(notes)})" if notes else stage.stage


def resources_text(used: Resources) -> str:
    """Registers, spills, shared memory and occupancy."""
    how = "" if used.compiled else " (estimated)"
    if used.uncertain:
        how = f" (estimated: of {used.limit} registers; only te.build tells whether any spill)"
    return (
        f"{used.registers} registers, {spilled_text(used)}, "
        f"{scaled(used.shared)}B of shared memory{how}; "
        f"{used.programs} program{'s' * (used.programs != 1)} of {used.warps} "
        f"warp{'s' * (used.warps != 1)}, {used.occupancy:.0%} occupancy"
    )


def spilled_text(used: Resources) -> str:
    """What is spilled: bytes of the compiled code, registers of an estimate."""
    if not used.spilled:
        return "no spills"
    return f"{used.spilled} {'bytes of stack' if used.compiled else 'registers'} spilled"


def _against_spills(used: Resources) -> str:
    """What a person can change where the values of a program exceed its registers."""
    smaller = "make the tile smaller: fewer lanes of its vectorized loops"
    if used.warps >= MOST_WARPS:
        return smaller
    return f"give it more threads, s[T].launch(num_warps={2 * used.warps}), or {smaller}"


def pair_lines(pair: Pair) -> Iterator[str]:
    """Why a pair is not one kernel, and what would make it one."""
    if pair.relation is Relation.READS:
        head = f"{pair.second} reads {pair.first} from memory"
    else:
        shared = ", ".join(pair.shared)
        head = f"{pair.first} and {pair.second} both read {shared}"
    first, *rest = pair.reason.splitlines()
    yield f"not fused: {head}: {pair.verdict.value}: {first}"
    yield from rest
    best = pair.best
    if best is not None:
        verb = "do" if pair.verdict is Verdict.BETTER else "force"
        yield f"  {verb:<7} {call_text(best.code)}{_without(best.without)}"
    elif len(pair.attempts) > 1:
        tried = "; ".join(call_text(each.code) for each in pair.attempts[1:])
        yield f"  refused {len(pair.attempts) - 1} more: {tried}"


def call_text(code: tuple[str, ...]) -> str:
    """Calls on one line."""
    return "; ".join(code)


def _without(steps: tuple[int, ...]) -> str:
    if not steps:
        return ""
    listed = ", ".join(map(str, steps))
    return f", without step{'s' if len(steps) != 1 else ''} {listed} of the trace"


def buffers_text(sizes: Mapping[str, int]) -> str:
    """`x 67.1 MB, y 4 kB`."""
    return ", ".join(f"{name} {scaled(size)}B" for name, size in sizes.items()) or "nothing"


def scaled(count: float) -> str:
    """`count` with a decimal prefix."""
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            return f"{count / scale:.3g} {prefix}"
    return f"{count:g} "
