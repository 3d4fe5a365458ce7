"""Analytic cost model of a GEMM: clocks for a tile size, with wave quantisation, the L2 and DRAM
bandwidth, split-K and stream-K; it gives the default tile and number of parts.

Clocks of one SM, fitted to an H100 and an H200 for operands of 16 bits.  A K step multiplies a tile
by 128 bytes of K, which takes as long in 8 bits as in 16: the time of the tensor cores or of the
operands on their way from L2, whichever is longer.  The busiest SM sets the time, so that the last
wave counts in full; DRAM bandwidth is a lower bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from tedsl.devices import GpuDevice
from tedsl.schedules.analysis.nests import pow2_at_least

LINE = 128
"""Bytes of K that a step multiplies: a cache line."""
STEP = 64
"""Elements of it where operands have 16 bits."""
LEAST = 16

# Shares of the peaks that are reached, fitted on an H200: of the operations of tensor cores on 16
# bits, and of the DRAM bandwidth.
OPERATIONS = 3300 / 4096
MEMORY = 0.92
# Per clock and SM, fitted on an H200: bytes from L2, bytes stored.
CACHED = 48
STORED = 32
# The factor for operands whose rows are not aligned to cache lines.
RAGGED = 1.4
# The DRAM bytes per clock of one SM where others are idle (fitted on an H200).
ALONE = 30
# Additions per clock and SM, and the clocks that a program waits for the result of its MMAs before
# it issues the next ones.
ADDED = 128
WAIT = 150
# The factor for MMAs of 16 rows (mma), which are slower, and wait for each step.
FEW_ROWS = 1.7
# Clocks until what a program loads from DRAM is there.  Where elements go through registers, those
# of a K step that each thread of four warps may have, how many of them it waits for at once where
# they have one address (ptxas, sm_90; less where each has its own), and the registers beside them.
LATENCY = 1400
THREADS, EACH, AT_ONCE, OWN = 128, 80, 48, 40
# K steps from which deeper ones still overlap.
DEEP = 16
# Clocks: to fill the pipeline, overhead of a K step, to launch a second kernel and until that has
# what it reads.
START = 2000
TURN = 300
LAUNCH = 6500
# Stream-K: clocks of a program with a part of a tile to count itself, and for the last one to know
# that it is; and the bytes that this one reads and adds up per clock, one part after the other.
MERGE = 2000
MERGED = 16
# Stream-K: numbers of parts of a tile of the last wave, the K steps of a part that are worth a
# program, and how much shorter a GEMM with them has to be.
PARTS = (2, 3, 4, 6, 8)
STEPS = 4
SHORTER = 0.97
# What is so much longer by this model may still be shorter on a device.
PERHAPS = 1.1
# Split-K: K of a part that is worth a program, and how much of the time of a GEMM in whole its
# parts may take where something is worth keeping it so.
LONG = 512
SURE = 0.9


def largest(gpu: GpuDevice) -> int:
    """Elements of a tile whose accumulator takes half of the registers of an SM: 128 by 256."""
    return gpu.registers_sm // 2


def two_fit(gpu: GpuDevice) -> int:
    """Elements of a tile up to which two programs share an SM: 128 by 128."""
    return gpu.registers_sm // 4


def dram(gpu: GpuDevice) -> int:
    """Bytes of DRAM that an SM moves in a clock: 19 on an H200."""
    return max(1, round(MEMORY * gpu.bytes_cycle))


@dataclass(frozen=True, slots=True)
class Product:
    """A GEMM on a GPU: batch, M, N, K, bytes of an element of its operands and of its result, how
    many accumulators a program holds at once, and the most elements of a tile of them, where that
    is less than registers hold.  `by_steps`: each K step is summed by itself first, and a program
    waits for that before it multiplies the next (8-bit floats).  `across`: whether the operands are
    stored with M or N contiguous rather than K; `ragged`: whether their rows are not aligned to
    cache lines; `loose`: whether they are not aligned to what is copied to shared memory, so that
    their elements go through registers, one by one, and no K step is loaded ahead; `loose_parts`:
    the same of parts of K, whose operands are read as they are stored, where those of all of K are
    `copied`, so many bytes of them."""

    gpu: GpuDevice
    batch: int
    m: int
    n: int
    k: int
    nbytes: int = 2
    stored: int = 2
    held: int = 1
    most: int | None = None
    by_steps: bool = False
    across: tuple[bool, bool] = (False, False)
    ragged: tuple[bool, bool] = (False, False)
    loose: tuple[bool, bool] = (False, False)
    loose_parts: tuple[bool, bool] = (False, False)
    copied: int = 0

    @property
    def step(self) -> int:
        """Elements of K in a step."""
        return LINE // self.nbytes

    @property
    def limit(self) -> int:
        """The most elements of a tile."""
        return min(self.most or largest(self.gpu), largest(self.gpu))

    def shares(self, bm: int, bn: int) -> bool:
        """True when two programs with such tiles share an SM."""
        return bm * bn * self.held <= two_fit(self.gpu)

    def count(self, bm: int, bn: int) -> int:
        """How many such tiles there are."""
        return self.batch * -(-self.m // bm) * -(-self.n // bn)

    def alone(self, bm: int, bn: int) -> bool:
        """True when a program with such a tile has an SM to itself."""
        return not self.shares(bm, bn) or self.count(bm, bn) <= self.gpu.sms


def tiles(p: Product) -> Iterator[tuple[int, int]]:
    """BLOCK_M and BLOCK_N that fit: no side far beyond the product's, no few rows or short rows of
    a tile where the product has more."""
    high, wide = max(LEAST, pow2_at_least(p.m)), max(LEAST, pow2_at_least(p.n))
    for bm in (128, 256, 64, 32, 16):
        for bn in (256, 128, 64, 32, 16):
            fits = min(64, high) <= bm <= high and min(32, wide) <= bn <= wide
            if fits and bm * bn <= p.limit and _holds(p, bm, bn):
                yield bm, bn


def _holds(p: Product, bm: int, bn: int) -> bool:
    """True when shared memory holds two K steps: one is multiplied while the other is loaded."""
    return 2 * LINE * (bm + p.held * bn) <= p.gpu.shared_block


def by_registers(p: Product, bm: int, bn: int) -> int:
    """The elements of one place in K that go through registers."""
    return sum(side for side, loose in zip((bm, p.held * bn), p.loose, strict=True) if loose)


def depth(p: Product, bm: int, bn: int) -> int:
    """BLOCK_K: of 16 bits twice a step where that is all of K, so that everything is loaded at
    once, or where a step would be shorter than its overhead.

    The overhead weighs twice where no other program multiplies meanwhile and DRAM could go faster.
    """
    if p.nbytes != 2 or not p.shares(bm, bn):
        return p.step
    if bm >= 64 and p.step < p.k <= 2 * p.step:
        return 2 * p.step
    if loose := by_registers(p, bm, bn):
        return 2 * p.step if 2 * p.step * loose <= EACH * THREADS else p.step
    step, turn = _turned(p, bm, bn), _turn(bm)
    held_up = p.alone(bm, bn) and p.k * step > p.step * _moved(p, bm, bn)
    short = step <= (2 * turn if held_up else turn) and p.k >= DEEP * p.step
    return 2 * p.step if short else p.step


def _turn(bm: int) -> float:
    """The overhead of a K step."""
    return TURN * FEW_ROWS if bm < 64 else TURN


def _turned(p: Product, bm: int, bn: int) -> float:
    """The time of a K step of 128 bytes, without its overhead."""
    multiplied = bm * bn * LINE * p.held / (OPERATIONS * p.gpu.products_cycle)
    multiplied *= FEW_ROWS if bm < 64 else 1
    if p.by_steps and p.alone(bm, bn):  # else another program multiplies meanwhile
        multiplied += bm * bn * p.held / ADDED + WAIT
    return max(multiplied, _lines(p, bm, bn) * LINE / CACHED)


def _lines(p: Product, bm: int, bn: int) -> float:
    """The cache lines that a K step of 128 bytes loads: one for each row of a tile, or where an
    operand is stored with M or N contiguous, at least one for each element of the step."""
    rows, columns = (
        (max(side, p.step) if across else side) * (RAGGED if ragged else 1)
        for side, across, ragged in zip((bm, bn), p.across, p.ragged, strict=True)
    )
    return rows + p.held * columns


def _moved(p: Product, bm: int, bn: int) -> float:
    """The time of the DRAM traffic of operands and result.  Few programs ask for less than the
    bandwidth, and for less still where they ask for parts of lines."""
    operands = p.batch * p.k * (p.m + p.held * p.n) * p.nbytes
    moved = operands + p.batch * p.m * p.n * p.stored
    part = min(1.0, bn / p.step) if p.across[1] else 1.0
    return moved / min(dram(p.gpu) * p.gpu.sms, ALONE * part * p.count(bm, bn))


def clocks(p: Product, bm: int, bn: int) -> float:
    """The time of a GEMM in tiles of `bm` by `bn`."""
    each = -(-p.count(bm, bn) // p.gpu.sms)
    time = START + max(each * _tile(p, bm, bn), _waited(p, bm, bn, each)) + _end(p, bm, bn)
    return max(time, START + _moved(p, bm, bn))


def _waited(p: Product, bm: int, bn: int, each: int) -> float:
    """The time that K steps take which are not loaded ahead: a program waits for one piece of a
    step after the other, as many programs as registers hold at once."""
    loose, deep = by_registers(p, bm, bn), depth(p, bm, bn)
    if not loose:
        return 0
    loads = loose * deep / THREADS
    kept = THREADS * (OWN + loads) + bm * bn * p.held
    together = max(1, int(p.gpu.registers_sm // kept))
    waits = LATENCY * max(1.0, loads / AT_ONCE)
    step = waits + deep // p.step * _turned(p, bm, bn) + _turn(bm)
    return -(-each // together) * -(-p.k // deep) * step


def _tile(p: Product, bm: int, bn: int) -> float:
    """The time of a tile of several that an SM has, one after the other."""
    deep = depth(p, bm, bn)
    # The overhead of programs that wait for their loads is that of all at once.
    turn = 0 if by_registers(p, bm, bn) else _turn(bm)
    body = -(-p.k // deep) * max(deep // p.step * _turned(p, bm, bn), turn)
    return body + (0 if p.shares(bm, bn) else _end(p, bm, bn) / 2)


def _end(p: Product, bm: int, bn: int) -> float:
    """The time of the epilogue, which stores a tile."""
    return bm * max(bn * p.stored, LINE) / STORED


@dataclass(frozen=True, slots=True)
class Cut:
    """Stream-K: where the tiles of a last partial wave are divided from the others: whether across
    the rows (`down`), from which row or column on, and how many tiles these are."""

    down: bool
    at: int
    tiles: int


def tails(p: Product, bm: int, bn: int, sides: Collection[bool]) -> Iterator[Cut]:
    """Where the tiles of a last partial wave may be divided from the others, across the `sides`
    that may be divided: columns (False) and rows (True)."""
    count, extents = p.count(bm, bn), ((False, p.n, bn), (True, p.m, bm))
    left = count % p.gpu.sms
    for down, extent, size in extents:
        if down not in sides:
            continue
        lines = -(-extent // size)
        each = count // lines
        cut = -(-left // each)
        if left < count and 0 < cut < lines:
            yield Cut(down, (lines - cut) * size, cut * each)


def in_tails(
    p: Product, bm: int, bn: int, bk: int, sides: Collection[bool]
) -> dict[int, tuple[float, Cut]]:
    """Stream-K: the numbers of parts for which splitting the tiles of the last partial wave along K
    may be quicker, each with the time of the GEMM and where it is divided."""
    usual, cuts = clocks(p, bm, bn), list(tails(p, bm, bn, sides))
    found: dict[int, tuple[float, Cut]] = {}
    for parts in PARTS if cuts else ():
        times = [(with_tail(p, bm, bn, cut.tiles, parts), cut) for cut in cuts]
        least = min(times, key=lambda each: each[0])
        if least[0] < PERHAPS * usual and p.k >= parts * STEPS * bk:
            found[parts] = least
    return found


def best_parts(usual: float, found: Mapping[int, tuple[float, Cut]]) -> int:
    """Of numbers of parts the quickest, or 1 where it is hardly quicker than the `usual` time."""
    least = min(found, key=lambda parts: found[parts][0], default=1)
    return least if least in found and found[least][0] < SHORTER * usual else 1


def with_tail(p: Product, bm: int, bn: int, tail: int, parts: int) -> float:
    """The time of a stream-K GEMM, of which `tail` tiles are split along K, a program for each
    part, before the others."""
    whole, values = _tile(p, bm, bn), bm * bn * p.held * 4
    part = whole / parts + values / STORED + MERGE + (1 + 1 / parts) * values / CACHED
    part += parts * values / MERGED
    turns, last = divmod(p.count(bm, bn) - tail, p.gpu.sms)
    least, more = divmod(tail * parts, p.gpu.sms)
    late = least + (more > 0)
    if last > p.gpu.sms - more:
        busiest = (turns + 1) * whole + late * part
    else:
        busiest = max((turns + (last > 0)) * whole + least * part, turns * whole + late * part)
    busiest = max(busiest, _waited(p, bm, bn, -(-p.count(bm, bn) // p.gpu.sms)))
    return max(START + busiest + _end(p, bm, bn), START + _moved(p, bm, bn))


def best_tile(p: Product, sides: Collection[bool] = ()) -> tuple[int, int]:
    """BLOCK_M and BLOCK_N of the quickest tile; of equal ones the largest, then the one that loads
    least.  A last partial wave may be divided across `sides`."""

    def time(bm: int, bn: int) -> float:
        usual = clocks(p, bm, bn)
        found = in_tails(p, bm, bn, depth(p, bm, bn), sides)
        parts = best_parts(usual, found)
        return usual if parts == 1 else found[parts][0]

    return min(tiles(p), key=lambda tile: (time(*tile), -tile[0] * tile[1], sum(tile)))


def in_parts(p: Product, parts: int) -> float:
    """The time of a split-K GEMM, with a second kernel that adds up the parts."""
    if parts == 1:
        copied = LAUNCH + 2 * p.copied / (dram(p.gpu) * p.gpu.sms) if p.copied else 0
        return clocks(p, *best_tile(p)) + copied
    most, batch, k = min(p.limit, largest(p.gpu) // 2), p.batch * parts, -(-p.k // parts)
    part = replace(p, batch=batch, k=k, stored=4, most=most, loose=p.loose_parts)
    passed = 2 * part.batch * p.m * p.n * 4 / (CACHED / 2 * p.gpu.sms)
    return clocks(part, *best_tile(part)) + LAUNCH + passed


def pays_in_parts(p: Product) -> bool:
    """True where a split-K GEMM, of some number of parts, whose result another kernel reads again,
    takes less time than one in whole."""
    passed = 2 * p.batch * p.m * p.n * p.stored / (CACHED / 2 * p.gpu.sms)
    parts = (1 << n for n in range(1, 11))
    return any(in_parts(p, n) + passed < SURE * in_parts(p, 1) for n in parts if n * LONG <= p.k)


def ahead(p: Product, bm: int, bn: int, stays: bool, bk: int | None = None) -> int:
    """`num_stages` for K steps of `bk`: what fits into shared memory beside a second program
    where there is one, and beside the result of the tile before where the program `stays` for
    the next."""
    shared = p.gpu.shared_block
    room = shared if p.alone(bm, bn) else shared // 2
    room -= bm * bn * p.stored if stays else 0
    step = (bk or p.step) * p.nbytes * (bm + p.held * bn)
    return max(2, min(5, room // step))
