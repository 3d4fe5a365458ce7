"""Programs that wait for each other, on a GPU.  Each test is a process of its own with a time
limit: where a wait has no end, the process is killed and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shared_rows import shared, softmax
from streams import check_streams_and_graphs

import tedsl as te
from tedsl.devices import H200
from tedsl.errors import BackendError

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")

LIMIT = 300.0
"""Seconds, nearly all of them for compilers."""
SHAPES = ((1024, 131_072, 8, 2), (1000, 40_001, 4, 2), (128, 1 << 20, 64, 2), (3, 65_536, 16, 1))


def built(m: int, n: int, programs: int, resident: int, dtype: str = "bfloat16") -> Any:
    groups, warps = max(1, resident * H200.sms // programs), 16
    most = 65536 // (32 * warps * resident)
    return te.build(shared(softmax(m, n, dtype), programs, groups, warps, most), "cuda")


def rows() -> None:
    for m, n, programs, resident in SHAPES:
        for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float32, "float32")):
            kernel = built(m, n, programs, resident, name)
            x = torch.randn(m, n, device="cuda", dtype=dtype)
            want = torch.softmax(x.float(), 1)
            first = kernel(x).clone()
            close = {"rtol": 1e-2, "atol": 1e-6} if name == "bfloat16" else {"rtol": 1e-4}
            torch.testing.assert_close(first.float(), want, **{"atol": 1e-7, **close})
            for _ in range(100):
                assert torch.equal(kernel(x), first), "the same bits whoever comes last"


def streams_and_graphs() -> None:
    kernel = built(64, 65_536, 16, 2)
    inputs = [torch.randn(64, 65_536, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    check_streams_and_graphs(kernel, inputs)


def refusal() -> None:
    """More programs than the device runs at once: refused at the launch, and not run for ever."""
    A = te.placeholder((4096, 4), name="A")
    B = te.compute((4096, 4), lambda i, p: A[i, p] + 1.0, name="B")
    C = te.compute((4096, 4), lambda i, p: B[i, p] * B[i, 3 - p], name="C")
    s = te.create_schedule(C)
    i, p = s[C].op.axis
    t, g = s[C].split(i, factor=1024)
    s[C].reorder(g, p, t)
    s[C].bind(g, "blockIdx.y")
    s[C].bind(p, "blockIdx.x")
    s[B].compute_across(s[C], t, s[B].op.axis[1], p)
    s[C].launch(num_warps=32)
    kernel = te.build(s, "cuda")
    with pytest.raises(BackendError, match=r"(?s)cooperative.*must all run at the same time"):
        kernel(torch.randn(4096, 4, device="cuda"))


CHECKS: dict[str, Callable[[], None]] = {
    "rows": rows,
    "streams and graphs": streams_and_graphs,
    "refusal": refusal,
}


@pytest.mark.parametrize("name", CHECKS)
def test_in_a_process_of_its_own(name: str) -> None:
    command = [sys.executable, str(Path(__file__)), name]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, check=False, env=env
    )
    assert done.returncode == 0, done.stderr[-4000:]


if __name__ == "__main__":
    CHECKS[sys.argv[1]]()
