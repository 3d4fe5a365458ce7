"""How long a kernel should take on a GPU: throughput of each unit, latency that nothing hides,
waves of programs, traffic with what the second-level cache saves.

A program is a chain of statements.  Alone it takes the sum of what each takes, with the latencies
that its pipeline does not hide; several on one processor share its units.  The processors together
share the cache and device memory.  Imports `ir` and the other files of `static`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tedsl.cost.accesses import FIRST_LINE, Move, Mover
from tedsl.cost.devices import Weights
from tedsl.cost.dram_traffic import MASKED, QUICK, Traffic, total, traffic_of
from tedsl.cost.instruction_costs import Operations, operations
from tedsl.cost.l2_sharing import asked
from tedsl.cost.register_pressure import (
    THREADS,
    Held,
    adds_steps,
    held,
    parts_in,
    pipelined,
    uses_groups,
    uses_matrix_units,
)
from tedsl.cost.running_folds import count_combinations
from tedsl.cost.sampled_indices import Values
from tedsl.cost.split_products import PRODUCTS, is_split, stands
from tedsl.cost.statement_list import Leaf, Nest, nest_of
from tedsl.devices import GpuDevice
from tedsl.dtypes import DType
from tedsl.expr.nodes import Expr
from tedsl.expr.visit import walk
from tedsl.ir.nodes import Accumulate, Buffer, Dot, Func, Load, Scope, Store
from tedsl.ir.visit import tile_axes

LARGEST = 1 << 20
"""Elements that Triton allows in one value."""
SFU_LANES = 16
LINE = 64
"""Bytes that a processor takes from the second-level cache in a cycle."""
SPLIT, CHECKED = 3.0, 4.0
"""Instructions for each element that is split into parts, and for each sum of their products."""
BANKS, SINGLE, CROSSED = 32, 4, 4
"""Of shared memory; bytes of an element that is copied alone; and how many accesses it takes to put
back what lies across the rows that groups of warps multiply."""
NEIGHBOURS = 8
"""Elements that a thread loads in one access, and folds by itself, at most."""


@dataclass(slots=True)
class Unit:
    """Cycles of one processor's units that one program takes."""

    issue: float = 0.0
    special: float = 0.0
    matrix: float = 0.0
    wide: float = 0.0
    memory: float = 0.0
    first: float = 0.0
    shared: float = 0.0

    def add(self, other: Unit, times: float) -> None:
        """Count `other` so many times."""
        self.issue += other.issue * times
        self.special += other.special * times
        self.matrix += other.matrix * times
        self.wide += other.wide * times
        self.memory += other.memory * times
        self.first += other.first * times
        self.shared += other.shared * times

    def loading(self) -> float:
        """Cycles until memory has been moved, through the cache of the processor."""
        return max(self.memory, self.first)

    def busiest(self) -> float:
        """Cycles of the unit that takes longest."""
        own = max(self.issue, self.special, self.matrix, self.wide, self.shared)
        return max(own, self.loading())


@dataclass(slots=True)
class _Chain:
    """An iteration of a pipelined loop, in seconds: what is computed, what is copied meanwhile, and
    how long a copy takes to arrive."""

    work: float = 0.0
    copies: float = 0.0
    wait: float = 0.0

    def pace(self, stages: int) -> float:
        """Seconds from one iteration to the next."""
        return max(self.work, self.copies, self.wait / (stages - 1))


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """The figures of one kernel; times are in seconds, traffic in bytes of one launch."""

    name: str
    seconds: float
    held: Held
    warps: int
    stages: int
    programs: int
    occupancy: int
    waves: float
    dram: float
    l2: float
    traffic: Mapping[Buffer, Traffic]
    flops: float
    special: float
    instructions: float
    alone: float
    busy: float
    processor: float
    memory: float
    cache: float
    vector: float
    imbalance: float
    trips: float
    cannot_launch: str | None


