"""How long a product takes under a tile: a closed form for the default tile and number of parts.

Clocks of one multiprocessor, fitted to an H100 and an H200.  A step multiplies a tile by `STEP` of
the folded axis; it takes the time of the matrix units or of the operands on their way from the
second-level cache, whichever is longer.  The busiest multiprocessor sets the time, so that the last
wave counts in full; memory sets a limit below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tedsl.schedules.analysis import pow2_at_least
from tedsl.schedules.gpu_tiles import PROCESSORS

STEP = 64
LEAST = 16
LARGEST = 128 * 256
TWO_FIT = 128 * 128
"""Elements of a tile up to which two programs share a multiprocessor."""

# Per clock and multiprocessor: operations, bytes from the cache, bytes of memory, bytes stored.
OPERATIONS = 3300
CACHED = 48
MEMORY = 19
STORED = 32
# What one multiprocessor gets of the memory's bytes where others are idle.
ALONE = 30
# Units that take 16 rows at a time are slower, and wait for each step.
FEW_ROWS = 1.7
# Clocks: to fill the pipeline, to turn to the next step, to launch a second kernel.
START = 2000
TURN = 300
LAUNCH = 3500


@dataclass(frozen=True, slots=True)
class Product:
    """Extents of a product, bytes of an element of its operands and of its result, how many such
    results a program holds at once, and the most elements of a tile of them."""

    batch: int
    m: int
    n: int
    k: int
    nbytes: int = 2
    stored: int = 2
    held: int = 1
    most: int = LARGEST


def tiles(p: Product) -> Iterator[tuple[int, int]]:
    """Rows and columns of the tiles that fit: no side far beyond the product's, no few rows or
    short rows of a tile where the product has more."""
    high, wide = max(LEAST, pow2_at_least(p.m)), max(LEAST, pow2_at_least(p.n))
    for bm in (128, 256, 64, 32, 16):
        for bn in (256, 128, 64, 32, 16):
            fits = min(64, high) <= bm <= high and min(32, wide) <= bn <= wide
            if fits and bm * bn <= p.most:
                yield bm, bn


def clocks(p: Product, bm: int, bn: int) -> float:
    """The time of a product in tiles of `bm` by `bn`."""
    count = p.batch * -(-p.m // bm) * -(-p.n // bn)
    each = -(-count // PROCESSORS)
    multiplied = 2 * bm * bn * STEP * p.held / OPERATIONS
    multiplied *= FEW_ROWS if bm < 64 else 1
    turn = TURN * FEW_ROWS if bm < 64 else TURN
    fetched = (bm + p.held * bn) * STEP * p.nbytes / CACHED
    body = -(-p.k // STEP) * max(multiplied, fetched, turn)
    end = bm * bn * p.stored / STORED
    alone = bm * bn * p.held > TWO_FIT
    time = START + each * (body + (end / 2 if alone else 0)) + end
    operands = p.batch * p.k * (p.m + p.held * p.n) * p.nbytes
    moved = operands + p.batch * p.m * p.n * p.stored
    rate = min(MEMORY * PROCESSORS, ALONE * count)
    return max(time, START + moved / rate)


def best_tile(p: Product) -> tuple[int, int]:
    """The rows and columns of the quickest tile; of equal ones the largest."""
    return min(tiles(p), key=lambda tile: (clocks(p, *tile), -tile[0] * tile[1]))


def in_parts(p: Product, parts: int) -> float:
    """The time of a product whose folded axis is cut into parts that a second kernel adds up."""
    if parts == 1:
        return clocks(p, *best_tile(p))
    part = Product(
        p.batch * parts, p.m, p.n, -(-p.k // parts), p.nbytes, 4, p.held, min(p.most, LARGEST // 2)
    )
    passed = 2 * part.batch * p.m * p.n * 4 / (CACHED / 2 * PROCESSORS)
    return clocks(part, *best_tile(part)) + LAUNCH + passed


def ahead(p: Product, bm: int, bn: int, shared: int, stays: bool) -> int:
    """Steps to fetch ahead: what fits beside a second program where there is one, and beside the
    result of the tile before where the program `stays` for the next."""
    count = p.batch * -(-p.m // bm) * -(-p.n // bn)
    alone = bm * bn * p.held > TWO_FIT or count <= PROCESSORS
    room = shared if alone else shared // 2
    room -= bm * bn * p.stored if stays else 0
    return max(2, min(5, room // (STEP * (bm + p.held * bn) * p.nbytes)))
