"""Small Triton kernels, with nothing of tedsl in them, of which Triton's analysis of addresses and
masks (AxisInfo) says what does not hold, each with what it should store.

All read `X` at `place` where `mask` holds, 0 elsewhere, and store a row-major block to `Y`; or they
store `value`.  Where the analysis believes addresses to be neighbours, masks to be equal, or starts
to be multiples of the width of an access, which they are not, the elements are wrong, or the access
is misaligned.  Where it believes a value to be the same for neighbours, it is computed once.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Absent where there is no Triton: then the functions here are no kernels, and nobody asks for them.
triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")

Array = NDArray[Any]
SIZE = 8192


@triton.jit
def remainder(X, Y, n):
    i = tl.arange(0, 256)
    r = (i - 128) % 24
    r = tl.where(r < 0, r + 24, r)
    tl.store(Y + i, tl.load(X + r))


@triton.jit
def remainder_mask(X, Y, n):
    i = tl.arange(0, 256)
    tl.store(Y + i, tl.load(X + i, mask=(i - 128) % 24 < 0, other=0.0))


@triton.jit
def quotient_mask(X, Y, n):
    i = tl.arange(0, 256)
    tl.store(Y + i, tl.load(X + i, mask=(i - 128) // 8 < -2, other=0.0))


@triton.jit
def quotient(X, Y, n):
    i = tl.arange(0, 256)
    tl.store(Y + i, tl.load(X + ((i - 128) // 8 * 16 + 1024 + i)))


@triton.jit
def quotient_value(X, Y, n):
    i = tl.arange(0, 256)
    tl.store(Y + i, ((i - 128) // 8).to(tl.float32))


@triton.jit
def comparison_value(X, Y, n):
    i = tl.arange(0, 256)
    tl.store(Y + i, tl.where((i - 128) % 24 < 0, 1.0, 2.0))


@triton.jit
def floor_mod_value(X, Y, n):
    i = tl.arange(0, 256)
    r = (i - 128) % 24
    tl.store(Y + i, tl.where((r != 0) & ((r < 0) != (24 < 0)), r + 24, r).to(tl.float32))


@triton.jit
def rows_backwards(X, Y, n):
    i = tl.arange(0, 32)
    j = tl.arange(0, 32)
    x = tl.load(X + (64 - i)[:, None] * 33 + j[None, :])
    tl.store(Y + i[:, None] * 32 + j[None, :], x)


@triton.jit
def rows_sum(X, Y, n):
    i = tl.arange(0, 32)
    j = tl.arange(0, 32)
    x = tl.load(X + (i + i % 2 * 8)[:, None] + j[None, :])
    tl.store(Y + i[:, None] * 32 + j[None, :], x)


@triton.jit
def rows_select(X, Y, n):
    i = tl.arange(0, 32)
    j = tl.arange(0, 32)
    x = tl.load(X + tl.where(i % 3 == 0, i, i + 8)[:, None] + j[None, :])
    tl.store(Y + i[:, None] * 32 + j[None, :], x)


@triton.jit
def rows_shift(X, Y, n):
    i = tl.arange(0, 32)
    j = tl.arange(0, 32)
    x = tl.load(X + (i << n)[:, None] + j[None, :])
    tl.store(Y + i[:, None] * 32 + j[None, :], x)


@triton.jit
def rows_remainder(X, Y, n):
    i = tl.arange(0, 32)
    j = tl.arange(0, 32)
    x = tl.load(X + ((i // 4 * 12 + i % 4) % 8)[:, None] + j[None, :])
    tl.store(Y + i[:, None] * 32 + j[None, :], x)


@triton.jit
def rows_hinted(X, Y, n):
    i = tl.arange(0, 32)
    j = tl.arange(0, 32)
    x = tl.load(X + tl.multiple_of((64 - i)[:, None], (1, 1)) * 33 + j[None, :])
    tl.store(Y + i[:, None] * 32 + j[None, :], x)


class Case(NamedTuple):
    """A kernel and what it reads.

    Attributes:
        kernel: its name here.
        place: the element of `X` that each element of the block is.
        wrong: whether Triton (3.6, 3.9) is wrong of it, as `believes` sees it.
        mask: where it is read.
        value: what is stored instead.
        n: its integer argument.
    """

    kernel: str
    place: Callable[[], Array]
    wrong: tuple[bool, bool]
    mask: Callable[[], Array] | None = None
    value: Callable[[], Array] | None = None
    n: int = 3

    def want(self, x: Array) -> Array:
        """What the kernel should store of `x`."""
        if self.value is not None:
            return self.value().astype(x.dtype)
        index = self.place()
        found = x[np.where(self._holds(index), index, 0)]
        return np.where(self._holds(index), found, x.dtype.type(0))

    def _holds(self, index: Array) -> Array:
        return np.ones(index.shape, bool) if self.mask is None else self.mask()


def believes(ptx: str) -> bool:
    """Whether a kernel here was compiled with what does not hold of it: no load may be of several
    elements, no two neighbours are the same, and no condition is that of two."""
    stored = re.findall(r"st\.global\.v\d\.b32 \[[^]]*\], *\{([^}]*)\}", ptx)
    twice = (names.replace(" ", "").split(",") for names in stored)
    asked = re.findall(r"selp\.[bf]32\s+[^;]*, *(%p\d+);", ptx)
    return (
        "ld.global.v" in ptx
        or len(set(asked)) < len(asked)
        or any(len(set(names)) < len(names) for names in twice)
    )


def _flat() -> Array:
    return np.arange(256) - 128


def _truncated(a: Array, b: int) -> Array:
    return np.sign(a) * (np.abs(a) // b)


def _rows(start: Array, stride: int = 1) -> Array:
    return start[:, None] * stride + np.arange(32)[None, :]


_I = np.arange(32)
CASES = (
    Case("remainder", lambda: _flat() % 24, (True, True)),
    Case(
        "remainder_mask",
        lambda: np.arange(256),
        (True, True),
        mask=lambda: np.fmod(_flat(), 24) < 0,
    ),
    Case(
        "quotient_mask",
        lambda: np.arange(256),
        (True, True),
        mask=lambda: _truncated(_flat(), 8) < -2,
    ),
    Case("quotient", lambda: _truncated(_flat(), 8) * 16 + 1024 + np.arange(256), (True, True)),
    Case("quotient_value", _flat, (True, True), value=lambda: _truncated(_flat(), 8)),
    Case(
        "comparison_value",
        _flat,
        (True, True),
        value=lambda: np.where(np.fmod(_flat(), 24) < 0, 1.0, 2.0),
    ),
    Case("floor_mod_value", _flat, (True, True), value=lambda: _flat() % 24),
    Case("rows_backwards", lambda: _rows(64 - _I, 33), (True, False)),
    Case("rows_sum", lambda: _rows(_I + _I % 2 * 8), (True, False)),
    Case("rows_select", lambda: _rows(np.where(_I % 3 == 0, _I, _I + 8)), (True, False)),
    Case("rows_shift", lambda: _rows(_I << 0), (True, False), n=0),
    Case("rows_remainder", lambda: _rows((_I // 4 * 12 + _I % 4) % 8), (True, False)),
    Case("rows_hinted", lambda: _rows(64 - _I, 33), (False, False)),
)
