"""Products whose operand changes in registers, in pipelined loops, on a GPU with TMA.

    python tests/helpers/descriptor_prologues.py [--unchanged]

With `--unchanged` PTX stays as Triton writes it, and loops do not wait for products that still read
registers: wrong with Triton 3.6 on an H200 (results that differed from run to run, in 20 of 32
kernels of two stages or more whose tiles TMA loads).  The verdict is the last line: no kernel is
wrong without `--unchanged`, some are with it (most by TMA; by addresses it takes luck).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import product as product_of
from typing import Any

import tedsl as te
from tedsl.backends.triton.compile import assembler
from tedsl.schedules import schedule_for
from tedsl.tensor.tensor import Tensor

SHAPES = ((0, 4032, 704, 256), (3, 1344, 704, 256), (0, 2048, 4096, 1024))
TILES = ((128, 128, 2), (128, 128, 3), (128, 256, 3), (64, 128, 3))
KINDS = ("scale", "mask", "plain")
MASKED = 13
"""Elements at the end of K that the mask leaves out."""


def product(batch: int, m: int, n: int, k: int, kind: str) -> Tensor:
    """A product of bfloat16 with a prologue of the first operand."""
    a = te.placeholder((batch, m, k) if batch else (m, k), "bfloat16", name="a")
    w = te.placeholder((n, k), "bfloat16", name="w")
    r = te.reduce_axis((0, k), name="r")

    def left(i: Any) -> te.Expr:
        value: Any = a[(*i, r)]
        if kind == "scale":
            return value * te.const(2.0, "bfloat16")
        if kind == "mask":
            return te.if_then_else(r < k - MASKED, value, te.const(0.0, "bfloat16"))
        return value

    return te.compute(
        (*a.shape[:-1], n),
        lambda *i: te.sum(left(i[:-1]).astype("float32") * w[i[-1], r].astype("float32"), axis=r),
        name="c",
    )


def scheduled(
    shape: tuple[int, int, int, int], kind: str, tile: tuple[int, int, int], tma: bool = True
) -> te.Schedule:
    """By the rules, with a tile and so many stages, and TMA asked for or not."""
    bm, bn, stages = tile
    asked = {"c.bm": bm, "c.bn": bn, "c.stages": stages, "c.descriptors": tma}
    return schedule_for(product(*shape, kind), "cuda:sm_90", asked)


def wrong(torch: Any, turns: int = 4) -> Iterator[str]:
    """A line for each kernel that gives wrong numbers."""
    for shape, kind, tile, tma in product_of(SHAPES, KINDS, TILES, (True, False)):
        batch, m, n, k = shape
        kernel = te.build(scheduled(shape, kind, tile, tma), "cuda", cache=False)
        bad, count = 0, 0
        for turn in range(turns):
            source = torch.Generator(device="cuda").manual_seed(turn)
            rows = (batch, m, k) if batch else (m, k)
            a = torch.randn(*rows, device="cuda", generator=source).bfloat16()
            w = torch.randn(n, k, device="cuda", generator=source).bfloat16()
            left = a * 2 if kind == "scale" else a.clone()
            if kind == "mask":
                left[..., k - MASKED :] = 0
            want = left.float() @ w.float().T
            bad += int(((kernel(a, w).float() - want).abs() < 1).logical_not().sum())
            count += want.numel()
        if bad:
            how = "by TMA" if tma else "by addresses"
            yield f"{shape} {kind} {tile} {how}: {bad} of {count} elements"


def main() -> None:
    """Print what is wrong."""
    torch: Any = __import__("torch")
    if "--unchanged" in sys.argv:
        assembler.waiting = lambda ptx: ptx
    lines = list(wrong(torch))
    sys.stdout.write("\n".join([*lines, f"{len(lines)} kernels are wrong"]) + "\n")


if __name__ == "__main__":
    main()
