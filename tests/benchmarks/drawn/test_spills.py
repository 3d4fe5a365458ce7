"""Default kernels of drawn rows, compiled without a GPU: registers are put away within no loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from grammar import KINDS, Input
from kinds import row_of

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.cost.devices import WEIGHTS
from tedsl.cost.gpu import estimate_kernel
from tedsl.devices import H200
from tedsl.ir.nodes import Func
from tedsl.lower.pipeline import lower
from tedsl.target import Target

pytestmark = [
    pytest.mark.ptxas,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.uncompiled("compiled here, for one device"),
]
HOPPER = Target.parse("cuda:sm_90")
DTYPES = ["float32", "bfloat16", "float16"]
# Bytes that a thread may put away, with the arrays of sines and cosines; and those of a store after
# all loops, of elements of which each has an address of its own.
MOST, ONCE = 96, 576
# Attention in float32 of heads of 80 and 128, its gradient, and a product of unaligned rows.
FEW = [(611126, 7), (611126, 152), (311126, 11), (611126, 21)]
WIDE = [(seed, n) for seed in (611126, 911129) for n in range(len(KINDS))]


def meta(each: Input) -> Any:
    """An input without memory, in its layout."""
    torch = pytest.importorskip("torch")
    order = each.order or tuple(range(len(each.shape)))
    sizes = [each.shape[k] for k in order]
    sizes[-1] *= each.step
    made = torch.empty(sizes, dtype=getattr(torch, each.dtype), device="meta")[..., :: each.step]
    return made.permute([order.index(k) for k in range(len(order))])


def spilled(seed: int, number: int) -> Iterator[tuple[str, int, int]]:
    """Of each kernel of a row its name, the bytes that a thread puts away, and how many it may."""
    torch = pytest.importorskip("torch")
    front = pytest.importorskip("tedsl.torch")
    row = row_of(seed, number, "cuda", DTYPES)
    space: dict[str, Any] = {}
    exec(row.source(), space)
    try:
        with torch.no_grad():
            outputs = front.trace(space["f"], *map(meta, row.inputs)).outputs
    except front.NotTaken as refused:
        pytest.skip(str(refused))
    module = lower(te.schedule_for(outputs, HOPPER).plan, HOPPER)
    infos = compile_offline(emit(module, HOPPER), "sm_90")
    launched = [func for func in module.funcs if func.host_call is None]
    for func, info in zip(launched, infos, strict=True):
        if info.stack is None:
            pytest.skip("the wheel has no cuobjdump")
        yield info.name, info.stack, ONCE if ends_full(func) else MOST


def ends_full(func: Func) -> bool:
    """True when only what runs once needs more registers than there are."""
    found = estimate_kernel(func, {}, H200, WEIGHTS).held
    runs = [times for need, times in found.each if need > H200.registers_thread]
    return bool(runs) and max(runs) <= 1


@pytest.mark.parametrize(("seed", "number"), FEW)
def test_few(seed: int, number: int) -> None:
    found = list(spilled(seed, number))
    assert not [each for each in found if each[1] > each[2]]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "number"), WIDE)
def test_wide(seed: int, number: int) -> None:
    found = list(spilled(seed, number))
    assert not [each for each in found if each[1] > each[2]]
