"""Products under the rules on a GPU: unaligned rows, parts, folds of tiles, against PyTorch."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import tedsl as te
from tedsl.schedules import schedule_for
from tedsl.tensor.tensor import Tensor

pytestmark = pytest.mark.gpu
B = "bfloat16"
SHAPES = [(1023, 1025, 1000), (511, 777, 1023), (512, 512, 8192), (16, 2048, 4096), (300, 200, 65)]


def product(m: int, n: int, k: int) -> Tensor:
    """A product of 16-bit operands, in float32."""
    a, b = te.placeholder((m, k), B, name="a"), te.placeholder((k, n), B, name="b")
    r = te.reduce_axis((0, k), name="r")

    def body(i: te.Axis, j: te.Axis) -> te.Expr:
        return te.sum(a[i, r].astype("float32") * b[r, j].astype("float32"), axis=r)

    return te.compute((m, n), body, name="product")


def operands(m: int, n: int, k: int, seed: int = 1) -> tuple[Any, Any]:
    """Two matrices on the device."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(seed)
    a, b = torch.randn(m, k, device="cuda"), torch.randn(k, n, device="cuda")
    return a.to(torch.bfloat16), b.to(torch.bfloat16)


def near(got: Any, want: Any, bound: float) -> None:
    """The relative error (Frobenius norm) is within a bound."""
    assert float((got.float() - want).norm() / want.norm()) <= bound


@pytest.mark.parametrize("shape", SHAPES)
def test_products_of_odd_sizes(shape: tuple[int, int, int]) -> None:
    a, b = operands(*shape)
    kernel = te.build(te.cast(product(*shape), B), "cuda")
    for _ in range(2):
        near(kernel(a, b), a.float() @ b.float(), 1e-2)


@pytest.mark.parametrize("shape", [(4096, 4096, 128), (4100, 4104, 72), (8192, 2056, 64)])
def test_shallow_products_fetch_tiles_ahead(shape: tuple[int, int, int]) -> None:
    """What is stored of one tile is not overwritten by the next; operands change between calls."""
    for seed in range(3):
        a, b = operands(*shape, seed)
        kernel = te.build(te.cast(product(*shape), B), "cuda")
        want = a.float() @ b.float()
        for _ in range(3):
            near(kernel(a, b), want, 1e-2)


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float8_e5m2", "int8"])
@pytest.mark.parametrize("shape", [(512, 512, 4096), (1000, 1104, 2000), (4096, 4096, 128)])
def test_products_of_8_bits(shape: tuple[int, int, int], kind: str) -> None:
    torch: Any = importlib.import_module("torch")
    m, n, k = shape
    left, right = operands(m, 16, k)[0], operands(n, 16, k, 2)[0]
    given = [(4 * x.float()).to(getattr(torch, kind)) for x in (left, right)]
    a, b = te.placeholder((m, k), kind, name="a"), te.placeholder((n, k), kind, name="b")
    kernel = te.build(te.nn.scaled_matmul(a, b), "cuda")
    near(kernel(*given), given[0].float() @ given[1].float().t(), 1e-2)


@pytest.mark.parametrize("shape", [(1023, 1025, 512), (4095, 4095, 4095)])
def test_padded_rows_hold_nothing_that_counts(shape: tuple[int, int, int]) -> None:
    """Memory that is used again for the copies holds NaN beyond their rows."""
    torch: Any = importlib.import_module("torch")
    a, b = operands(*shape)
    kernel = te.build(te.cast(product(*shape), B), "cuda")
    for _ in range(3):
        left = [torch.full((64 << 20,), float("nan"), device="cuda", dtype=torch.bfloat16)]
        left.clear()
        near(kernel(a, b), a.float() @ b.float(), 1e-2)


@pytest.mark.parametrize("shape", [(1024, 2048, 512), (1000, 1001, 136)])
def test_log_sum_exp_of_the_rows_of_a_product(shape: tuple[int, int, int]) -> None:
    torch: Any = importlib.import_module("torch")
    m, n, k = shape
    p = product(m, n, k)
    r, q = te.reduce_axis((0, n), name="r"), te.reduce_axis((0, n), name="q")
    top = te.compute((m,), lambda i: te.max(p[i, r], axis=r), name="top")
    total = te.compute((m,), lambda i: te.sum(te.exp(p[i, q] - top[i]), axis=q), name="total")
    lse = te.compute((m,), lambda i: top[i] + te.log(total[i]), name="lse")
    a, b = operands(m, n, k)
    near(te.build(lse, "cuda")(a, b), torch.logsumexp(a.float() @ b.float(), 1), 1e-3)


@pytest.mark.parametrize("shape", [(1024, 2048, 512), (1000, 1001, 136)])
def test_a_product_and_the_squares_of_its_rows(shape: tuple[int, int, int]) -> None:
    m, n, k = shape
    p = product(m, n, k)
    r = te.reduce_axis((0, n), name="r")
    squares = te.compute((m,), lambda i: te.sum(p[i, r] * p[i, r], axis=r), name="squares")
    out = te.compute((m, n), lambda i, j: p[i, j].astype(B), name="out")
    a, b = operands(m, n, k)
    got, sums = te.build([out, squares], "cuda")(a, b)
    want = a.float() @ b.float()
    near(got, want, 1e-2)
    near(sums, (want * want).sum(1), 1e-3)


@pytest.mark.parametrize(
    "shape, tile, parts",
    [
        ((1000, 3000, 2000), (128, 128, 4, 3), 2),
        ((2048, 11008, 4096), (128, 256, 8, 3), 4),
        ((1023, 5001, 2065), (128, 128, 4, 3), 2),
    ],
)
def test_tiles_of_the_last_wave_in_parts(
    shape: tuple[int, int, int], tile: tuple[int, int, int, int], parts: int
) -> None:
    """One launch more or less, whichever program of a tile is the last: the same bits each time."""
    a, b = operands(*shape)
    y = te.cast(product(*shape), B)
    knobs = dict(zip(("bm", "bn", "warps", "stages", "tail"), (*tile, parts), strict=True))
    names = [knob.name for knob in schedule_for([y], "cuda").knobs if knob.name.endswith(".bm")]
    (root,) = (name.removesuffix(".bm") for name in names)
    s = schedule_for([y], "cuda", {f"{root}.{knob}": value for knob, value in knobs.items()})
    assert [stage.name for stage in s.stages if stage.name == f"{root}.tail"]
    kernel = te.build(s, "cuda")
    first = kernel(a, b).clone()
    near(first, a.float() @ b.float(), 1e-2)
    for _ in range(50):
        assert bool((kernel(a, b) == first).all())
