"""The tile scheduler of a GEMM: the swizzle of the grid for L2 reuse, persistent programs per SM,
and prefetching across their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.devices import GpuDevice
from tedsl.expr.nodes import Axis
from tedsl.schedules.analysis.nests import among
from tedsl.schedules.analysis.views import blocks, times, volume
from tedsl.schedules.devices import gpu_of
from tedsl.schedules.gpu.gemm.cost_model import Product, depth, largest, two_fit
from tedsl.schedules.gpu.gemm.stationary_operand import TILE, keep_rows, run_of
from tedsl.schedules.gpu.launch import bind_all
from tedsl.schedules.knobs import flip, knobs_of, pick
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.tensor.tensor import Tensor

# Bytes for an element of an epilogue vector that is prefetched with the operands, for three tiles.
VECTORS = 3 * 4
# Tiles whose operands are in shared memory at once, so that none waits for the next.
AHEAD = 3


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles of a GEMM: the batch axes, and `down` (M) and `across` (N) an extent of the result,
    the loop over its tiles and their size; BLOCK_K, and whether that is the `whole` of K."""

    product: Product | None
    others: list[Axis]
    down: tuple[int | None, Axis, int]
    across: tuple[int | None, Axis, int]
    step: int
    whole: bool

    def count(self) -> int | None:
        """How many tiles there are."""
        sides = (blocks(extent, size) for extent, _, size in (self.down, self.across))
        return times(volume(self.others), *sides)


@dataclass(frozen=True, slots=True)
class Programs:
    """The loop around one tile, persistent programs per SM (0: one program for each tile), and with
    operand-stationary tiles the loop over programs."""

    place: Axis
    stays: int = 0
    kept: Axis | None = None


def programs_of(
    s: Schedule,
    stage: Stage,
    tiling: Tiling,
    apart: Axis | None,
    may_stay: bool,
    vectors: set[Tensor],
    held: int,
) -> Programs:
    """Which program computes which tiles, of `held` accumulators each."""
    product, bm, bn = tiling.product, tiling.down[2], tiling.across[2]
    tile, wide = (bm, bn, tiling.step), blocks(tiling.across[0], bn)
    if tiling.whole and apart is None and held == 1 and wide is not None:
        rows, columns = [*tiling.others, tiling.down[1]], tiling.across[1]
        run = kept_run(product, tile, vectors) if may_stay else 1
        fitting = [_fitting(product, tile, stays, vectors, True) for stays in (1, 2)]
        kept = keep_rows(s, stage, rows, columns, (wide, run), fitting[0])
        if kept is not None:
            return Programs(kept[1], 1 + (fitting[1] >= AHEAD), kept[0])
    order = [*tiling.others, *_order(s, stage, tiling.down, tiling.across)]
    stage.reorder(*order, *(a for a in stage.leaf_iter_vars if not among(a, order)))
    # Where two programs share an SM, the epilogue of one overlaps the mainloop of the other anyway;
    # and a tile that TMA does not store is held in registers while the next one is loaded.
    alone = tiling.whole or held * bm * bn > two_fit(gpu_of(s))
    one = apart is not None
    stays = 0 if one else programs_stay(s, stage, tiling.count(), may_stay and alone)
    fitting = _fitting(product, tile, stays, vectors) if tiling.whole else 0
    return Programs(grid_of(s, stage, order, stays, apart, fitting, alike=held == 1), stays)


def kept_run(product: Product | None, tile: tuple[int, int, int], vectors: set[Tensor]) -> int:
    """How many tiles along N, of rows, columns and depth, a program with stationary rows takes by
    default; 1 where it does not, or where two programs with operands of three tiles would not share
    an SM: one multiplies while the other stores.  Operands of 8 bits cannot be swapped in the MMA,
    so that tiles with so few columns would read them twice as often."""
    if product is None or product.held > 1 or product.k > tile[2] or product.nbytes != 2:
        return 1
    return run_of(product, *tile[:2]) if _fitting(product, tile, 2, vectors, True) >= AHEAD else 1


