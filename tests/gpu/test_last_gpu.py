"""What the last programs of a kernel compute, on a GPU: any of them may be the last."""

from __future__ import annotations

from typing import Any

import pytest
from streams import check_streams_and_graphs

import tedsl as te

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")


def rows(m: int, n: int, parts: int, last: bool) -> te.Schedule:
    """Sums of rows, each in parts; with `last` in one launch."""
    A = te.placeholder((m, n), name="A")
    k = te.reduce_axis((0, n), name="k")
    C = te.compute((m,), lambda i: te.sum(A[i, k], axis=k), name="C")
    D = te.compute((m,), lambda i: C[i] * 0.5, name="D")
    s = te.create_schedule(D)
    P = s.rfactor(C, s[C].split(k, nparts=parts)[0])
    p, i = s[P].op.axis
    _, lanes = s[P].split(s[P].op.reduce_axis[0], 1024)
    s[P].reorder(i, p)
    s[P].bind(i, "blockIdx.y")
    s[P].bind(p, "blockIdx.x")
    s[P].vectorize(lanes)
    s[D].bind(s[D].op.axis[0], "blockIdx.x")
    s[C].vectorize(s[C].op.reduce_axis[0])
    s[C].compute_at(s[D], s[D].op.axis[0])
    if last:
        s[D].compute_last(P)
    return s


@pytest.mark.parametrize("m, n, parts", [(1, 1 << 22, 1024), (64, 1 << 16, 32), (1000, 4099, 7)])
def test_one_launch_is_two_bit_by_bit(m: int, n: int, parts: int) -> None:
    one, two = (te.build(rows(m, n, parts, last), "cuda") for last in (True, False))
    x = torch.randn(m, n, device="cuda")
    want = two(x)
    torch.testing.assert_close(want, x.sum(1) * 0.5, rtol=1e-3, atol=1e-2)
    for _ in range(200):
        assert torch.equal(one(x), want)


def test_streams_and_graphs_do_not_count_in_each_others_memory() -> None:
    kernel = te.build(rows(64, 1 << 16, 32, last=True), "cuda")
    inputs = [torch.randn(64, 1 << 16, device="cuda") for _ in range(4)]
    check_streams_and_graphs(kernel, inputs)
