"""Symbolic sizes whose index arithmetic leaves 32 bits are refused."""

from __future__ import annotations

import pytest

import tedsl as te
from tedsl.errors import BackendError
from tedsl.runtime.arguments.index_ranges import check_ranges


def doubled(dtype: str) -> te.Tensor:
    n, m = te.size_var("n", dtype), te.size_var("m", dtype)
    a = te.placeholder((n, m), "int8", name="A")
    return te.compute((n, m), lambda i, j: a[i, j] + a[i, j], name="B")


def check(dtype: str, target: str, n: int, m: int) -> None:
    b = doubled(dtype)
    s = te.create_schedule(b)
    fused = s[b].fuse(*s[b].op.axis)
    outer, inner = s[b].split(fused, 256)
    s[b].bind(outer, "blockIdx.x")
    s[b].vectorize(inner)
    module = te.lower(s, target)
    given = {"n": n, "m": m}
    check_ranges(module, {var: given[var.name] for var in module.sizes})


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_a_fused_loop_over_too_many_elements(target: str) -> None:
    check("int32", target, 30_000, 40_000)
    check("int32", target, 2**30, 1)
    message = r"kernel B: the index .* reaches 25\d+, beyond int32(.|\n)*n = 50000, m = 50000"
    with pytest.raises(BackendError, match=message + r"(.|\n)*te\.size_var\('n', \"int64\"\)"):
        check("int32", target, 50_000, 50_000)
    check("int64", target, 50_000, 50_000)


def test_the_last_block_counts() -> None:
    n = 2**31 - 1
    check("int32", "cpu", (n - 255) // 7, 7)
    with pytest.raises(BackendError, match=r"beyond int32"):
        check("int32", "cpu", n, 1)
