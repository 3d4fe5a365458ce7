"""What tells arrays of the same form: the short way refuses whatever the long way would check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tedsl.runtime.arrays.views import numpy_pointer
from tedsl.runtime.calls import forms
from tedsl.runtime.calls.forms import TORCH, Addresses, addresses_like, form_of


def test_numpy_arrays_of_one_form() -> None:
    addresses = addresses_like((np.zeros((2, 3), np.float32),))
    same = np.ones((2, 3), np.float32)
    assert addresses((same,)) == [numpy_pointer(same)]
    of_square = addresses_like((np.zeros((2, 2), np.float32),))
    others: list[Any] = [
        np.zeros((3, 2), np.float32),
        np.zeros((2, 3), np.float64),
        np.zeros((2, 6), np.float32)[:, ::2],
        np.ma.masked_array(same),
        [[0.0] * 3] * 2,
    ]
    assert [addresses((each,)) for each in others] == [None] * len(others)
    assert of_square((np.zeros((2, 2), np.float32).T,)) is None
    assert addresses((same, same)) is None and addresses(()) is None


@pytest.fixture(params=["guarded", "compared"])
def of_tensors(request: pytest.FixtureRequest) -> Callable[[tuple[Any, ...]], Addresses]:
    """What code of `torch.compile` guards its calls with, and what stands for it elsewhere."""
    pytest.importorskip("torch")
    TORCH.find()
    if request.param == "compared":
        return forms._compared

    def guarded(arguments: tuple[Any, ...]) -> Addresses:
        found = forms._guarded(arguments)
        assert found is not None
        return found

    return guarded


def test_torch_tensors_of_one_form(of_tensors: Callable[[tuple[Any, ...]], Addresses]) -> None:
    torch = pytest.importorskip("torch")
    addresses = of_tensors((torch.zeros(2, 3), torch.zeros(4)))
    same, other = torch.ones(2, 3), torch.ones(4)
    assert addresses((same, other)) == [same.data_ptr(), other.data_ptr()]
    unlike: list[Any] = [
        torch.zeros(3, 2),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 6)[:, ::2],
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2, 3)),
        torch.zeros(2, 3).to_sparse(),
        np.zeros((2, 3), np.float32),
        None,
    ]
    assert [addresses((each, other)) for each in unlike] == [None] * len(unlike)
    assert addresses((same,)) is None and addresses((same, other, other)) is None
    negated = torch.zeros(1, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    assert of_tensors((torch.zeros(1),))((negated,)) is None


def test_weights_are_told_where_nothing_is_recorded() -> None:
    torch = pytest.importorskip("torch")
    TORCH.find()
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    with torch.no_grad():
        form, pointers, _ = form_of((weight,), (), {})
        addresses = addresses_like((weight,))
        assert form is not None
        assert addresses((weight,)) == pointers
    assert addresses((weight,)) is None
