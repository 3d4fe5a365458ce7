"""Memory for one call: every array of it lies in one block of bytes, between zones that the kernel
must leave as they are, at whatever address its element size allows.

The block is made in host memory and, for a GPU, copied there and back as a whole, so that what the
kernel left in the zones and in its inputs can be looked at.  Outputs hold NaN, or bytes that no
result has, before the call; zones beside float inputs hold NaN, which shows in what reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from tedsl.expr.numerics import Array

ZONE = 512
"""Bytes on each side of an array: more than the widest access."""
MARK, NAN, POISON = 0xA5, 0xFF, 0xAB


@dataclass(frozen=True, slots=True)
class Form:
    """How one array is handed over: elements by which its address is off a multiple of 512 bytes,
    and whether strides of dimensions of one element are what they like."""

    shift: int = 0
    loose: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    begin: int
    end: int
    shape: tuple[int, ...]
    dtype: Any
    loose: bool
    given: bool


class Memory:
    """The arrays of a call: inputs with what they hold, then outputs.

    Args:
        inputs: what the kernel reads.
        outputs: shapes and dtypes of what it writes.
        forms: of each of these in turn.
    """

    def __init__(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[tuple[tuple[int, ...], Any]],
        forms: Sequence[Form],
    ) -> None:
        self.parts: list[_Part] = []
        wanted = [(a.shape, a.dtype, True) for a in inputs]
        wanted += [(shape, np.dtype(dtype), False) for shape, dtype in outputs]
        place = 0
        for (shape, dtype, given), form in zip(wanted, forms, strict=True):
            begin = -(-place // ZONE) * ZONE + ZONE + form.shift * dtype.itemsize
            end = begin + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self.parts.append(_Part(begin, end, shape, dtype, form.loose, given))
            place = end
        raw = np.full(place + 3 * ZONE, MARK, np.uint8)
        self.raw = raw[-raw.ctypes.data % ZONE :][: place + 2 * ZONE]
        self.fill(inputs)

    def fill(self, inputs: Sequence[Array]) -> None:
        """As it is before each call."""
        self.raw[...] = MARK
        for part, array in zip(self.parts, inputs, strict=False):
            if part.dtype.kind not in "iub":
                self.raw[part.begin - ZONE // 2 : part.end + ZONE // 2] = NAN
            self.raw[part.begin : part.end] = np.frombuffer(array.tobytes(), np.uint8)
        for part in self.parts[len(inputs) :]:
            empty = NAN if part.dtype.kind not in "iub" else POISON
            self.raw[part.begin : part.end] = empty
        self.before = self.raw.copy()

    def arrays(self) -> list[Any]:
        """Views of host memory."""
        found: list[Any] = []
        for part in self.parts:
            flat = self.raw[part.begin : part.end].view(part.dtype)
            array = flat.reshape(part.shape)
            if part.loose and 1 in part.shape:
                strides = self.strides(part, array.strides)
                array = np.lib.stride_tricks.as_strided(array, part.shape, strides)
            found.append(array)
        return found

    def tensors(self, torch: Any, block: Any, kinds: Sequence[str]) -> list[Any]:
        """Views of a copy of the block that PyTorch holds; `kinds` are the names of its dtypes."""
        found: list[Any] = []
        for part, kind in zip(self.parts, kinds, strict=True):
            dtype = getattr(torch, kind)
            if part.begin == part.end:
                found.append(torch.empty(part.shape, dtype=dtype, device=block.device))
                continue
            tensor = block[part.begin : part.end].view(dtype).reshape(part.shape)
            if part.loose and 1 in part.shape:
                strides = self.strides(part, tensor.stride())
                tensor = tensor.as_strided(part.shape, strides)
            found.append(tensor)
        return found

    def strides(self, part: _Part, strides: Sequence[int]) -> tuple[int, ...]:
        """With strides of their own for dimensions of one element, which do not count."""
        item = max([*strides, 1])
        return tuple(7 * item if n == 1 else s for n, s in zip(part.shape, strides, strict=True))

    def results(self) -> list[Array]:
        """What the outputs hold."""
        found: list[Array] = []
        for part in self.parts:
            if not part.given:
                flat = self.raw[part.begin : part.end].view(part.dtype)
                found.append(flat.reshape(part.shape).copy())
        return found

    def check(self) -> None:
        """The zones and the inputs are as they were.

        Raises:
            AssertionError: something was written there.
        """
        changed = self.raw != self.before
        for part in self.parts:
            if not part.given:
                changed[part.begin : part.end] = False
        if not changed.any():
            return
        places = np.flatnonzero(changed)
        for place in map(int, places[:1]):
            near = min(self.parts, key=lambda p: min(abs(p.begin - place), abs(p.end - place)))
            inside = near.given and near.begin <= place < near.end
            where = "inside an input" if inside else "beside an array"
            raise AssertionError(
                f"{len(places)} bytes were written {where}: at {place - near.begin} of one of "
                f"{near.end - near.begin} bytes, {near.dtype}{list(near.shape)}"
            )


@contextmanager
def device_zones(torch: Any) -> Generator[None]:
    """Workspaces on a GPU, which are tensors of bytes, hold NaN and have zones inside this.

    Raises:
        AssertionError: something was written beside one.
    """
    given: list[tuple[Any, int]] = []
    real: Callable[..., Any] = torch.empty

    def guarded(*args: Any, **options: Mapping[str, Any]) -> Any:
        sized = len(args) == 1 and isinstance(args[0], int)
        if not sized or options.get("dtype") is not torch.uint8:
            return real(*args, **options)
        raw = real(args[0] + 2 * ZONE, **options)
        raw.fill_(MARK)
        raw[ZONE : ZONE + args[0]] = NAN
        given.append((raw, args[0]))
        return raw[ZONE : ZONE + args[0]]

    with patch.object(torch, "empty", guarded):
        yield
    for raw, size in given:
        host = raw.cpu().numpy()
        wrong = np.concatenate([host[:ZONE], host[ZONE + size :]]) != MARK
        assert not wrong.any(), f"bytes were written beside a workspace of {size} bytes"
