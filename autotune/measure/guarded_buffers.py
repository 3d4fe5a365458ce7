"""Memory in which a candidate runs: guarded inputs and outputs, on the host or on a GPU.

Every array lies between two red zones of one fixed byte.  All ones is NaN in every float type, so
a read past the end of an input shows in the result, and a write past the end of an output is seen
in the zone.  Outputs are filled with the same byte before each checked run: what a candidate did
not write is NaN.  PyTorch is loaded for a GPU only.  Imports numpy, `timer`
and `runtime`.
"""

from __future__ import annotations

import importlib
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tedsl.autotune.measure.timer import Clock, DeviceClock, HostClock
from tedsl.checking.array_chunks import parts
from tedsl.checking.random_inputs import Array
from tedsl.checking.tolerance import (
    Bound,
    Excuse,
    Tolerance,
    complaint,
    first_fault,
    wrong_elements,
    wrong_floats,
)
from tedsl.detect import cache_sizes
from tedsl.devices import GPUS
from tedsl.dtypes import DType
from tedsl.runtime.arrays.views import NUMPY_DTYPES, numpy_pointer

ZONE = 512
POISON = 0xFF
ALIGNMENT = 128
_PIECE = 1 << 25
_LOOK_SECONDS = 1e-4
_MOST_COPIES = 512
_SHARE = 0.2
"""Of a GPU's free memory that the copies of a rotation may take."""
_MUCH = 0.25
"""Of a GPU's memory, that the arrays of the problems of one process take."""
_HOST_BYTES = 2 << 30
_L2_BYTES = max(gpu.l2 for gpu in GPUS)