def estimate_kernel(
    func: Func,
    sizes: Mapping[Expr, Values],
    facts: GpuDevice,
    weights: Weights,
    resident: frozenset[Buffer] = frozenset(),
    slots: int = QUICK,
) -> KernelEstimate:
    """The figures of one kernel.

    Args:
        func: at TILE level.
        sizes: values of the runtime sizes.
        facts: of the device.
        weights: of the model.
        resident: buffers that the kernel before has left in the second-level cache.
        slots: runs of programs that are looked at for what they share.
    """
    nest = nest_of(func, sizes)
    warps = func.launch.warps
    mover = Mover(nest, facts.sms)
    counted = [(leaf, _operations(leaf, warps * THREADS)) for leaf in nest.leaves]
    moves = list[Move]()
    for leaf, found in counted:
        own = mover.moves(leaf, found)
        moves += own
        if isinstance(leaf.stmt, Accumulate) and leaf.stmt.along is not None:
            count_combinations(leaf.stmt, found, own, warps)
    figures = held(nest, moves, warps, facts)
    model = _Model(nest, counted, moves, mover, figures, warps, facts, weights, slots)
    return model.estimate(resident)


def _operations(leaf: Leaf, threads: int) -> Operations:
    stmt = leaf.stmt
    match stmt:
        case Dot():
            return operations(stmt, (stmt.lhs, stmt.rhs), threads)
        case Store():
            masks = () if stmt.mask is None else (stmt.mask,)
            return operations(stmt, (stmt.value, *masks), threads)
        case Accumulate():
            masks = () if stmt.mask is None else (stmt.mask,)
            return operations(stmt, (*stmt.values, *masks), threads)


