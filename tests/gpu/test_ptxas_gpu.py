"""A kernel whose PTX is right and which ptxas gets wrong: `backends/triton/compile/assembler.py`
says it so that it does not."""

from __future__ import annotations

import numpy as np
import pytest
from packed_sums import bytes_at_clamped_remainders

import tedsl as te
from tedsl.reference.reference import evaluate


@pytest.mark.gpu
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_bytes_at_clamped_remainders(warps: int) -> None:
    """Index arithmetic that LLVM has narrowed to 16 bits, around loads of bytes, 8 for a thread."""
    torch = pytest.importorskip("torch")
    s, a, d = bytes_at_clamped_remainders(warps)
    data = np.random.default_rng(1).integers(-3, 4, (3, 4, 7, 7)).astype(np.int8)
    (want,) = evaluate([d], {a: data})
    got = te.build(s, target="cuda")(torch.tensor(data, device="cuda"))
    np.testing.assert_array_equal(got.cpu().numpy(), want)
