"""Kernels that the assembler of the GPU gets wrong: right with its optimisation off, and in the
virtual instructions (PTX), which were followed number by number."""

from __future__ import annotations

import numpy as np
import pytest

import tedsl as te
from tedsl.expr.reference import evaluate


@pytest.mark.gpu
@pytest.mark.xfail(reason="ptxas of Triton 3.6 -O3; right with DISABLE_PTXAS_OPT=1", strict=False)
@pytest.mark.parametrize("warps", [1, 2, 4])
def test_bytes_at_clamped_remainders(warps: int) -> None:
    """Index arithmetic that LLVM has narrowed to 16 bits, around loads of bytes, 8 for a thread."""
    torch = pytest.importorskip("torch")
    shape = (3, 4, 7, 7)
    a = te.placeholder(shape, "int8", name="a")
    b = te.compute(
        shape,
        lambda n, c, y, x: a[n, c, te.minimum(y + 1, 6), te.minimum(te.abs(x - 7), 6)],
        name="b",
    )
    zero = te.const(0, "int8")
    d = te.compute(
        shape,
        lambda n, c, y, x: (
            te.if_then_else((c < 2) & (y >= 1), b[n, c + 2, y - 1, x], zero)
            + te.if_then_else(y < 6, b[n, c, y + 1, x], zero)
        ),
        name="d",
    )
    s = te.create_schedule(d)
    s[b].compute_inline()
    outer, inner = s[d].split(s[d].fuse(*s[d].op.axis), factor=512)
    s[d].bind(outer, "blockIdx.x")
    s[d].vectorize(inner)
    s[d].cut(outer, 1)
    s[d].launch(num_warps=warps)
    data = np.random.default_rng(1).integers(-3, 4, shape).astype(np.int8)
    (want,) = evaluate([d], {a: data})
    got = te.build(s, target="cuda")(torch.tensor(data, device="cuda"))
    np.testing.assert_array_equal(got.cpu().numpy(), want)
