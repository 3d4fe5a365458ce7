"""The computations of `search_on_device.py` as Triton kernels written by hand, under Triton's own
tuner, `triton.autotune`.

It tries the configurations that a search of tedsl measured, as far as a kernel here has the choice:
one after the other, each compiled when it is its turn.  What is compared is the time that takes and
the speed it ends with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import triton
from triton.language import constexpr

tl: Any = importlib.import_module("triton.language")

Call = Callable[..., Any]
Answers = Mapping[str, object]
"""A candidate's choices, by what follows the last dot of their names."""


@triton.jit
def _gemm(
    a, b, bias, out, M, N, K,
    BM: constexpr, BN: constexpr, BK: constexpr,
    GROUP: constexpr, RESIDENT: constexpr, FLATTEN: constexpr,
):  # fmt: skip
    """gelu(a @ b + bias) in tiles by descriptors; groups of rows of tiles share columns in L2."""
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [BK, BN])
    result = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BM, BN])
    across = tl.cdiv(N, BN)
    down = tl.cdiv(M, BM)
    for tile in tl.range(tl.program_id(0), across * down, tl.num_programs(0), flatten=FLATTEN):
        group = tile // (GROUP * across)
        high = tl.minimum(down - group * GROUP, GROUP)
        row = (group * GROUP + tile % (GROUP * across) % high) * BM
        column = tile % (GROUP * across) // high * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(tl.cdiv(K, BK)):
            total = tl.dot(left.load([row, k * BK]), right.load([k * BK, column]), total)
        shift = tl.load(bias + column + tl.arange(0, BN)).to(tl.float32)
        total = total + tl.expand_dims(shift, 0)
        total = total * 0.5 * (1.0 + tl.erf(total * 0.7071067811865476))
        result.store([row, column], total.to(tl.bfloat16))


@triton.jit
def _softmax(x, out, M, N, ROWS: constexpr, BLOCK: constexpr):
    """Whole rows in registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.expand_dims(tl.arange(0, ROWS), 1)
    column = tl.expand_dims(tl.arange(0, BLOCK), 0)
    inside = (row < M) & (column < N)
    value = tl.load(x + row * N + column, inside, other=float("-inf"))
    value = tl.exp(value - tl.max(value, 1, keep_dims=True))
    tl.store(out + row * N + column, value / tl.sum(value, 1, keep_dims=True), inside)


@triton.jit
def _norm(
    x, y, scale, shift, out, M, N,
    ROWS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    """The layer norm of a sum, whole rows in registers."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.expand_dims(tl.arange(0, ROWS), 1)
    column = tl.expand_dims(tl.arange(0, BLOCK), 0)
    inside = (row < M) & (column < N)
    place = row * N + column
    value = tl.load(x + place, inside, other=0.0).to(tl.float32)
    value = value + tl.load(y + place, inside, other=0.0).to(tl.float32)
    value = tl.where(inside, value - tl.sum(value, 1, keep_dims=True) / N, 0.0)
    value = value * tl.rsqrt(tl.sum(value * value, 1, keep_dims=True) / N + 1e-5)
    w = tl.load(scale + column, column < N, other=0.0).to(tl.float32)
    b = tl.load(shift + column, column < N, other=0.0).to(tl.float32)
    tl.store(out + place, (value * w + b).to(tl.bfloat16), inside)


def gemm(answers: Sequence[Answers]) -> tuple[Call, int]:
    """The tuned product and how many configurations it tries."""
    torch: Any = importlib.import_module("torch")

    def scratch(size: int, alignment: int, stream: int | None) -> Any:
        return torch.empty(size, dtype=torch.int8, device="cuda")

    triton.set_allocator(scratch)
    names = {"bm": "BM", "bn": "BN", "bk": "BK", "group": "GROUP", "resident": "RESIDENT"}
    configs = _configs(answers, {**names, "flatten": "FLATTEN"}, "stages", {"flatten": False})
    tuned = triton.autotune(configs, key=[])(_gemm)
    processors = _processors()

    def call(a: Any, b: Any, bias: Any) -> Any:
        (rows, inner), columns = a.shape, b.shape[1]
        out = torch.empty((rows, columns), dtype=a.dtype, device=a.device)

        def grid(meta: Any) -> tuple[int]:
            tiles = triton.cdiv(rows, meta["BM"]) * triton.cdiv(columns, meta["BN"])
            return (min(tiles, processors * meta["RESIDENT"]) if meta["RESIDENT"] else tiles,)

        tuned[grid](a, b, bias, out, rows, columns, inner)
        return out

    return call, len(configs)


def softmax(answers: Sequence[Answers]) -> tuple[Call, int]:
    """The tuned softmax and how many configurations it tries."""
    configs = _configs([a for a in answers if a.get("whole_row", True)], {"rows": "ROWS"})
    tuned = triton.autotune(configs, key=[])(_softmax)
    return _by_rows(tuned), len(configs)


def norm(answers: Sequence[Answers]) -> tuple[Call, int]:
    """The tuned norm and how many configurations it tries."""
    configs = _configs([a for a in answers if a.get("whole_row", True)], {"rows": "ROWS"})
    tuned = triton.autotune(configs, key=[])(_norm)
    return _by_rows(tuned), len(configs)


PEERS: Mapping[str, Callable[[Sequence[Answers]], tuple[Call, int]]] = {
    "gemm": gemm,
    "softmax": softmax,
    "norm": norm,
}


def _by_rows(tuned: Any) -> Call:
    """A call of a kernel over whole rows, whose first input is as large as its output."""
    torch: Any = importlib.import_module("torch")

    def call(*inputs: Any) -> Any:
        rows, columns = inputs[0].shape
        out = torch.empty_like(inputs[0])

        def grid(meta: Any) -> tuple[int]:
            return (triton.cdiv(rows, meta["ROWS"]),)

        tuned[grid](*inputs, out, rows, columns, BLOCK=triton.next_power_of_2(columns))
        return out

    return call


def _configs(
    answers: Sequence[Answers],
    names: Mapping[str, str],
    stages: str = "",
    unmet: Answers = MappingProxyType({}),
) -> list[triton.Config]:
    """The different configurations among some candidates; `unmet` answers for knobs that one of
    them does not have, and one without any other is left out."""
    found: dict[tuple[object, ...], triton.Config] = {}
    for each in answers:
        given = {**unmet, **each}
        if not {*names, "warps", *([stages] if stages else [])} <= set(given):
            continue
        kept = {own: given[name] for name, own in names.items()}
        options = {"num_warps": int(str(given["warps"]))}
        if stages:
            options["num_stages"] = int(str(given[stages]))
        found[(*kept.values(), *options.values())] = triton.Config(kept, **options)
    return list(found.values())


def _processors() -> int:
    torch: Any = importlib.import_module("torch")
    return int(torch.cuda.get_device_properties(0).multi_processor_count)
