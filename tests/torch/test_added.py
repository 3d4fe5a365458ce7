"""Sums at places that only data say, by atomic additions."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
added: Any = importlib.import_module("tedsl.torch.backend.added")
aten = torch.ops.aten


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("shape", [(50,), (4, 9)])
def test_the_gradient_of_an_embedding(dtype: Any, padding: int, shape: tuple[int, ...]) -> None:
    indices, grad = torch.randint(0, 7, shape), torch.randn(*shape, 5).to(dtype)
    given = grad, indices, 7, padding, False
    found = added.embedding_gradient(*given)
    wanted = aten.embedding_dense_backward(grad.float(), *given[1:]).to(dtype)
    assert found.dtype is dtype
    torch.testing.assert_close(found, wanted)


def cases() -> dict[str, tuple[Any, list[Any], Any]]:
    def some(n: int, *shape: int) -> Any:
        return torch.randint(-n, n, shape)

    x = torch.randn(4, 6, 5)
    return {
        "first": (x, [some(4, 9)], torch.randn(9, 6, 5)),
        "middle": (x, [None, some(6, 2, 3)], torch.randn(4, 2, 3, 5)),
        "two": (x, [None, some(6, 11), some(5, 11)], torch.randn(4, 11)),
        "broadcast": (x, [some(4, 7, 1), some(6, 3)], torch.randn(7, 3, 1)),
        "all": (x, [some(4, 8), some(6, 8), some(5, 8)], torch.randn(())),
        "apart": (x, [some(4, 8), None, some(5, 8)], torch.randn(8, 6)),
        "mask": (x, [x[:, 0, 0] > 0], torch.randn(())),
        "narrow": (x.bfloat16(), [some(4, 90)], torch.randn(90, 6, 5).bfloat16()),
    }


@pytest.mark.parametrize("name", cases())
@pytest.mark.parametrize("accumulate", [True, False])
def test_putting_at_indices(name: str, accumulate: bool) -> None:
    x, indices, values = cases()[name]
    if not accumulate:  # of several for one place it is not said which remains
        values = torch.ones((), dtype=x.dtype)
    kept = x.clone()
    found, wanted = (f(x, indices, values, accumulate) for f in (added.put, aten.index_put))
    assert torch.equal(x, kept) and found.dtype is x.dtype
    near = {"rtol": 2e-2, "atol": 2e-1} if name == "narrow" else {}
    torch.testing.assert_close(found, wanted, **near)


def test_an_order_that_is_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    monkeypatch.setattr(added, "aten", _Recorded(calls))
    added.put(torch.zeros(3), [torch.tensor([1, 1])], torch.ones(2), True)
    added.embedding_gradient(torch.ones(2, 3), torch.tensor([1, 1]), 4, -1, False)
    assert calls == ["index_put", "embedding_dense_backward"]


class _Recorded:
    def __init__(self, calls: list[Any]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self._calls.append(name)


def test_only_floats_on_a_gpu_are_taken() -> None:
    class Node:
        target = aten.index_put.default

        def __init__(self, fake: Any) -> None:
            self.meta = {"val": fake}

    class OnGpu(torch.Tensor):
        is_cuda = True

    assert added.quicker(Node(torch.zeros(3))) is None
    gpu = torch.zeros(3).as_subclass(OnGpu)
    assert added.quicker(Node(gpu)) is added.put
    assert added.quicker(Node(torch.zeros(3, dtype=torch.int32).as_subclass(OnGpu))) is None
