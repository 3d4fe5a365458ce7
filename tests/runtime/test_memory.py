"""Allocation on a GPU: quick where PyTorch has what its own compiler uses, plain elsewhere."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest

from tedsl.dtypes import DType
from tedsl.runtime.arguments.signature import ArraySpec
from tedsl.runtime.arrays import allocation as memory
from tedsl.runtime.arrays.views import Device

SPEC = ArraySpec((2, 0, 5), DType.float32)


class Tensor:
    """What the quick function is tried with."""

    def __init__(self, how: str, shape: tuple[int, ...], strides: object, dtype: object) -> None:
        self.how, self.shape, self.strides, self.dtype = how, shape, strides, dtype
        self.is_cuda = True

    def is_contiguous(self) -> bool:
        return True


def fake_torch(quick: Any, current: int = 1) -> Any:
    def empty(shape: Any, dtype: Any, device: Any) -> Tensor:
        return Tensor(f"plain on {device}", shape, None, dtype)

    guards = SimpleNamespace() if quick is None else SimpleNamespace(_empty_strided_cuda=quick)
    return SimpleNamespace(
        float32="float32",
        empty=empty,
        device=str,
        _C=SimpleNamespace(_dynamo=SimpleNamespace(guards=guards), _cuda_getDevice=lambda: current),
    )


def made(torch: Any, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    real = importlib.import_module
    monkeypatch.setattr(
        memory.importlib, "import_module", lambda name: torch if name == "torch" else real(name)
    )
    return memory.torch_allocator(SPEC, Device("cuda", 1))()


def quickly(shape: Any, strides: Any, dtype: Any) -> Tensor:
    return Tensor("quick", shape, strides, dtype)


def test_the_quick_function_gets_strides_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = made(fake_torch(quickly), monkeypatch)
    assert (tensor.how, tensor.shape, tensor.strides) == ("quick", (2, 0, 5), (5, 5, 1))


def test_another_current_device_takes_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(fake_torch(quickly, current=0), monkeypatch).how == "plain on cuda:1"


@pytest.mark.parametrize("fault", ["absent", "other arguments", "other results"])
def test_what_is_not_as_known_is_not_used(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(shape: Any, strides: Any) -> Tensor:
        raise AssertionError("it takes two arguments")

    def wrong(shape: Any, strides: Any, dtype: Any) -> Tensor:
        return Tensor("quick", (3, 2), strides, dtype)

    quick = {"absent": None, "other arguments": refuses, "other results": wrong}[fault]
    assert made(fake_torch(quick), monkeypatch).how == "plain on cuda:1"


@pytest.mark.gpu
def test_results_on_the_gpu_are_like_those_of_empty() -> None:
    torch: Any = importlib.import_module("torch")
    tensor = memory.torch_allocator(ArraySpec((3, 4, 5), DType.bfloat16), Device("cuda", 0))()
    other = torch.empty(3, 4, 5, dtype=torch.bfloat16, device="cuda:0")
    assert (tensor.shape, tensor.stride(), tensor.dtype) == (
        other.shape,
        other.stride(),
        other.dtype,
    )
    assert tensor.device == other.device
