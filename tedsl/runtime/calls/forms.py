"""What calls have in common that need one check: the key under which a kernel keeps what it found.

On the path of every call, and so written for speed.  Imports `runtime.arrays.views`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tedsl.runtime.arrays.views import numpy_pointer

_NDARRAY = np.ndarray

Address = Callable[[Any], int]
"""The address of an array that is like the one this was made for, and -1 of any other."""
Addresses = Callable[[tuple[Any, ...]], list[int] | None]
"""The addresses of arguments that are like those this was made for, and None of any others."""


def form_of(
    inputs: tuple[Any, ...], outs: tuple[Any, ...], scalars: Mapping[str, Any]
) -> tuple[tuple[object, ...] | None, list[int], int]:
    """What calls have in common that need one check: shapes, strides, dtypes, devices, scalars.

    Returns:
        The form, None when an argument needs every check at every call; the addresses; and the
        bits that any of them has.
    """
    form: list[object] = [len(inputs)]
    pointers: list[int] = []
    low = 0
    arguments = (*inputs, *outs) if outs else inputs
    for kind, array in zip(map(type, arguments), arguments, strict=False):
        if kind is _NDARRAY:
            form += (array.shape, array.strides, array.dtype)
            pointer = numpy_pointer(array)
        elif kind in TORCH.types:
            if array.is_neg() or (array.requires_grad and TORCH.records()):
                return None, pointers, low
            form += (array.shape, array.stride(), array.dtype, array.device)
            pointer = array.data_ptr()
        else:
            return None, pointers, low
        low |= pointer
        pointers.append(pointer)
    if scalars:
        form += [f"{name}={value!r}" for name, value in scalars.items()]
    return tuple(form), pointers, low


def addresses_like(arguments: tuple[Any, ...]) -> Addresses:
    """What tells arguments of the same form as those of a call that has one, quickly."""
    return _guarded(arguments) or _compared(arguments)


def _compared(arguments: tuple[Any, ...]) -> Addresses:
    """Each argument compared with what was there."""
    like = [
        _numpy_like(each) if type(each) is _NDARRAY else _torch_like(each) for each in arguments
    ]
    count = len(like)

    def addresses(found: tuple[Any, ...]) -> list[int] | None:
        if len(found) != count:
            return None
        pointers = [address_of(each) for address_of, each in zip(like, found, strict=True)]
        return None if -1 in pointers else pointers

    return addresses


@dataclass(frozen=True, slots=True)
class Guard:
    """What tells tensors that are like those it was made for: as many as they were, by `check`, and
    where there are `weights` among them only while nothing `records` what they are used for."""

    check: Callable[..., bool]
    weights: bool
    records: Callable[[], bool]


def guard_of(arguments: tuple[Any, ...]) -> Guard | None:
    """All tensors compared at once, by what code of `torch.compile` guards its calls with: a third
    of the time.  None where not all are tensors, or this PyTorch has it not in this form.
    """
    torch: Any = sys.modules.get("torch")
    guards: Any = getattr(getattr(getattr(torch, "_C", None), "_dynamo", None), "guards", None)
    plain = bool(arguments) and all(type(each) in TORCH.types for each in arguments)
    if not plain or not hasattr(guards, "TensorGuards"):
        return None
    try:
        check = _check_like(torch, guards, arguments)
        if not check(*arguments):  # such a guard takes no tensor twice
            check = _each_like([_check_like(torch, guards, (each,)) for each in arguments])
    except TypeError:
        return None
    if not check(*arguments):
        return None
    return Guard(check, any(each.requires_grad for each in arguments), TORCH.records)


def _check_like(torch: Any, guards: Any, tensors: tuple[Any, ...]) -> Callable[..., bool]:
    """What compares as many tensors with these, which are all different ones."""
    with torch.enable_grad():  # the guard keeps the mode: only in this one it compares the flag
        made = guards.TensorGuards(
            *tensors,
            dynamic_dims_sizes=[list(a.shape) for a in tensors],
            dynamic_dims_strides=[list(a.stride()) for a in tensors],
        )
    check: Callable[..., bool] = made.check
    return check


def _each_like(checks: list[Callable[..., bool]]) -> Callable[..., bool]:
    """What compares each tensor by itself."""

    def check(*tensors: Any) -> bool:
        return all(like(tensor) for like, tensor in zip(checks, tensors, strict=True))

    return check


def _guarded(arguments: tuple[Any, ...]) -> Addresses | None:
    """Compared by a guard, where there is one."""
    guard = guard_of(arguments)
    if guard is None:
        return None
    count, check, weights, records = len(arguments), guard.check, guard.weights, guard.records

    def addresses(found: tuple[Any, ...]) -> list[int] | None:
        if len(found) != count or not check(*found) or (weights and records()):
            return None
        return [each.data_ptr() for each in found]

    return addresses


def _numpy_like(array: Any) -> Address:
    shape, strides, dtype = array.shape, array.strides, array.dtype

    def address(a: Any) -> int:
        if (
            type(a) is _NDARRAY
            and a.shape == shape
            and a.dtype is dtype  # another object of an equal dtype takes the longer way
            and a.strides == strides
        ):
            return numpy_pointer(a)
        return -1

    return address


def _torch_like(tensor: Any) -> Address:
    kind = cast(type[Any], type(tensor))
    shape, dtype, device = tensor.shape, tensor.dtype, tensor.device
    records = TORCH.records

    def address(a: Any) -> int:
        if (
            type(a) is kind
            and a.shape == shape
            and a.dtype is dtype
            and a.is_contiguous()
            and a.device == device
            and not a.is_neg()
            and not (a.requires_grad and records())
        ):
            return a.data_ptr()
        return -1

    return address


class _Torch:
    """What the fast path knows of PyTorch; nothing as long as nobody has imported it."""

    def __init__(self) -> None:
        self.types: tuple[type, ...] = ()
        self.records: Callable[[], bool] = bool

    def find(self) -> None:
        """Look whether it has been imported since."""
        torch: Any = sys.modules.get("torch")
        if not self.types and hasattr(torch, "is_grad_enabled"):
            self.records = torch.is_grad_enabled
            self.types = (torch.Tensor, torch.nn.Parameter)


TORCH = _Torch()