def shallow_tile(product: Product | None, vectors: set[Tensor]) -> tuple[int, int] | None:
    """BLOCK_M and BLOCK_N where programs keep their rows stationary by default, else None."""
    if product is None:
        return None
    return TILE if kept_run(product, (*TILE, depth(product, *TILE)), vectors) > 1 else None


def _fitting(
    product: Product | None,
    tile: tuple[int, int, int],
    stays: int,
    vectors: set[Tensor],
    kept: bool = False,
) -> int:
    """For how many tiles, of rows, columns and depth, shared memory holds the operands, where
    `stays` programs are on an SM: beside the accumulator's tile, and the rows and columns of
    epilogue vectors that are prefetched with them.  The operand of the rows may be `kept`
    (stationary) for all of them."""
    if product is None:
        return 0
    bm, bn, bk = tile
    rows, columns = (bk * side * product.nbytes for side in (bm, product.held * bn))
    held = bm * bn * product.stored + VECTORS * (bm + bn) * len(vectors)
    room = product.gpu.shared_block // max(stays, 1) - held
    return (room - rows) // columns if kept else room // (rows + columns)


def many_tiles(gpu: GpuDevice, points: int | None, held: int = 1) -> bool:
    """True when every SM has several tiles of a result of so many points, of which a program holds
    `held`."""
    return points is not None and points * held >= 2 * gpu.sms * largest(gpu)


def programs_stay(s: Schedule, stage: Stage, tiles: int | None, many: bool) -> int:
    """The knob `resident`: persistent programs per SM, which pay when each has several tiles, since
    the epilogue of one tile overlaps the loads of the next; 0 for a program for each tile."""
    fitting = [n for n in (0, 1, 2) if tiles is None or n * gpu_of(s).sms < tiles]
    return pick(s, f"{knobs_of(s, stage)}.resident", fitting, int(many), max(fitting, default=0))


def _order(
    s: Schedule,
    stage: Stage,
    down: tuple[int | None, Axis, int],
    across: tuple[int | None, Axis, int],
) -> list[Axis]:
    """The swizzle (grouped order) of the tiles: down some tiles of a column before the next column,
    so that programs share operands in L2.

    `down` and `across` are an extent of the result, the loop over its tiles, and their size.
    """
    extent, tiles, size = down
    limit = max(1, blocks(extent, size) or 1)
    # Groups that are not whole would leave programs without a tile.
    default = next((n for n in (8, 4) if extent is not None and limit % n == 0), 1)
    grouped = pick(s, f"{knobs_of(s, stage)}.group", (1, 2, 4, 8, 16), default, limit)
    if grouped == 1:
        return [tiles, across[1]]
    outer, inner = stage.split(tiles, factor=grouped)
    return [outer, across[1], inner]


def grid_of(
    s: Schedule,
    stage: Stage,
    order: Sequence[Axis],
    stays: int,
    apart: Axis | None,
    fitting: int = 0,
    alike: bool = True,
) -> Axis:
    """One tile per program, with the loop `apart` on a grid axis of its own; or persistent
    programs, which take every n-th tile.

    They prefetch through the mainloop, or where a tile is one K step, the operands of the next
    tiles: as many as are `fitting`.  The loop over tiles and the mainloop are flattened into one by
    default where one iteration is `alike` to the others: one product, with nothing but its
    accumulator carried from step to step.
    """
    if not stays:
        return bind_all(stage, order, apart=apart)
    grid = stage.fuse(*order)
    turn, program = stage.split(grid, factor=stays * gpu_of(s).sms)
    leaves = [a for a in stage.leaf_iter_vars if a is not turn and a is not program]
    stage.reorder(program, turn, *leaves)
    stage.bind(program, "blockIdx.x")
    if fitting > 1:
        stage.pipeline(
            turn, num_stages=pick(s, f"{knobs_of(s, stage)}.ahead", (1, 2, 3), 3, fitting)
        )
    elif flip(s, f"{knobs_of(s, stage)}.flatten", alike):
        stage.pipeline(turn, num_stages=1, flatten=True)
    return turn