@dataclass(frozen=True, slots=True)
class Guarded:
    """An array with its zones: `raw` holds the bytes of all three, `array` is what kernels get."""

    raw: Any
    array: Any
    nbytes: int


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an output must be: flat values where the arena keeps them, how close is enough, and what
    says which elements may differ all the same."""

    values: Any
    host: Array
    bound: Bound
    excuse: Excuse | None = None


class Arena(Protocol):
    """Where arrays live and calls are timed."""

    def put(self, array: Array, dtype: DType) -> Guarded:
        """A guarded copy of a host array."""
        ...

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Guarded:
        """A guarded, poisoned array."""
        ...

    def poison(self, guarded: Guarded) -> None:
        """Fill an array with the poison again."""
        ...

    def want(self, array: Array, tolerance: Tolerance, excuse: Excuse | None = None) -> Wanted:
        """Wanted values, ready to be compared with."""
        ...

    def wrong(self, guarded: Guarded, wanted: Wanted, name: str) -> str | None:
        """What is wrong with an output once all queued work is done; None when it is right."""
        ...

    def checksum(self, guarded: Guarded) -> int:
        """A sum of all bytes, zones included: it changes when something is written."""
        ...

    def intact(self, guarded: Guarded) -> bool:
        """True when both zones are as they were."""
        ...

    def snapshot(self, guarded: Guarded) -> Any:
        """The bytes of an array as they are now."""
        ...

    def same(self, guarded: Guarded, snapshot: Any) -> bool:
        """True when an array has the bytes it had."""
        ...

    def copies(self, nbytes: int) -> int:
        """How many copies of `nbytes` of arrays a rotation needs for its calls to find nothing of
        them in the largest cache; 1 where they had better find it."""
        ...

    def has_room(self, nbytes: int) -> bool:
        """Whether `nbytes` more are little beside what is free."""
        ...

    def is_crowded(self) -> bool:
        """Whether what this process holds is much of all there is."""
        ...

    def clock(self, nbytes: int, note: Path) -> Clock:
        """What times calls that touch `nbytes` in all their copies."""
        ...

    def fault(self) -> str | None:
        """What is wrong with the device, if it takes no more work from this process."""
        ...

    def finish(self, limit: float | None = None) -> bool:
        """Wait for all queued work, at most `limit` seconds; False when it has not ended then."""
        ...


def open_arena(target: str) -> Arena:
    """The arena of a target."""
    return HostArena() if target == "cpu" else DeviceArena()


class HostArena:
    """NumPy arrays."""

    def put(self, array: Array, dtype: DType) -> Guarded:
        guarded = self.empty(array.shape, dtype)
        guarded.array[...] = array
        return guarded

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Guarded:
        kind = NUMPY_DTYPES[dtype]
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        base = np.full(nbytes + 2 * ZONE + ALIGNMENT, POISON, np.uint8)
        start = -numpy_pointer(base) % ALIGNMENT
        raw = base[start : start + nbytes + 2 * ZONE]
        array: Array = np.ndarray(shape, kind, raw, ZONE)
        return Guarded(raw, array, nbytes)

    def poison(self, guarded: Guarded) -> None:
        guarded.raw[...] = POISON

    def want(self, array: Array, tolerance: Tolerance, excuse: Excuse | None = None) -> Wanted:
        flat = array.reshape(-1)
        return Wanted(flat, array, Bound.of(array, tolerance), excuse)

    def wrong(self, guarded: Guarded, wanted: Wanted, name: str) -> str | None:
        got = guarded.array.reshape(-1)
        count, places = wrong_elements(got, wanted.values, wanted.bound)
        first = first_fault(count, places, got[places], wanted.bound, wanted.excuse)
        if first is None:
            return None
        shape = wanted.host.shape
        return complaint(name, shape, first, count, got[first], wanted.values[first])

    def checksum(self, guarded: Guarded) -> int:
        whole = guarded.raw.size // 8 * 8
        words = guarded.raw[:whole].view(np.uint64)
        return int(np.sum(words, dtype=np.uint64)) + int(guarded.raw[whole:].sum())

    def intact(self, guarded: Guarded) -> bool:
        zones = (guarded.raw[:ZONE], guarded.raw[ZONE + guarded.nbytes :])
        return all(bool((zone == POISON).all()) for zone in zones)

    def snapshot(self, guarded: Guarded) -> Any:
        return guarded.raw.copy()

    def same(self, guarded: Guarded, snapshot: Any) -> bool:
        return bool(np.array_equal(guarded.raw, snapshot))

    def copies(self, nbytes: int) -> int:
        """Arrays well below the size of the cache are left in it, as whatever made them would."""
        cache = max(cache_sizes().values(), default=0)
        if not cache or nbytes < cache // 4:
            return 1
        return max(1, min(_some_copies(nbytes, cache), _HOST_BYTES // nbytes))

    def has_room(self, nbytes: int) -> bool:
        return nbytes <= _HOST_BYTES

    def is_crowded(self) -> bool:
        return False

    def clock(self, nbytes: int, note: Path) -> Clock:
        return HostClock()

    def fault(self) -> str | None:
        return None

    def finish(self, limit: float | None = None) -> bool:
        """Calls on the host have ended when they return."""
        return True


class DeviceArena:
    """PyTorch tensors on the current GPU."""

    def __init__(self) -> None:
        self.torch: Any = importlib.import_module("torch")

    def put(self, array: Array, dtype: DType) -> Guarded:
        guarded = self.empty(array.shape, dtype)
        if guarded.nbytes:
            host = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            place = guarded.raw[ZONE : ZONE + guarded.nbytes]
            place.copy_(self.torch.from_numpy(host))
        return guarded

    def empty(self, shape: tuple[int, ...], dtype: DType) -> Guarded:
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.nbytes
        byte = self.torch.uint8
        raw = self.torch.full((nbytes + 2 * ZONE,), POISON, dtype=byte, device="cuda")
        inside = raw[ZONE : ZONE + nbytes].view(getattr(self.torch, dtype.value))
        return Guarded(raw, inside.reshape(shape), nbytes)

    def poison(self, guarded: Guarded) -> None:
        guarded.raw.fill_(POISON)

    def want(self, array: Array, tolerance: Tolerance, excuse: Excuse | None = None) -> Wanted:
        host = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        values = self.torch.from_numpy(host.copy()).to("cuda")
        return Wanted(values, array, Bound.of(array, tolerance), excuse)

    def wrong(self, guarded: Guarded, wanted: Wanted, name: str) -> str | None:
        torch = self.torch
        got = guarded.array.reshape(-1)
        want = wanted.values.view(got.dtype)
        bound, count, start = wanted.bound, 0, 0
        found: list[Any] = []
        for piece, good in zip(parts(got, _PIECE), parts(want, _PIECE), strict=True):
            if got.is_floating_point():
                bad = wrong_floats(torch, piece.double(), good.double(), bound)
            else:
                bad = piece.view(torch.uint8) != good.view(torch.uint8)
                bad = bad.reshape(len(piece), -1).any(1)
            number = int(bad.sum())
            if number and count <= bound.allowed:
                found.append(start + bad.nonzero().reshape(-1)[: bound.allowed + 1])
            count += number
            start += len(piece)
        if not count:
            return None
        places = torch.cat(found)
        size = wanted.host.dtype.itemsize
        raw = got.view(torch.uint8).reshape(len(got), size)[places].cpu().numpy()
        there: Array = raw.view(wanted.host.dtype).reshape(-1)
        first = first_fault(count, places.cpu().numpy(), there, bound, wanted.excuse)
        if first is None:
            return None
        values = got[first].item(), want[first].item()
        return complaint(name, wanted.host.shape, first, count, *values)

    def checksum(self, guarded: Guarded) -> int:
        whole = len(guarded.raw) // 8 * 8
        words = guarded.raw[:whole].view(self.torch.int64)
        return int(words.sum()) + int(guarded.raw[whole:].sum())

    def intact(self, guarded: Guarded) -> bool:
        zones = (guarded.raw[:ZONE], guarded.raw[ZONE + guarded.nbytes :])
        return all(bool((zone == POISON).all()) for zone in zones)

    def snapshot(self, guarded: Guarded) -> Any:
        return guarded.raw.clone()

    def same(self, guarded: Guarded, snapshot: Any) -> bool:
        return bool(self.torch.equal(guarded.raw, snapshot))

    def copies(self, nbytes: int) -> int:
        free, _ = self.torch.cuda.mem_get_info()
        room = max(1, int(free * _SHARE) // max(nbytes, 1))
        return min(_some_copies(nbytes, self._cache()), room, _MOST_COPIES)

    def has_room(self, nbytes: int) -> bool:
        free, _ = self.torch.cuda.mem_get_info()
        return nbytes <= int(free * _SHARE)

    def is_crowded(self) -> bool:
        _, whole = self.torch.cuda.mem_get_info()
        return int(self.torch.cuda.memory_allocated()) > int(whole * _MUCH)

    def clock(self, nbytes: int, note: Path) -> Clock:
        cold = nbytes > self._cache()
        return DeviceClock(note, 0 if cold else 4 * self._cache())

    def fault(self) -> str | None:
        try:
            self.torch.cuda.synchronize()
        except RuntimeError as error:
            text = str(error).split("\n", 1)[0].strip()
            return text.removeprefix("CUDA error: ") or "the device takes no more work"
        return None

    def _cache(self) -> int:
        """Bytes of the second-level cache."""
        found = self.torch.cuda.get_device_properties(self.torch.cuda.current_device())
        return int(getattr(found, "L2_cache_size", 0)) or _L2_BYTES

    def finish(self, limit: float | None = None) -> bool:
        if limit is None:
            self.torch.cuda.synchronize()
            return True
        queued = self.torch.cuda.Event()
        queued.record()
        end = time.monotonic() + limit
        while not queued.query():
            if time.monotonic() > end:
                return False
            time.sleep(_LOOK_SECONDS)  # another thread builds the next candidate meanwhile
        return True


def _some_copies(nbytes: int, cache: int) -> int:
    """Copies that exceed a cache by half."""
    return max(1, math.ceil(1.5 * cache / max(nbytes, 1)))
