"""How long a kernel should take on a CPU: vector instructions, loads and stores, chains of
dependent sums, and what each cache has to fetch from behind it.

A loop's data is fetched once when one run of it fits into a cache; data that the loop around does
not move on is then kept as well.  Imports `ir` and the other files of `static`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tedsl.cost.accesses import Digits, Mover, Probe
from tedsl.cost.devices import Weights
from tedsl.cost.dram_traffic import Traffic
from tedsl.cost.gpu import smooth
from tedsl.cost.instruction_costs import Operations, operations
from tedsl.cost.sampled_indices import Values, layout
from tedsl.cost.statement_list import Leaf, Loop, Nest, nest_of
from tedsl.devices import CpuDevice
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Expr
from tedsl.expr.visit import walk
from tedsl.ir.nodes import (
    Accumulate,
    Buffer,
    Dot,
    Func,
    Load,
    LoopKind,
    Scope,
    Store,
    TileAxis,
)
from tedsl.ir.visit import own_exprs, tile_axes

LINE = 64
PORTS = 2.0
"""Vector instructions, and loads, of a cycle."""
CHAIN = 4.0
"""Cycles until a sum can be added to."""
FROM_L2, FROM_L3 = 40.0, 14.0
"""Bytes that a core takes from a cache in a cycle."""
KEPT = 0.75
"""Of a cache, what a loop's data may fill."""
NARROW_GATHER = 1.5
"""Cycles of an element that is loaded alone and put into a vector."""


@dataclass(frozen=True, slots=True)
class CpuEstimate:
    """The figures of one kernel: seconds, vector instructions, bytes from behind each cache.

    `core_seconds`, `memory_seconds` and `enter_seconds` are what the cores, device memory and the
    start of parallel loops take alone; `traffic` is what moves when the caches are cold.
    """

    name: str
    seconds: float
    compute: float
    ports: float
    chains: float
    from_l2: float
    from_l3: float
    dram: float
    flops: float
    threads: float
    vectors: float
    lanes: float
    entered: float
    core_seconds: float
    memory_seconds: float
    enter_seconds: float
    traffic: Mapping[Buffer, Traffic]


def estimate_on_cpu(
    func: Func, sizes: Mapping[Expr, Values], facts: CpuDevice, weights: Weights
) -> CpuEstimate:
    """The figures of one kernel."""
    nest = nest_of(func, sizes, parallel=True)
    mover = Mover(nest, 1)
    return _CpuModel(nest, mover, facts, weights).estimate()