class _Model:
    """Everything about one kernel, put together."""

    def __init__(
        self,
        nest: Nest,
        counted: Sequence[tuple[Leaf, Operations]],
        moves: Sequence[Move],
        mover: Mover,
        figures: Held,
        warps: int,
        facts: GpuDevice,
        weights: Weights,
        slots: int,
    ) -> None:
        self.nest = nest
        self.counted = counted
        self.moves = moves
        self.mover = mover
        self.held = figures
        self.warps = warps
        self.facts = facts
        self.weights = weights
        self.slots = slots
        self.again = repeated(moves)
        self.occupancy = self._occupancy()
        self.asked = self._asked()
        self.by_leaf: dict[int, list[Move]] = {}
        for move in moves:
            self.by_leaf.setdefault(move.leaf.place, []).append(move)

    def estimate(self, resident: frozenset[Buffer]) -> KernelEstimate:
        """The figures of the kernel."""
        facts, weights, nest = self.facts, self.weights, self.nest
        units, alone, tail = self._program()
        occupancy = self.occupancy
        imbalance = self._imbalance()
        busy = units.busiest() / facts.clock
        each = -(-nest.programs // facts.sms)
        rounds = -(-each // occupancy)
        chain = alone * (rounds - 1 + imbalance)
        processor = smooth((each - 1 + imbalance) * busy, chain, sharpness=weights.sharpness)
        traffic = self._traffic(resident)
        dram, l2 = total(traffic), self._requests()
        memory = dram / (facts.bandwidth * weights.dram_share)
        cache = l2 / (facts.l2_bandwidth * weights.l2_share)
        return KernelEstimate(
            name=nest.func.name,
            seconds=smooth(processor, memory, cache, sharpness=weights.sharpness) + tail,
            held=self.held,
            warps=self.warps,
            stages=nest.func.launch.num_stages or 0,
            programs=nest.programs,
            occupancy=occupancy,
            waves=nest.programs / (facts.sms * occupancy),
            dram=dram,
            l2=l2,
            traffic=traffic,
            flops=sum(self._flops(leaf, found) for leaf, found in self.counted) * nest.programs,
            special=units.special,
            instructions=units.issue,
            alone=alone,
            busy=busy,
            processor=processor,
            memory=memory,
            cache=cache,
            vector=self._vector(),
            imbalance=imbalance,
            trips=max((leaf.times for leaf, _ in self.counted), default=0.0),
            cannot_launch=self._refusal(),
        )

    def _flops(self, leaf: Leaf, found: Operations) -> float:
        own = 2 * leaf.points if isinstance(leaf.stmt, Dot) else 0
        return (found.flops + own) * leaf.times

    def _vector(self) -> float:
        """Bytes that a thread moves at once, in the mean over all bytes."""
        total = sum(m.nbytes * m.times for m in self.moves)
        if not total:
            return 16.0
        parts = sum(
            m.nbytes * m.times / (16 if m.staged else m.layout.vector(m.buffer.dtype.nbytes))
            for m in self.moves
        )
        return total / parts

    # One program.

    def _program(self) -> tuple[Unit, float, float]:
        """What a program takes of each unit in all, seconds when it has a processor alone, and
        seconds that the last one goes on while others have ended."""
        clock = self.facts.clock
        total = Unit()
        chains: dict[int, _Chain] = {}
        alone = tail = 0.0
        if any(leaf.group > 1 for leaf in self.nest.leaves):
            alone += self.weights.latency + self.weights.barrier  # to be counted
        for leaf, found in self.counted:
            unit = self._unit(leaf, found)
            total.add(unit, leaf.times)
            pace = min(4.0, self.weights.issue * self.warps) / 4.0
            special = unit.special / min(1.0, 2 * pace)
            own = max(unit.issue / pace, special, unit.matrix, unit.wide, unit.shared)
            inner = leaf.turns[-1] if leaf.turns else None
            if inner is not None and pipelined(self.nest, inner) >= 2:
                chain = chains.setdefault(id(inner), _Chain())
                seconds = own / clock + self._fold(found) + self._idle(leaf)
                seconds += self._wait(leaf, found, small=True)
                chain.work += seconds * leaf.copies
                chain.copies += unit.loading() / clock * leaf.copies
                chain.wait = max(chain.wait, self._wait(leaf, found))
            else:
                wait = self._wait(leaf, found)
                seconds = max(own, unit.loading()) / clock + self._fold(found)
                alone += (seconds + wait) * leaf.times
                if leaf.group > 1:
                    tail += (seconds + wait) * leaf.times * leaf.group
        for loop, begin, _ in self.nest.loops:
            chain = chains.get(id(loop))
            if chain is not None:
                stages = pipelined(self.nest, loop)
                runs = self.nest.leaves[begin].times / self.nest.leaves[begin].copies
                entries = runs / max(loop.trips, 1e-9)
                entries = 1.0 if loop.loop.flatten or self._flattened(begin) else entries
                alone += runs * chain.pace(stages) + entries * chain.wait
        spilled = self._spilled()
        if spilled:
            extra = spilled * self.warps * 2 * self.weights.spill
            total.issue += extra / 4
            total.memory += extra * 128 / LINE
            alone += extra * 2 / clock
        return total, alone, tail

    def _flattened(self, place: int) -> bool:
        """True when a loop around goes on while the pipeline runs."""
        return any(loop.loop.flatten for loop in self.nest.leaves[place].loops)

    def _unit(self, leaf: Leaf, found: Operations) -> Unit:
        facts = self.facts
        unit = Unit()
        moves = self.by_leaf.get(leaf.place, [])
        count = found.plain + found.special
        share = leaf.times or 1.0
        seen = set[Expr]()
        for move in moves:
            if move in self.again:
                continue
            runs = move.times / share
            if not move.staged:
                vector = move.layout.vector(move.buffer.dtype.nbytes)
                count += 2 * runs * max(move.nbytes / vector, self.warps * THREADS)
                count += runs * move.divisions(seen)
                unit.first += runs * self._lines(move) * self._let_through(move)
            unit.memory += self.asked[move] / share / LINE
        unit.issue = count / THREADS / 4
        unit.special = found.special / SFU_LANES
        ratio = facts.fma[DType.float64] / facts.fma[DType.float32]
        unit.wide = found.wide / (128 * ratio)
        if isinstance(leaf.stmt, Dot):
            unit.matrix = 2 * leaf.points / self._rate(leaf.stmt)
            unit.issue += leaf.points / self._rate(leaf.stmt) * 0.2
            if is_split(leaf.stmt):
                self._split(leaf, leaf.stmt, unit)
            if adds_steps(leaf.stmt, facts):
                unit.issue += leaf.points / leaf.stmt.contract.extent / THREADS / 4
        elif found.folded > 1:
            unit.issue += 10 * max(found.results, self.warps) / THREADS
        return unit

    def _split(self, leaf: Leaf, dot: Dot, unit: Unit) -> None:
        """Count the products of parts of operands, the arithmetic that splits them, and how the
        parts come from and go to shared memory."""
        groups = uses_groups(dot, self.warps, self.facts)
        parts = parts_in(self.nest, dot, self.warps, self.facts)
        kept = leaf.turns and stands(self.nest, leaf, dot.lhs)
        lhs = 0.0 if kept else parts.lhs / 2
        unit.matrix *= PRODUCTS * parts.again
        unit.issue *= PRODUCTS * parts.again
        unit.issue += SPLIT * (lhs + parts.rhs) * self.warps / 4
        unit.shared += (lhs + parts.rhs) * self.warps
        if groups:
            unit.issue += CHECKED * parts.sums * self.warps / 4
            unit.shared += parts.rhs * self.warps * self._put_back(leaf, dot)

    def _put_back(self, leaf: Leaf, dot: Dot) -> float:
        """Accesses to shared memory for each element of a right operand that is read from there,
        split, and put back with its columns side by side: along other columns than it came in,
        elements that a warp has side by side lie in few banks."""
        for move in self.by_leaf.get(leaf.place, []):
            if not move.writes and any(
                isinstance(n, Load) and n.buffer is move.buffer for n in walk(dot.rhs)
            ):
                along = tile_axes(dot)[move.along].axis
                if along is dot.contract.axis:
                    return 2.0
                single = move.layout.vector(move.buffer.dtype.nbytes) <= SINGLE
                ways = min(BANKS, dot.contract.extent) if single and self._ahead(move) else 1
                return 2.0 * CROSSED + 2 * (ways - 1)
        staged = [n for n in walk(dot.rhs) if isinstance(n, Load) and n.indices]
        across = any(dot.column.axis in set(walk(n.indices[-1])) for n in staged)
        return 2.0 * (CROSSED if across else 1.0)

    def _lines(self, move: Move) -> float:
        """Lines of the processor's own cache that the warps ask for in one run.

        A thread has elements side by side, as many as the widest access to a tile of this kind
        moves at once.  One that moves fewer at once skips those of the same thread, and asks for
        each line once more for every part.
        """
        at_once = move.at_once
        widest = max(
            each.at_once
            for each in self.moves
            if each.leaf.points == move.leaf.points and each.along == move.along
        )
        held_by_thread = max(1, move.layout.elements // (self.warps * THREADS))
        parts = max(1.0, min(widest, held_by_thread) / at_once)
        usual = min(move.moved / FIRST_LINE * parts, max(1.0, move.layout.elements / at_once))
        return max(usual, move.layout.elements / at_once / THREADS * move.crossed)

    def _let_through(self, move: Move) -> float:
        """The share of an access that its mask leaves; into shared memory go zeros for the rest."""
        if self._ahead(move):
            return 1.0
        return self.mover.share(move, min(self.slots // 8, MASKED))

    def _asked(self) -> dict[Move, float]:
        """Bytes of each access of the mean program that the second-level cache has to move."""
        free = self.facts.shared_sm / self.occupancy - self.held.shared
        found = asked(self.moves, self.mover, free / 2, self._ahead)
        return {
            move: 0.0 if move in self.again else nbytes * self._let_through(move)
            for move, nbytes in found.items()
        }

    def _ahead(self, move: Move) -> bool:
        """True when a pipeline loads it into shared memory, past the processor's own cache."""
        loops = move.leaf.turns
        inside = bool(loops and move.moving) and pipelined(self.nest, loops[-1]) >= 2
        return inside and not self._small(move)

    def _small(self, move: Move) -> bool:
        """True of a load of fewer bytes by each thread than cp.async copies to shared memory."""
        return (
            not move.writes
            and not move.staged
            and move.layout.vector(move.buffer.dtype.nbytes) < SINGLE
        )

    def _rate(self, dot: Dot) -> float:
        """Operations of a product per cycle of a processor."""
        facts, weights = self.facts, self.weights
        per_cycle = 1.0 / (facts.sms * facts.clock)
        if not uses_matrix_units(dot):
            return facts.fma[DType.float32] * per_cycle * weights.fma_share
        peak = facts.tensor.get(dot.lhs.dtype, facts.fma[DType.float32]) * per_cycle
        if uses_groups(dot, self.warps, facts):
            # Operands are read from shared memory: a narrow result reads much for what it does.
            wide = min(1.0, dot.column.extent / 64) * (1.0 if dot.column.extent >= 128 else 0.9)
            return peak * weights.tensor_share * wide
        share = weights.mma_share if facts.multiplies_shared else weights.tensor_share
        tile = dot.row.extent * dot.column.extent / self.warps
        return peak * share * min(1.0, math.sqrt(tile / 1024) * 0.5 + 0.5)

    def _idle(self, leaf: Leaf) -> float:
        """Seconds of a step in which nothing is multiplied: Triton waits for products that are no
        float32, and for those that are added up by steps, and adds these."""
        if not isinstance(leaf.stmt, Dot) or not uses_groups(leaf.stmt, self.warps, self.facts):
            return 0.0
        stmt, added = leaf.stmt, 0.0
        if is_split(stmt):
            return PRODUCTS * self.weights.step
        if adds_steps(stmt, self.facts):
            added = leaf.points / stmt.contract.extent / THREADS / 4 / self.facts.clock
        elif stmt.buffer.dtype is DType.float32:
            return 0.0
        return self.weights.step + added

    def _fold(self, found: Operations) -> float:
        """Seconds until threads have combined what each has folded."""
        if self._inside_threads(found):
            return 0.0
        per_warp = found.folded * found.results / self.warps
        across = found.results < self.warps or found.folded > per_warp
        return self.weights.barrier * (1.0 if across and self.warps > 1 else 0.4)

    def _inside_threads(self, found: Operations) -> bool:
        """True when no thread takes part in what another folds: each has neighbours that it loads
        in one access."""
        own = found.results >= self.warps * THREADS and found.folded <= NEIGHBOURS
        return found.folded <= 1 or own

    def _wait(self, leaf: Leaf, found: Operations, small: bool = False) -> float:
        """Seconds until what a statement loads is there: once at least, and then as often as
        something is not in the processor's own cache.  Loops in which no thread waits for another
        are unrolled by ptxas, and what several iterations load is under way at once.  With `small`,
        for what a pipeline leaves to its iterations."""
        share = leaf.times or 1.0
        runs = 0.0
        for move in self.by_leaf.get(leaf.place, []):
            if move in self.again or (small and not self._small(move)):
                continue
            loaded = move.moved * move.times * self._let_through(move)
            if not move.writes and loaded:
                missed = max(1.0, move.times * self.asked[move] / loaded)
                runs = max(runs, min(move.times, missed) / share)
        loops = leaf.turns and self._inside_threads(found) and not isinstance(leaf.stmt, Dot)
        return self.weights.latency * runs / (self.weights.unrolled if loops else 1.0)

    # All programs.

    def limit(self) -> int:
        """Registers that a thread can have."""
        own = self.nest.func.launch.maxnreg or self.facts.registers_thread
        fits = self.facts.registers_sm // (self.warps * THREADS)
        return max(16, min(own, self.facts.registers_thread, fits))

    def _spilled(self) -> float:
        """Registers put away and fetched again by a program.  An accumulator that does not fit by
        itself is moved around each product, which waits for it."""
        moved = self.held.moved if self.held.moved > self.limit() else 0.0
        runs = max((leaf.times / leaf.copies for leaf in self.nest.leaves), default=0.0)
        return self.held.above(self.limit()) + self.weights.evicted * moved * runs

    def _occupancy(self) -> int:
        """Programs on one processor."""
        facts = self.facts
        registers = min(self.held.registers, self.limit())
        each = -(-int(registers) // 8) * 8 * self.warps * THREADS
        shared = self.held.shared + facts.shared_reserved
        return max(
            1,
            min(
                facts.blocks_sm,
                facts.warps_sm // max(self.warps, 1),
                facts.registers_sm // max(each, 1),
                facts.shared_sm // shared,
            ),
        )

    def _imbalance(self) -> float:
        """Work of the longest program over that of the mean one."""
        total = 0.0
        most = None
        for leaf, found in self.counted:
            weight = found.plain + found.special + 1.0
            if isinstance(leaf.stmt, Dot):
                weight += leaf.points / 64
            total += weight * leaf.times
            sampled = weight * leaf.sampled
            most = sampled if most is None else most + sampled
        return 1.0 if most is None or not total else max(1.0, float(most.max()) / total)

    def _traffic(self, resident: frozenset[Buffer]) -> dict[Buffer, Traffic]:
        """Bytes from and to device memory."""
        running = max(1, min(self.nest.programs, self.facts.sms * self.occupancy))
        return traffic_of(
            self.moves, self.mover, resident, wave=running, cache=self.facts.l2, slots=self.slots
        )

    def _requests(self) -> float:
        """Bytes from and to the second-level cache: what stays in a processor's own is asked for
        once."""
        facts, programs = self.facts, self.nest.programs
        first = facts.shared_sm - self.held.shared * self.occupancy
        unique: dict[Buffer, float] = {}
        for move in self.moves:
            whole = math.prod(self.mover.shape(move.buffer)) * move.buffer.dtype.nbytes
            known = unique.get(move.buffer, 0.0)
            unique[move.buffer] = min(whole, known + move.moved * move.steps * programs)
        small = {b for b, n in unique.items() if n < first / 2}
        total = 0.0
        for move in self.moves:
            need = self.asked[move] * programs
            if move.buffer in small and not move.writes and not move.staged:
                need = min(need, unique[move.buffer] * facts.sms)
            total += need
        return total

    def _refusal(self) -> str | None:
        """Why the kernel can never be launched; None when nothing is known against it."""
        if self.warps * THREADS > self.facts.threads_block:
            return f"{self.warps * THREADS} threads, the device allows {self.facts.threads_block}"
        if self.held.largest > LARGEST:
            return f"a value of {self.held.largest} elements, Triton allows {LARGEST}"
        if self.held.least > self.facts.shared_block:
            return (
                f"{self.held.least} bytes of shared memory, the device allows "
                f"{self.facts.shared_block}"
            )
        return None


def repeated(moves: Sequence[Move]) -> frozenset[Move]:
    """Loads of what another statement of the same iteration has loaded: it is in registers."""
    known: dict[tuple[object, ...], Move] = {}
    again: set[Move] = set()
    for move in moves:
        if move.writes:
            known = {key: each for key, each in known.items() if each.buffer is not move.buffer}
        elif not (move.staged or move.scattered):
            loops = tuple(id(loop) for loop in move.leaf.loops)
            key = (move.buffer, move.first, move.pattern, move.layout, move.mask is None, loops)
            if key in known:
                again.add(move)
            known.setdefault(key, move)
    return frozenset(again)


def smooth(*times: float, sharpness: float) -> float:
    """The longest of times that overlap, a little more where several are close."""
    most = max(times, default=0.0)
    if most <= 0.0:
        return 0.0
    return most * sum((t / most) ** sharpness for t in times) ** (1.0 / sharpness)


def global_buffers(func: Func) -> frozenset[Buffer]:
    """The buffers of a kernel in device memory."""
    return frozenset(b for b in func.params if b.scope is Scope.GLOBAL)
