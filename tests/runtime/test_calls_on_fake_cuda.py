"""Whole calls of kernels for the GPU, down to what its launcher is given; needs PyTorch, no GPU."""

from __future__ import annotations

from typing import Any

import pytest
from fake_cuda import fake_cuda

import tedsl as te
from tedsl.errors import BackendError


def chain(n: Any) -> te.Tensor:
    x, y = te.placeholder((n,), name="X"), te.placeholder((n,), name="Y")
    return te.compute((n,), lambda i: te.exp(x[i]) * y[i], name="Z")


def test_every_call_launches_with_the_addresses_of_its_arguments() -> None:
    torch: Any = pytest.importorskip("torch")
    launched: list[tuple[Any, ...]] = []
    with fake_cuda(lambda *given: launched.append(given)) as build:
        run = build(chain(1000))
        held: list[Any] = []
        for _ in range(4):
            x, y = torch.ones(1000), torch.ones(1000)
            held.append((x, y, run(x, y)))
            out = torch.zeros(1000)
            assert run(x, y, out=out) is out
            held.append((x, y, out))
    wanted = [tuple(each.data_ptr() for each in arguments) for arguments in held]
    assert [given[-3:] for given in launched] == wanted
    assert {given[3] for given in launched} == {7}, "the current stream"


def test_calls_of_other_forms_between_are_checked() -> None:
    torch: Any = pytest.importorskip("torch")
    launched: list[tuple[Any, ...]] = []
    with fake_cuda(lambda *given: launched.append(given)) as build:
        run = build(chain(te.size_var("n")))
        x = torch.ones(64)
        for size in (64, 33, 64, 64):
            run(torch.ones(size), torch.ones(size))
        refused: list[tuple[tuple[Any, ...], str]] = [
            ((x, torch.ones(63)), "63"),
            ((x, x.double()), "float64"),
            ((x, torch.ones(64, requires_grad=True)), "requires grad"),
            ((x,), "1 arrays given"),
        ]
        for arguments, words in refused:
            run(x, x)
            with pytest.raises(BackendError, match=words):
                run(*arguments)
        assert len(launched) == 4 + len(refused)
        assert [given[-1] for given in launched[:4]] == [64, 33, 64, 64]