@dataclass(frozen=True, slots=True, eq=False)
class _Access:
    """An access and how it steps through memory along the tile axes and the loops."""

    leaf: Leaf
    buffer: Buffer
    base: int
    tile: Mapping[TileAxis, int]
    loops: tuple[Digits, ...]
    writes: bool

    def nbytes(self, depth: int, extra: Mapping[TileAxis, int]) -> float:
        """Bytes of cache lines that one run of the loops from `depth` on touches."""
        steps = {**self.tile, **extra}
        found = layout([(step, t.extent) for t, step in steps.items()], self.base)
        runs = max(1, found.elements // max(found.run, 1))
        return runs * -(-found.run * self.buffer.dtype.nbytes // LINE) * LINE


class _CpuModel:
    """One kernel."""

    def __init__(self, nest: Nest, mover: Mover, facts: CpuDevice, weights: Weights) -> None:
        self.nest = nest
        self.facts = facts
        self.weights = weights
        self.mover = mover
        bits = facts.vector_bits
        room = facts.vector_registers - 2
        self.in_registers = {
            b
            for b in nest.scopes
            if b.scope is not Scope.GLOBAL and _size(mover, b) * b.dtype.bits / bits <= room
        }
        self.accesses = [a for leaf in nest.leaves for a in self._accesses(leaf)]
        self.fakes: dict[tuple[int, int, int], TileAxis] = {}

    def estimate(self) -> CpuEstimate:
        """The figures."""
        facts, clock = self.facts, self.facts.clock
        compute = ports = chains = flops = vectors = lanes = 0.0
        for leaf in self.nest.leaves:
            found = _counted(leaf)
            cost = self._cycles(leaf, found)
            compute += cost[0] * leaf.times
            ports += cost[1] * leaf.times
            chains += cost[2] * leaf.times
            flops += found.flops * leaf.times
            vectors += cost[0] * PORTS * leaf.times
            lanes += cost[3] * cost[0] * leaf.times
        share, entered = self._parallel()
        l2 = self._traffic(facts.l1)
        l3 = self._traffic(facts.l2)
        dram = self._traffic(facts.l3)
        core = smooth(compute, ports, chains, l2 / FROM_L2, l3 / FROM_L3, sharpness=4.0)
        alone, memory = core / clock / share, dram / facts.bandwidth
        seconds = smooth(alone, memory, sharpness=self.weights.sharpness)
        begun = entered * self.weights.enter
        return CpuEstimate(
            self.nest.func.name, seconds + begun, compute, ports, chains, l2, l3, dram, flops,
            share, vectors, lanes / max(compute, 1.0), entered, alone, memory, begun,
            self.cold_traffic(),
        )  # fmt: skip

    def _parallel(self) -> tuple[float, float]:
        """How many cores work in the mean, and how often a parallel loop is entered."""
        shares: list[tuple[float, float]] = []
        entered = 0.0
        covered = -1
        for loop, begin, end in sorted(self.nest.loops, key=lambda item: (item[1], -item[2])):
            parallel = loop.loop.kind in (LoopKind.PARALLEL, LoopKind.PROGRAM)
            if not parallel or begin < covered or begin == end:
                continue
            covered = end
            turns = -(-loop.trips // self.facts.cores)
            weight = sum(leaf.times * max(leaf.points, 1) for leaf in self.nest.leaves[begin:end])
            shares.append((weight, loop.trips / max(turns, 1.0)))
            inner = self.nest.leaves[begin]
            depth = next(n for n, own in enumerate(inner.loops) if own is loop)
            entered += inner.times / max(math.prod(own.trips for own in inner.loops[depth:]), 1e-9)
        total = sum(leaf.times * max(leaf.points, 1) for leaf in self.nest.leaves) or 1.0
        inside = sum(weight for weight, _ in shares)
        seconds = (total - inside) + sum(weight / max(cores, 1.0) for weight, cores in shares)
        return total / max(seconds, 1e-9), entered

    # Instructions.

    def _accesses(self, leaf: Leaf) -> list[_Access]:
        found: list[tuple[Buffer, Sequence[Expr], bool]] = [
            (n.buffer, n.indices, False)
            for n in walk(*own_exprs(leaf.stmt))
            if isinstance(n, Load) and n.buffer not in self.in_registers
        ]
        stmt = leaf.stmt
        buffers = stmt.buffers if isinstance(stmt, Accumulate) else (stmt.buffer,)
        found += [(b, stmt.indices, True) for b in buffers if b not in self.in_registers]
        if not found:
            return []
        probe = Probe(self.mover, leaf)
        result: list[_Access] = []
        for buffer, indices, writes in found:
            base, tile, loops = probe.steps(buffer, indices)
            steps = dict(zip(tile_axes(stmt), tile, strict=True))
            result.append(_Access(leaf, buffer, base, steps, tuple(loops), writes))
        return result

    def _cycles(self, leaf: Leaf, found: Operations) -> tuple[float, float, float, float]:
        """Cycles of a run for arithmetic, for loads and stores, for dependent sums; and lanes."""
        stmt = leaf.stmt
        mine = [a for a in self.accesses if a.leaf is leaf]
        simd = _simd_axis(tile_axes(stmt), mine)
        bytes_each = max((b.dtype.nbytes for b in _buffers(leaf)), default=4)
        native = max(1, self.facts.vector_bits // (8 * bytes_each))
        extent = simd.extent if simd is not None else 1
        lanes = min(native, extent)
        padded = -(-extent // lanes) * lanes / extent
        compute = (found.plain + found.special) * padded / lanes / PORTS
        if isinstance(stmt, Accumulate) and _is_product(stmt):
            compute /= 2  # a product and its sum are one instruction
        ports = 0.0
        for access in mine:
            points = math.prod(t.extent for t, step in access.tile.items() if step)
            step = access.tile.get(simd, 0) if simd is not None else 0
            each = 1 / (lanes if step else 1) / PORTS if step in (0, 1) else NARROW_GATHER
            twice = 2.0 if access.writes and isinstance(stmt, Accumulate) else 1.0
            ports += points * each * twice
        return compute, ports, self._chain(leaf, found, simd, lanes), float(lanes)

    def _chain(self, leaf: Leaf, found: Operations, simd: TileAxis | None, lanes: int) -> float:
        """Cycles that sums into one place take one after the other."""
        if not isinstance(leaf.stmt, Accumulate) or (not leaf.loops and found.folded <= 1):
            return 0.0
        kept = frozenset(walk(*leaf.stmt.indices))
        if simd is not None and simd.axis not in kept:
            return CHAIN * max(1.0, found.folded / lanes / 4)
        return CHAIN * found.folded

    # Caches.

    def _traffic(self, capacity: int) -> float:
        """Bytes that a cache of this size fetches from behind it."""
        total = 0.0
        seen: dict[tuple[Buffer, int], float] = {}
        for access, depth, amount in self._misses(capacity):
            local = access.buffer.scope is not Scope.GLOBAL
            if depth == 0 and (local or capacity == self.facts.l3):
                amount = 0.0  # a call finds it where the one before has left it
            elif access.writes and not local:
                amount *= 2.0
            key = (access.buffer, self._place(access, depth))
            before = seen.get(key, 0.0)
            total += max(0.0, amount - before)
            seen[key] = max(before, amount)
        return total

    def cold_traffic(self) -> dict[Buffer, Traffic]:
        """Bytes of each buffer from and to device memory when the caches are cold at first."""
        found: dict[Buffer, Traffic] = {}
        seen: dict[tuple[Buffer, bool, int], float] = {}
        for access, depth, amount in self._misses(self.facts.l3):
            buffer = access.buffer
            if buffer.scope is not Scope.GLOBAL:
                continue
            key = (buffer, access.writes, self._kept_in(access, depth))
            share = max(0.0, amount - seen.get(key, 0.0))
            seen[key] = max(amount, seen.get(key, 0.0))
            whole = float(_size(self.mover, buffer) * buffer.dtype.nbytes)
            known = found.get(buffer, Traffic())
            if access.writes:
                known = Traffic(known.read, min(whole, known.written + share))
                if isinstance(access.leaf.stmt, Accumulate) and not self._is_new(access):
                    known = Traffic(min(whole, known.read + share), known.written)
            elif not self._is_made_here(access):
                read = known.read + share
                known = Traffic(min(whole, read) if depth == 0 else read, known.written)
            found[buffer] = known
        return found

    def _is_made_here(self, access: _Access) -> bool:
        """True when the kernel has written what it reads."""
        places = [a.leaf.place for a in self.accesses if a.buffer is access.buffer and a.writes]
        return any(place < access.leaf.place for place in places)

    def _is_new(self, access: _Access) -> bool:
        """True when what is accumulated into was set by the kernel before."""
        return any(
            a.buffer is access.buffer and a.writes and isinstance(a.leaf.stmt, Store)
            for a in self.accesses
        )

    def _misses(self, capacity: int) -> Iterator[tuple[_Access, int, float]]:
        """Each access, from which of its loops on a cache of this size keeps its data, and the
        bytes that it alone fetches."""
        needs = self._needs()
        for access in self.accesses:
            loops = access.leaf.loops
            depth = 0
            while depth < len(loops) and needs.get(id(loops[depth]), 0.0) > capacity * KEPT:
                depth += 1
            yield access, depth, self._fetched(access, depth)

    def _place(self, access: _Access, depth: int) -> int:
        """Which run of loops it is that finds its data in the cache."""
        loops = access.leaf.loops
        return id(loops[depth]) if depth < len(loops) else id(access.leaf)

    def _kept_in(self, access: _Access, depth: int) -> int:
        """The loop of which each iteration finds what it touches twice in the last cache."""
        around = access.leaf.loops[depth - 1] if depth else None
        if around is None:
            return 0
        fits = self._needs(inside=1).get(id(around), 0.0) <= self.facts.l3 * KEPT
        return id(around) if fits else self._place(access, depth)

    def _fetched(self, access: _Access, depth: int) -> float:
        """Bytes of one access, when the loops from `depth` on find their data in the cache."""
        leaf, loops = access.leaf, access.leaf.loops
        inside = math.prod(max(loop.trips, 1e-9) for loop in loops[depth:])
        entries = leaf.times / inside
        if depth:
            step, stands = access.loops[depth - 1][0]
            if not step:
                entries /= min(stands, max(loops[depth - 1].trips, 1e-9))
        return access.nbytes(depth, self._extra(access, depth)) * max(entries, 1.0)

    def _extra(self, access: _Access, depth: int) -> Mapping[TileAxis, int]:
        found: dict[TileAxis, int] = {}
        for loop, digits in list(zip(access.leaf.loops, access.loops, strict=True))[depth:]:
            for place, (step, count) in enumerate(digits):
                if step:
                    found[self._fake(loop, place, count)] = step
        return found

    def _fake(self, loop: Loop, place: int, count: int) -> TileAxis:
        """A loop, or a part of one, as an axis of a tile."""
        key = (id(loop), place, count)
        if key not in self.fakes:
            self.fakes[key] = TileAxis(Axis(loop.loop.axis.name), count)
        return self.fakes[key]

    def _needs(self, inside: int = 0) -> dict[int, float]:
        """Bytes that one run of each loop touches, or one iteration, by the loop's identity."""
        found: dict[int, dict[Buffer, float]] = {}
        for access in self.accesses:
            for depth, loop in enumerate(access.leaf.loops):
                # What one iteration touches decides whether the next finds it again.
                extra = self._extra(access, depth + inside)
                need = access.nbytes(depth + inside, extra)
                mine = found.setdefault(id(loop), {})
                mine[access.buffer] = max(mine.get(access.buffer, 0.0), need)
        return {loop: sum(each.values()) for loop, each in found.items()}


def _counted(leaf: Leaf) -> Operations:
    stmt = leaf.stmt
    masks = () if isinstance(stmt, Dot) or stmt.mask is None else (stmt.mask,)
    match stmt:
        case Store():
            return operations(stmt, (stmt.value, *masks), cpu=True)
        case Accumulate():
            return operations(stmt, (*stmt.values, *masks), cpu=True)
        case Dot():
            return operations(stmt, (stmt.lhs, stmt.rhs), cpu=True)


def _buffers(leaf: Leaf) -> Sequence[Buffer]:
    stmt = leaf.stmt
    return stmt.buffers if isinstance(stmt, Accumulate) else (stmt.buffer,)


def _is_product(stmt: Accumulate) -> bool:
    """True when each value is a product that the sum takes at once."""
    value = stmt.values[0]
    added = stmt.reducer.operator is BinaryOp.ADD
    return added and isinstance(value, Binary) and value.op is BinaryOp.MUL


def _simd_axis(tile: Sequence[TileAxis], accesses: Sequence[_Access]) -> TileAxis | None:
    """The axis that becomes the lanes of a vector: most accesses lie still or side by side."""
    best: TileAxis | None = None
    most = (-1, -1)
    for axis in tile:
        if axis.extent <= 1:
            continue
        steps = [a.tile.get(axis, 0) for a in accesses]
        score = (
            2 * sum(step == 1 for step in steps) + sum(step == 0 for step in steps),
            sum(step == 1 for step in steps),
        )
        if score >= most:
            best, most = axis, score
    return best


def _size(mover: Mover, buffer: Buffer) -> int:
    return math.prod(mover.shape(buffer))
