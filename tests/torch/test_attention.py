"""Scaled dot-product attention of 16-bit floats, traced as fused kernels compute it."""

from __future__ import annotations

import re
from typing import Any

import pytest

import tedsl as te

torch = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
attend: Any = torch.nn.functional.scaled_dot_product_attention


def numbers(*shape: int, dtype: Any = torch.float16, grad: bool = False) -> Any:
    source = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=source).to(dtype).requires_grad_(grad)


CALLS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "plain": (attend, ((2, 3, 20, 16), (2, 3, 30, 16), (2, 3, 30, 24))),
    "causal, of a scale": (
        lambda q, k, v: attend(q, k, v, is_causal=True, scale=0.3),
        ((2, 3, 20, 16), (2, 3, 20, 16), (2, 3, 20, 24)),
    ),
    "causal, more keys than queries": (
        lambda q, k, v: attend(q, k, v, is_causal=True),
        ((3, 20, 16), (3, 25, 16), (3, 25, 16)),
    ),
    "a mask": (
        lambda q, k, v, m: attend(q, k, v, m > 0),
        ((2, 3, 20, 16), (2, 3, 30, 16), (2, 3, 30, 24), (20, 30)),
    ),
    "a bias": (
        lambda q, k, v, m: attend(q, k, v, attn_mask=m),
        ((2, 3, 20, 16), (2, 3, 30, 16), (2, 3, 30, 24), (3, 20, 30)),
    ),
    "a row that sees nothing": (
        lambda q, k, v, m: attend(q, k, v, m > 100),
        ((2, 20, 16), (2, 30, 16), (2, 30, 24), (20, 30)),
    ),
    "grouped queries": (
        lambda q, k, v: attend(q, k, v, enable_gqa=True),
        ((2, 6, 20, 16), (2, 2, 30, 16), (2, 2, 30, 16)),
    ),
    "two dimensions": (attend, ((20, 16), (30, 16), (30, 24))),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", CALLS)
def test_as_exact_as_pytorch(name: str, dtype: Any) -> None:
    """Errors against float64 are at most a little more than twice those of eager."""
    f, shapes = CALLS[name]
    given = [numbers(*shape, dtype=dtype) for shape in shapes]
    found = tt.trace(f, *given).build()(*given)
    exact = torch.nan_to_num(f(*(each.double() for each in given)))
    eager = (torch.nan_to_num(f(*given)).double() - exact).abs().max()
    assert found.dtype is dtype
    room = torch.finfo(dtype).eps * exact.abs().max()
    assert (found.double() - exact).abs().max() <= 2 * eager + room


def test_operands_of_products_are_short() -> None:
    given = [numbers(2, 4, 128, 64) for _ in range(3)]
    source = te.build(tt.trace(attend, *given).outputs, "cuda:sm_90").source
    assert source.count("tl.dot(") == 2
    assert "tf32" not in source
    assert source.count("_kernel(") == 1


@pytest.mark.parametrize(
    ("queries", "keys"),
    [((1, 8, 2272, 96), (1, 8, 2272, 96)), ((2, 4, 2560, 128), (2, 2, 4416, 128))],
)
def test_a_batch_of_one_and_shared_keys_are_loaded_in_tiles(queries: Any, keys: Any) -> None:
    """One kernel, in which TMA loads all operands, the queries before the loop."""

    def attends(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, enable_gqa=q.shape[1] != k.shape[1])

    given = [torch.empty(shape, dtype=torch.float16) for shape in (queries, keys, keys)]
    source = te.build(tt.trace(attends, *given).outputs, "cuda:sm_90").source
    assert source.count("_kernel(") == 1
    assert all(f"{name}_desc.load" in source for name in ("q", "k", "v"))
    assert source.index("q_desc.load") < source.index("tl.range(") < source.index("k_desc.load")


@pytest.mark.parametrize(("queries", "keys"), [(640, 640), (640, 900)])
def test_a_causal_loop_ends_at_the_diagonal(queries: int, keys: int) -> None:
    """All keys were multiplied, and those that are not seen then left out, which takes twice as
    long (predicted for 13012 keys of 16 elements: 855 us, now 454)."""
    given = [numbers(2, 4, n, 32) for n in (queries, keys, keys)]

    def causal(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, is_causal=True)

    traced = tt.trace(causal, *given)
    s = te.schedule_for(traced.outputs, "cuda:sm_90")
    text = str(s)
    assert text.count(", where=") == 3 and text.count("finite=True") == 1
    source = te.build(s, "cuda:sm_90").source
    assert source.count("_kernel(") == 1
    turns = re.findall(r"tl\.range\(0, (.+?), num_stages", source)
    assert turns and not any(each.isdecimal() for each in turns)


def test_a_mask_that_data_say_ends_no_loop() -> None:
    given = [*(numbers(2, 64, 32) for _ in range(3)), numbers(64, 64)]
    traced = tt.trace(lambda q, k, v, m: attend(q, k, v, m > 0), *given)
    assert "where=" not in str(te.schedule_for(traced.outputs, "cuda:sm_90"))


def test_the_gradient() -> None:
    shapes = ((2, 3, 20, 16), (2, 3, 30, 16), (2, 3, 30, 16))
    given = [numbers(*shape, grad=True) for shape in shapes]
    head = numbers(2, 3, 20, 16)
    tt.trace(attend, *given).build()(*given).backward(head)
    found = [each.grad for each in given]
    wide = [each.detach().double().requires_grad_(True) for each in given]
    attend(*wide).backward(head.double())
    for mine, exact in zip(found, wide, strict=True):
        assert (mine.double() - exact.grad).abs().max() < 4e-3
