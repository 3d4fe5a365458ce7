"""The search on a GPU: real candidates, checked against the reference, recorded and replayed."""

from pathlib import Path
from typing import Any

import pytest

import tedsl as te
from tedsl.autotune import tune

pytestmark = pytest.mark.gpu
torch: Any = pytest.importorskip("torch")


def test_softmax(tmp_path: Path):
    x = te.placeholder((1000, 513), "float16", name="x")
    found = tune(te.nn.softmax(x), "cuda", trials=6, records=tmp_path / "r.sqlite")
    assert found.winner.outcome.resources["registers"] > 0
    data = torch.randn(1000, 513, device="cuda", dtype=torch.float16)
    torch.testing.assert_close(found.kernel(data), torch.softmax(data, -1), rtol=2e-3, atol=2e-4)
    assert tune(te.nn.softmax(x), "cuda", trials=6, records=tmp_path / "r.sqlite").replayed


def test_matmul():
    a = te.placeholder((512, 768), "bfloat16", name="a")
    b = te.placeholder((768, 640), "bfloat16", name="b")
    found = tune(te.nn.matmul(a, b), "cuda", trials=8, records=False)
    x = torch.randn(512, 768, device="cuda", dtype=torch.bfloat16)
    y = torch.randn(768, 640, device="cuda", dtype=torch.bfloat16)
    wanted = x.float() @ y.float()
    torch.testing.assert_close(found.kernel(x, y).float(), wanted, rtol=2e-2, atol=0.3)
    assert found.winner.seconds <= 1.5 * min(t.seconds for t in found.trials)
