"""Rows that several programs share by `compute_across`: one read and one write of each, in programs
that wait for each other."""

from __future__ import annotations

import re

import numpy as np
import pytest
from shared_rows import shared, softmax

import tedsl as te
from tedsl.backends.triton.compile.offline import compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.lower.pipeline import lower
from tedsl.target import Target


@pytest.mark.parametrize("n, programs", [(1000, 4), (4096, 8)])
def test_in_tritons_interpreter(n: int, programs: int) -> None:
    kernel = te.build(shared(softmax(5, n), programs, 2, 4), "triton-interpret")
    x = np.random.default_rng(0).standard_normal((5, n), np.float32)
    want = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(kernel(x), want / want.sum(1, keepdims=True), rtol=1e-4, atol=1e-6)


@pytest.mark.ptxas
@pytest.mark.uncompiled("compiled here")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
def test_a_row_is_read_once(arch: str) -> None:
    """Parts stay in registers while programs wait, and those of the next row are fetched: 16 of
    8192 elements, two on an SM, and as many rows for each group of 16 programs."""
    target = Target.parse(f"cuda:{arch}")
    groups = 2 * target.resolve_gpu().sms // 16
    s = shared(softmax(64 * groups, 131_072, "bfloat16"), 16, groups, 16, 64)
    program = emit(lower(s.plan, target, check=True), target)
    assert program.source.count("tl.load(x") == 2, "of the first row, and of the one after each"
    assert program.kernels[0].options()["launch_cooperative_grid"] is True
    (info,) = compile_offline(program, arch)
    assert info.stack == 0, "nothing is spilled"
    order = re.findall(
        r"(?:red|atom)\.global\.gpu\.release\.add|ld\.global\.gpu\.acquire|bar\.sync"
        r"|ld\.global\S*v4",
        info.ptx,
    )
    (count,) = [n for n, each in enumerate(order) if each.endswith(".release.add")]
    assert order[count - 1] == "bar.sync", "the stores of all threads are behind it"
    wait = order.index("ld.global.gpu.acquire")
    assert order[wait + 1] == "bar.sync"
    assert any("v4" in each for each in order[count + 1 : wait]), "fetched between the two"
