"""What tells arrays of the same form: the short way refuses whatever the long way would check."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tedsl.runtime.arrays import numpy_pointer
from tedsl.runtime.forms import TORCH, addresses_like, form_of


def test_numpy_arrays_of_one_form() -> None:
    (address,) = addresses_like((np.zeros((2, 3), np.float32),))
    same = np.ones((2, 3), np.float32)
    assert address(same) == numpy_pointer(same)
    square = np.zeros((2, 2), np.float32)
    (of_square,) = addresses_like((square,))
    others: list[Any] = [
        np.zeros((3, 2), np.float32),
        np.zeros((2, 3), np.float64),
        np.zeros((2, 6), np.float32)[:, ::2],
        np.ma.masked_array(same),
        [[0.0] * 3] * 2,
    ]
    assert [address(each) for each in others] == [-1] * len(others)
    assert of_square(square.T) == -1


def test_torch_tensors_of_one_form() -> None:
    torch = pytest.importorskip("torch")
    TORCH.find()
    (address,) = addresses_like((torch.zeros(2, 3),))
    same = torch.ones(2, 3)
    assert address(same) == same.data_ptr()
    others: list[Any] = [
        torch.zeros(3, 2),
        torch.zeros(2, 3, dtype=torch.float64),
        torch.zeros(3, 2).t(),
        torch.zeros(2, 3, device="meta"),
        torch.zeros(2, 3, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2, 3)),
        np.zeros((2, 3), np.float32),
    ]
    assert [address(each) for each in others] == [-1] * len(others)
    negated = torch.zeros(1, dtype=torch.complex64).conj().imag
    assert negated.is_neg()
    (of_one,) = addresses_like((torch.zeros(1),))
    assert of_one(negated) == -1
    weight = torch.nn.Parameter(torch.zeros(2, 3))
    with torch.no_grad():
        form, pointers, _ = form_of((weight,), (), {})
        (of_weight,) = addresses_like((weight,))
        assert form is not None
        assert [of_weight(weight)] == pointers
    assert of_weight(weight) == -1
