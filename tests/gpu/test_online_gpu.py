"""Chains of dependent reductions on a GPU: attention in one kernel."""

from __future__ import annotations

from typing import Any

import pytest
from attentions import attention, one_pass

import tedsl as te

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("rows", "keys", "depth"), [(512, 512, 64), (300, 413, 64), (1, 77, 128)])
def test_attention(rows: int, keys: int, depth: int, causal: bool) -> None:
    run = te.build(one_pass(attention(4, rows, keys, depth, "bfloat16", causal)), "cuda")
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(4, n, depth, device="cuda", dtype=torch.bfloat16) for n in (rows, keys, keys)
    )
    scores = q.double() @ k.double().transpose(1, 2) * depth**-0.5
    if causal:
        seen = torch.ones(rows, keys, device="cuda", dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    want = scores.softmax(-1) @ v.double()
    got = run(q, k, v)
    assert (got.double() - want).abs().max().item() < 2e-2


def test_large_scores() -> None:
    run = te.build(one_pass(attention(2, 256, 256, 64, "bfloat16")), "cuda")
    torch.manual_seed(0)
    q = torch.randn(2, 256, 64, device="cuda").sign().mul(1e4 / 8).bfloat16()
    k, v = (torch.randn(2, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    scores = q.double() @ k.double().transpose(1, 2) / 8
    want = scores.softmax(-1) @ v.double()
    assert scores.abs().max().item() > 1e3
    assert (run(q, k, v).double() - want).abs().max().item() < 2e-2
