"""Registers of a thread and shared memory of a program, from the tile values of a kernel.

Closed forms for what Triton and ptxas do: operands of matrix units are staged once per stage of the
pipeline, tiles that are alive at one time stand in registers at one time.  Imports `expr`, `ir`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tedsl.cost.accesses import Move
from tedsl.cost.split_products import THREADS, Parts, is_split, parts_of, stands
from tedsl.cost.statement_list import Leaf, Loop, Nest
from tedsl.devices import GpuDevice
from tedsl.expr.nodes import Cast, Expr
from tedsl.expr.visit import walk
from tedsl.ir.nodes import Accumulate, Buffer, Dot, Guard, Load, Precision, Scope, Store
from tedsl.ir.visit import own_exprs, walk_stmts

DEFAULT_STAGES = 3
BASE_REGISTERS = 24
"""Of a kernel with products; others need a third."""
BARRIER = 8
ADDRESS = 1.3
"""Registers of the address of an element that is stored alone."""
CONVERTED = 8 * 1024
"""Bytes beyond which a change of layout goes through shared memory in two pieces."""


def uses_groups(dot: Dot, warps: int, facts: GpuDevice) -> bool:
    """True when groups of four warps multiply operands in shared memory (wgmma, tcgen05)."""
    narrow = dot.lhs.dtype.nbytes <= 2 or dot.precision is not Precision.IEEE
    batched = math.prod(t.extent for t in dot.batch) > 1
    return (
        facts.multiplies_shared
        and narrow
        and warps % 4 == 0
        and dot.row.extent >= 64
        and not batched
    )


def uses_matrix_units(dot: Dot) -> bool:
    """False where products are exact in 32 bits, and added up by the ordinary units."""
    return dot.lhs.dtype.nbytes != 4 or dot.precision is not Precision.IEEE


@dataclass(frozen=True, slots=True)
class Held:
    """Closed-form figures: registers a thread would need (above the limit they spill), bytes of
    shared memory and what it takes at least, registers of the largest accumulator, and of the
    largest that is moved around each product where it does not fit, the largest tile in elements;
    and for `each` statement the registers at it and its runs."""

    registers: float
    shared: int
    least: int
    accumulators: float
    moved: float
    largest: int
    each: tuple[tuple[float, float], ...] = ()

    def above(self, limit: float) -> float:
        """Registers beyond a limit, which are put away and fetched again, of all runs of the
        statement of which there are most."""
        return max(((need - limit) * runs for need, runs in self.each if need > limit), default=0.0)


def held(nest: Nest, moves: Sequence[Move], warps: int, facts: GpuDevice) -> Held:
    """The figures of one kernel."""
    threads = warps * THREADS
    shared, least = _shared(nest, moves, warps, facts)
    sums = {leaf.stmt.buffer: leaf for leaf in nest.leaves if isinstance(leaf.stmt, Dot)}
    each = {buffer: nest_size(buffer) / threads * _words(buffer) for buffer in sums}
    needs = _registers(nest, moves, warps, facts)
    return Held(
        registers=max(needs),
        shared=shared,
        least=least,
        accumulators=max(each.values(), default=0.0),
        moved=max(
            (each[b] for b, leaf in sums.items() if _is_moved(nest, leaf, warps, facts)),
            default=0.0,
        ),
        largest=_largest(nest),
        each=tuple(zip(needs, (leaf.times / leaf.copies for leaf in nest.leaves), strict=False)),
    )


def _is_moved(nest: Nest, product: Leaf, warps: int, facts: GpuDevice) -> bool:
    """True when products follow one another with one accumulator: it was there before the loop, or
    warps multiply it step by step."""
    if not isinstance(product.stmt, Dot) or not product.turns:
        return False
    starts = (begin for loop, begin, _ in nest.loops if loop is product.turns[-1])
    carried = nest.scopes[product.stmt.buffer][0] < min(starts)
    return carried or not uses_groups(product.stmt, warps, facts)


def nest_size(buffer: Buffer) -> int:
    """Elements of a local buffer."""
    total = 1
    for extent in buffer.shape:
        value = getattr(extent, "value", 1)
        total *= int(value)
    return total


def _largest(nest: Nest) -> int:
    """The most elements of one value: a tile in registers, or a tile that is stored or loaded."""
    sizes = [nest_size(b) for b in nest.scopes if b.scope is not Scope.GLOBAL]
    for leaf in nest.leaves:
        points = leaf.points
        if isinstance(leaf.stmt, Dot):
            points //= leaf.stmt.contract.extent
        sizes.append(points)
    return max(sizes, default=1)


def _words(buffer: Buffer) -> float:
    """Registers of one element; two narrow ones share one."""
    return max(buffer.dtype.nbytes, 1) / 4


# Shared memory.


def pipelined(nest: Nest, loop: Loop) -> int:
    """Stages of the pipeline that a loop runs in; 0 for none."""
    stages = loop.loop.num_stages or (nest.func.launch.num_stages or DEFAULT_STAGES)
    own = bool(loop.loop.num_stages) or any(
        isinstance(leaf.stmt, Dot) and leaf.turns and leaf.turns[-1] is loop for leaf in nest.leaves
    )
    return stages if own and stages >= 2 and loop.trips > 1 else 0


def _shared(nest: Nest, moves: Sequence[Move], warps: int, facts: GpuDevice) -> tuple[int, int]:
    staging = _Staging(nest, moves, warps, facts)
    operands, in_loop = staging.operands()
    operands = max(operands, staging.streams())
    result, around = staging.results()
    scratch = max(staging.conversions(), staging.folds())
    # Between two runs of a pipeline nothing of it is kept, unless it goes on across them.
    flattened = any(loop.loop.flatten for loop, _, _ in nest.loops)
    if in_loop and (around or staging.beside):
        kept = max(result, scratch if flattened or staging.beside else 0)
        return max(operands + kept, scratch), max(staging.least, result)
    return max(operands, result, scratch), max(staging.least, result)


class _Staging:
    """What stands in shared memory at one time."""

    def __init__(self, nest: Nest, moves: Sequence[Move], warps: int, facts: GpuDevice) -> None:
        self.nest = nest
        self.moves = moves
        self.warps = warps
        self.facts = facts
        self.beside = False
        self.least = 0

    def operands(self) -> tuple[int, bool]:
        """Bytes of operands of products, and whether a pipeline keeps them over iterations."""
        total, piped = 0, False
        for dots in _by_loops(self.nest.leaves).values():
            here = passing = 0
            known: set[Buffer] = set()
            for leaf in dots:
                nbytes, own, deep = self._of(leaf, known)
                here, passing = here + nbytes, max(passing, own)
                piped = piped or deep
            total = max(total, here + passing)
        return total, piped

    def _of(self, leaf: Leaf, known: set[Buffer]) -> tuple[int, int, bool]:
        """Bytes of the operands of one product, of those that come for it alone and make room for
        the next one's, and whether a pipeline keeps them; those that the copy engine has brought
        for other products of the loop are `known`."""
        dot = leaf.stmt
        if not isinstance(dot, Dot):
            return 0, 0, False
        groups = uses_groups(dot, self.warps, self.facts)
        sizes: list[int] = []
        total = copies = surely = passing = 0
        engine = shared = False
        if parted := groups and is_split(dot):
            passing = 2 * dot.rhs.dtype.nbytes * dot.contract.extent * dot.column.extent
        for place, operand in enumerate((dot.lhs, dot.rhs)):
            nbytes, direct, staged, loop = self._operand(dot, operand, leaf)
            engine = engine or staged
            # What is computed in registers from a tile frees its place at once.
            waits = groups and not parted and (direct or place == 1 or not staged)
            count = 0 if loop is None else self._count(loop, waits)
            brought: frozenset[Buffer] = _staged_in(operand) if staged and count else frozenset()
            if brought and brought <= known:
                shared = True  # it arrives at the barrier of the other product
                continue
            known |= brought
            copies = max(copies, count)
            if count:
                total += count * nbytes
                # One copy less than there are stages is what every pipeline keeps.
                surely += (count - waits) * nbytes if staged else 0
            elif groups and staged and (loop is not None or self._is_once(operand, leaf)):
                passing += nbytes
            elif groups:
                total += nbytes if not parted and (direct or place == 1) else 0
            elif uses_matrix_units(dot) or staged or self.warps > 1:
                sizes.append(nbytes)
        alone = (max if engine else sum)(sizes) if sizes else 0
        self.least = max(self.least, surely)
        # Threads that add up products themselves change the layout of results beside them.
        self.beside = self.beside or (copies > 0 and not engine and not uses_matrix_units(dot))
        # Warps that multiply 8 bits by themselves wait for each operand by itself.
        waited = 2 if dot.lhs.dtype.nbytes == 1 and not groups else 1
        barriers = waited * BARRIER * max(copies, 1) if engine and not shared else 0
        return total + alone + barriers, passing, copies > 0 or shared

    def _is_once(self, operand: Expr, leaf: Leaf) -> bool:
        """True outside of loops where no other product reads what the copy engine has brought."""
        own = _staged_in(operand)
        others = (x.stmt for x in self.nest.leaves if x is not leaf and isinstance(x.stmt, Dot))
        return not leaf.loops and not any(
            own & (_staged_in(other.lhs) | _staged_in(other.rhs)) for other in others
        )

    def _operand(self, dot: Dot, operand: Expr, leaf: Leaf) -> tuple[int, bool, bool, Loop | None]:
        """Bytes of an operand, whether it comes from memory as it is, whether the copy engine
        brings it, and the loop that brings a new one each time."""
        source = operand
        while isinstance(source, Cast):
            source = source.a
        rows = dot.row if operand is dot.lhs else dot.column
        batch = math.prod(t.extent for t in dot.batch)
        nbytes = batch * rows.extent * dot.contract.extent * source.dtype.nbytes
        loads = [n for n in walk(operand) if isinstance(n, Load)]
        for move in self.moves:
            stmt = move.leaf.stmt
            fills = isinstance(stmt, Store) and any(n.buffer is stmt.buffer for n in loads)
            own = move.leaf is leaf and any(n.buffer is move.buffer for n in loads)
            if (fills or own) and not move.writes:
                turns = leaf.turns
                inner = turns[-1] if turns and move.moving >= len(turns) else None
                direct = isinstance(source, Load)
                if move.staged and not direct:
                    nbytes = move.nbytes
                nbytes *= int(leaf.copies) if inner is not None and move.staged else 1
                return nbytes, direct, move.staged, inner
        return nbytes, False, False, None

    def _count(self, loop: Loop, groups: bool) -> int:
        """Copies that the pipeline of a loop keeps; 0 where there is no pipeline."""
        stages = pipelined(self.nest, loop)
        return stages if groups else max(0, stages - 1)

    def streams(self) -> int:
        """Bytes of what a loop without products loads ahead.

        Where the loop stores too, what stands still is loaded again in each iteration.  What
        several statements read of the same place is loaded once.  Folds in the loop find it there.
        """
        total: dict[Loop, int] = {}
        loaded: set[tuple[Loop, Buffer, int, bytes]] = set()
        storing = {id(m.leaf.loops[-1]) for m in self.moves if m.writes and m.leaf.loops}
        products = {id(n.turns[-1]) for n in self.nest.leaves if _is_product(n)}
        for move in self.moves:
            loops = move.leaf.turns
            if not loops or id(loops[-1]) in products:
                continue
            inside = move.moving >= len(loops) or id(loops[-1]) in storing
            wide = move.layout.vector(move.buffer.dtype.nbytes) >= 4
            load = (loops[-1], move.buffer, move.first, move.pattern)
            if load in loaded:
                continue
            if inside and wide and not move.writes and loops[-1].loop.num_stages:
                loaded.add(load)
                copies = max(0, pipelined(self.nest, loops[-1]) - 1)
                nbytes = max(move.nbytes, move.buffer.dtype.nbytes)
                total[loops[-1]] = total.get(loops[-1], 0) + copies * nbytes
        return max((nbytes + self.folds(loop) for loop, nbytes in total.items()), default=0)

    def results(self) -> tuple[int, bool]:
        """Bytes of tiles that the copy engine stores, and whether a loop goes on around them."""
        total, around = 0, False
        for leaf in self.nest.leaves:
            stmt = leaf.stmt
            if isinstance(stmt, Store) and stmt.buffer.scope is Scope.SHARED:
                if isinstance(stmt.value, Load) and stmt.value.buffer.scope is Scope.GLOBAL:
                    continue
                total = max(total, nest_size(stmt.buffer) * stmt.buffer.dtype.nbytes)
        for leaf in self.nest.leaves:
            stored = isinstance(leaf.stmt, Store) and leaf.stmt.buffer.scope is Scope.GLOBAL
            around = around or (stored and any(_keeps(loop, leaf) for loop in leaf.loops))
        return total, around

    def conversions(self) -> int:
        """Bytes through which accumulators change to the layout of memory."""
        made = {
            leaf.stmt.buffer: leaf.stmt for leaf in self.nest.leaves if isinstance(leaf.stmt, Dot)
        }
        most = 0
        for leaf in self.nest.leaves:
            stmt = leaf.stmt
            if not isinstance(stmt, Store) or stmt.buffer.scope is not Scope.GLOBAL:
                continue
            for node in walk(*own_exprs(stmt)):
                dot = made.get(node.buffer) if isinstance(node, Load) else None
                if dot is None:
                    continue
                size = leaf.points * stmt.buffer.dtype.nbytes
                groups = uses_groups(dot, self.warps, self.facts)
                pieces = max(CONVERTED, size // 2) if groups else 512 * self.warps
                most = max(most, min(size, pieces))
        return most

    def folds(self, inside: Loop | None = None) -> int:
        """Bytes through which warps combine what each has folded, in one loop or anywhere."""
        most = 0
        for leaf in self.nest.leaves:
            stmt = leaf.stmt
            if not isinstance(stmt, Accumulate) or self.warps == 1:
                continue
            if inside is not None and inside not in leaf.loops:
                continue
            kept = frozenset(walk(*stmt.indices))
            folded = math.prod(t.extent for t in stmt.tile if t.axis not in kept)
            if folded > 1:
                results = leaf.points // folded
                width = sum(b.dtype.nbytes for b in stmt.buffers)
                most = max(most, self._along(folded, leaf.points) * results * width)
        return most

    def _along(self, folded: int, points: int) -> int:
        """Warps side by side along what is folded: each thread takes as much as one load moves."""
        reads = [m for m in self.moves if not m.writes]
        wide = max(
            (m.layout.vector(m.buffer.dtype.nbytes) // m.buffer.dtype.nbytes for m in reads),
            default=1,
        )
        each = max(1, min(wide, points // (self.warps * THREADS)))
        return max(1, min(self.warps, folded // (THREADS * each)))


def _staged_in(operand: Expr) -> frozenset[Buffer]:
    """The buffers in shared memory that an operand is read from."""
    found = (n.buffer for n in walk(operand) if isinstance(n, Load))
    return frozenset(b for b in found if b.scope is Scope.SHARED)


def _is_product(leaf: Leaf) -> bool:
    return isinstance(leaf.stmt, Dot) and bool(leaf.turns)


def _keeps(loop: Loop, leaf: Leaf) -> bool:
    """True when a loop keeps the tile that its iterations store.  One that is made one with the
    loop in it does not where a guard stands between: it stores as if there were no loop."""
    if loop.trips <= 1 or not loop.loop.flatten:
        return loop.trips > 1
    guards = (stmt for stmt in walk_stmts(loop.loop.body) if isinstance(stmt, Guard))
    return not any(leaf.stmt is stmt for guard in guards for stmt in walk_stmts(guard.body))


def _by_loops(leaves: Iterable[Leaf]) -> dict[tuple[int, ...], list[Leaf]]:
    """The products by the loops that they are in."""
    found: dict[tuple[int, ...], list[Leaf]] = {}
    for leaf in leaves:
        if isinstance(leaf.stmt, Dot):
            found.setdefault(tuple(id(loop) for loop in leaf.turns), []).append(leaf)
    return found


# Registers.


def _registers(nest: Nest, moves: Sequence[Move], warps: int, facts: GpuDevice) -> Sequence[float]:
    """What a thread needs at each statement; something where there is none."""
    threads = warps * THREADS
    spans = _lives(nest)
    by_leaf: dict[int, list[Move]] = {}
    for move in moves:
        by_leaf.setdefault(move.leaf.place, []).append(move)
    multiplies = any(isinstance(leaf.stmt, Dot) for leaf in nest.leaves)
    beside = _beside_tiles(nest, warps, facts) if multiplies else {}
    found: list[float] = []
    for leaf in nest.leaves:
        alive = sum(
            _of_buffer(buffer, threads)
            for buffer, (begin, end) in spans.items()
            if begin <= leaf.place <= end
        )
        alive += beside.get(leaf.place, 0.0)
        alive -= _in_place(leaf, spans, threads) if multiplies else 0.0
        own = _temporaries(leaf, by_leaf.get(leaf.place, []), moves, nest, warps, facts)
        found.append(alive + own)
    if multiplies:
        return [BASE_REGISTERS + need for need in found]
    return [max(16.0, BASE_REGISTERS / 3 + 1.1 * need) for need in found] or [16.0]


def _in_place(leaf: Leaf, spans: dict[Buffer, tuple[int, int]], threads: int) -> float:
    """Registers of a new tile that are those of tiles of its size which end here: each element of
    one becomes that of the other."""
    stmt = leaf.stmt
    if not isinstance(stmt, Store) or spans.get(stmt.buffer, (-1, -1))[0] != leaf.place:
        return 0.0
    size = _of_buffer(stmt.buffer, threads)
    ended = sum(
        _of_buffer(buffer, threads)
        for buffer in _touched(leaf) - {stmt.buffer}
        if spans.get(buffer, (-1, -1))[1] == leaf.place and nest_size(buffer) == leaf.points
    )
    return min(size, ended)


def _beside_tiles(nest: Nest, warps: int, facts: GpuDevice) -> dict[int, float]:
    """By the place of a leaf, registers of what is neither a tile nor a temporary: a mask of a tile
    from the first fold under it to the last, and factors in registers of a product that goes on
    while the next turn of its pipeline has begun, or that all turns have."""
    threads = warps * THREADS
    found: dict[int, float] = {}
    groups: dict[tuple[int, ...], list[Leaf]] = {}
    for leaf in nest.leaves:
        groups.setdefault(tuple(id(loop) for loop in leaf.turns), []).append(leaf)
    for leaves in groups.values():
        masked = [x for x in leaves if isinstance(x.stmt, Accumulate) and x.stmt.mask is not None]
        places = [leaf.place for leaf in masked]
        mask = max((leaf.points / threads for leaf in masked), default=0.0)
        factors = sum(_factors(nest, leaf, warps, facts) for leaf in leaves)
        for leaf in leaves:
            held = mask if places and min(places) <= leaf.place <= max(places) else 0.0
            found[leaf.place] = held + factors
    return found


def _factors(nest: Nest, leaf: Leaf, warps: int, facts: GpuDevice) -> float:
    """Registers of the left factors of a product in a pipeline that are made in registers."""
    dot = leaf.stmt
    if not isinstance(dot, Dot) or not leaf.turns:
        return 0.0
    if is_split(dot):
        kept = stands(nest, leaf, dot.lhs)
        return leaf.copies * parts_in(nest, dot, warps, facts).lhs if kept else 0.0
    if not uses_groups(dot, warps, facts):
        return 0.0
    loads = (node for node in walk(dot.lhs) if isinstance(node, Load))
    made = any(load.buffer.scope is Scope.LOCAL for load in loads)
    if not made or not pipelined(nest, leaf.turns[-1]):
        return 0.0
    return dot.row.extent * dot.contract.extent * dot.lhs.dtype.nbytes / 4 / (warps * THREADS)


def _of_buffer(buffer: Buffer, threads: int) -> float:
    """Registers of a thread for a tile; a small one has copies in many threads."""
    size = nest_size(buffer)
    return max(size / threads, 1.0) * _words(buffer)


def _lives(nest: Nest) -> dict[Buffer, tuple[int, int]]:
    """From which leaf to which each tile in registers has to be kept."""
    uses: dict[Buffer, list[int]] = {}
    for leaf in nest.leaves:
        for buffer in _touched(leaf):
            if buffer.scope is Scope.LOCAL:
                uses.setdefault(buffer, []).append(leaf.place)
    found: dict[Buffer, tuple[int, int]] = {}
    for buffer, places in uses.items():
        first, last = min(places), max(places)
        begin, end = nest.scopes.get(buffer, (0, len(nest.leaves)))
        for _, start, stop in nest.loops:
            if begin <= start and stop <= end and (begin, end) != (start, stop):
                inside = any(start <= p < stop for p in places)
                outside = any(not start <= p < stop for p in places)
                if inside and outside:
                    first, last = min(first, start), max(last, stop - 1)
        found[buffer] = (first, last)
    return found


def _touched(leaf: Leaf) -> set[Buffer]:
    stmt = leaf.stmt
    found = {n.buffer for n in walk(*own_exprs(stmt)) if isinstance(n, Load)}
    match stmt:
        case Accumulate(buffers=buffers):
            found.update(buffers)
        case _:
            found.add(stmt.buffer)
    return found


def _temporaries(
    leaf: Leaf,
    moves: Sequence[Move],
    nest_moves: Sequence[Move],
    nest: Nest,
    warps: int,
    facts: GpuDevice,
) -> float:
    """Registers of a statement beside the tiles that live on."""
    threads = warps * THREADS
    stages = nest.func.launch.num_stages or DEFAULT_STAGES
    stmt = leaf.stmt
    vectors = sum(
        m.nbytes / m.layout.vector(m.buffer.dtype.nbytes) / threads for m in moves if not m.staged
    )
    if isinstance(stmt, Dot):
        if is_split(stmt):
            parts = parts_in(nest, stmt, warps, facts)
            kept = leaf.turns and stands(nest, leaf, stmt.lhs)
            own = 2 * parts.sums - nest_size(stmt.buffer) / threads
            return vectors / 2 + own + parts.rhs + (0.0 if kept else parts.lhs)
        if uses_groups(stmt, warps, facts):
            return max(0.0, 3 * vectors - 12) + _sums_of_step(stmt, threads, facts)
        staged = any(_fills(m, stmt) for m in nest_moves if m.staged)
        return vectors / 2 + _fragments(stmt, warps, staged, stages)
    loaded = sum(_loaded(m, threads) for m in moves if not m.staged and not m.writes)
    stored = (m for m in moves if m.writes and not m.staged)
    alone = sum(
        m.layout.elements / threads
        for m in stored
        if m.layout.vector(m.buffer.dtype.nbytes) == m.buffer.dtype.nbytes
    )
    # Elements of changed layout that are stored one by one have all their addresses by then.
    late = ADDRESS * alone if _is_converted(leaf, nest) else 0.0
    return loaded + max(min(8.0, 2 * vectors), late)


def _is_converted(leaf: Leaf, nest: Nest) -> bool:
    """True for sums of products that are stored to memory."""
    stmt = leaf.stmt
    if not isinstance(stmt, Store) or stmt.buffer.scope is not Scope.GLOBAL:
        return False
    sums = {each.stmt.buffer for each in nest.leaves if isinstance(each.stmt, Dot)}
    return any(isinstance(n, Load) and n.buffer in sums for n in walk(stmt.value))


def parts_in(nest: Nest, dot: Dot, warps: int, facts: GpuDevice) -> Parts:
    """What a product of split operands holds."""
    widest = max(n.stmt.column.extent for n in nest.leaves if isinstance(n.stmt, Dot))
    return parts_of(dot, warps, widest, groups=uses_groups(dot, warps, facts))


def adds_steps(dot: Dot, facts: GpuDevice) -> bool:
    """True when the products of each step are added up by themselves first."""
    return dot.lhs.dtype.is_float8 and facts.has_wgmma


def _sums_of_step(dot: Dot, threads: int, facts: GpuDevice) -> float:
    """Registers of the products of one step, where they are added up by themselves first: those of
    64 rows for each four warps, of which the next are made while the last are added."""
    if not adds_steps(dot, facts):
        return 0.0
    pieces = max(1.0, dot.row.extent / (threads / 2))
    return dot.row.extent * dot.column.extent / threads / pieces * min(pieces, 1.5)


def _loaded(move: Move, threads: int) -> float:
    """Registers of what a thread has loaded: an element that was loaded alone takes one."""
    size = move.buffer.dtype.nbytes
    packed = move.layout.vector(size) >= 4
    return max(move.layout.elements / threads, 1.0) * (size / 4 if packed else max(1.0, size / 4))


def _fills(move: Move, dot: Dot) -> bool:
    """True when the access brings an operand of the product."""
    stmt = move.leaf.stmt
    if not isinstance(stmt, Store):
        return False
    return any(isinstance(n, Load) and n.buffer is stmt.buffer for n in walk(dot.lhs, dot.rhs))


def _fragments(dot: Dot, warps: int, staged: bool, stages: int) -> float:
    """Registers of operands that do not stay in shared memory.

    Those that the copy engine has brought are all loaded before they are multiplied, others piece
    by piece.
    """
    rows, columns, depth = dot.row.extent, dot.column.extent, dot.contract.extent
    word = max(dot.lhs.dtype.nbytes / 4, 0.25)
    if not uses_matrix_units(dot):
        tile = max(1.0, rows * columns / (warps * THREADS))
        sides = min(4.0, tile) + tile / min(4.0, tile)
        return 0.65 * sides * depth if staged or stages < 2 else tile + sides
    down = across = 1
    while down * across < warps:
        if rows / down >= 2 * columns / across and rows / down > 16:
            down *= 2
        elif columns / across > 8:
            across *= 2
        else:
            down *= 2
    depth = depth if staged else min(depth, 32)
    lhs = max(rows / down, 16) * depth * word / THREADS
    rhs = max(columns / across, 8) * depth * word / THREADS
    return 0.6 * (lhs + rhs)
