"""The quickest way into a compiled kernel: Triton's C launcher, without the Python around it.

`CompiledKernel.run` of Triton allocates scratch memory, runs hooks and encodes tensor descriptors
at every call.  Where the installed Triton has a launcher in one of the forms known here and the
kernel needs none of that, the C function is entered directly; otherwise `CompiledKernel.run` is.
Knows Triton's driver, not the program.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Enter = Callable[[int, Sequence[Any]], object]
Encode = Callable[[Any, int], list[Any]]


@dataclass(frozen=True, slots=True)
class Raw:
    """A C launcher and its arguments: the grid, the stream, `rest`, and those of the kernel, in a
    row or with `listed` as one sequence."""

    launch: Callable[..., object]
    grid: tuple[int, int, int]
    rest: tuple[Any, ...]
    listed: bool

    @property
    def enter(self) -> Enter:
        """A function of (stream, arguments)."""
        launch, grid, rest = self.launch, self.grid, self.rest

        def enter_list(stream: int, args: Sequence[Any]) -> object:
            return launch(*grid, stream, *rest, args)

        def enter_flat(stream: int, args: Sequence[Any]) -> object:
            return launch(*grid, stream, *rest, *args)

        return enter_list if self.listed else enter_flat


class Entry(NamedTuple):
    """How to launch a compiled kernel.  Without an `encode`, `enter` takes descriptor objects;
    `raw` is what it enters, where that is the C launcher."""

    enter: Enter
    encode: Encode | None = None
    raw: Raw | None = None


def entry(kernel: Any, grid: tuple[int, int, int], described: bool) -> Entry:
    """The quickest way into a kernel.

    Args:
        kernel: compiled, and loaded on the device.
        grid: its programs.
        described: whether it has tensor descriptors among its arguments.
    """
    launcher, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
    raw = getattr(launcher, "launch", None)
    encode: Encode | None = None
    if described and raw is not None:
        raw, encode = _unwrapped(raw, kernel)
    scratch = getattr(launcher, "global_scratch_size", 1) or getattr(
        launcher, "profile_scratch_size", 1
    )
    if raw is None or scratch or getattr(launcher, "gsan_enabled", False):
        return Entry(_slow_entry(launcher, grid, function, metadata))
    head = (function, launcher.launch_cooperative_grid, launcher.launch_pdl)
    if hasattr(launcher, "arg_annotations") and hasattr(launcher, "kernel_signature"):
        tail = (metadata, None, None, None, None, None)
        types = (launcher.arg_annotations, launcher.kernel_signature)
        found = Raw(raw, grid, (*head, *tail, *types), listed=True)
        return Entry(found.enter, encode, found)
    if len(inspect.signature(type(launcher).__call__).parameters) == 7:
        tail = (None, None, metadata, None, None, None)
        found = Raw(raw, grid, (*head, *tail), listed=False)
        return Entry(found.enter, encode, found)
    return Entry(_slow_entry(launcher, grid, function, metadata))


def _slow_entry(launcher: Any, grid: tuple[int, int, int], function: Any, metadata: Any) -> Enter:
    def enter(stream: int, args: Sequence[Any]) -> object:
        return launcher(*grid, stream, function, metadata, None, None, None, *args)

    return enter


def _unwrapped(wrapped: Any, kernel: Any) -> tuple[Any, Encode | None]:
    """(C launcher inside the wrapper that encodes descriptors, encoder); (None, None) if unlike."""
    if not inspect.isfunction(wrapped):
        return None, None
    inner: Mapping[str, Any] = inspect.getclosurevars(wrapped).nonlocals
    metas = getattr(kernel.metadata, "tensordesc_meta", None)
    driver = importlib.import_module("triton.backends.nvidia.driver")
    make = getattr(driver, "make_tensordesc_arg", None)
    if "launcher" not in inner or not metas or make is None or None in list(metas):
        return None, None
    count = len(inspect.signature(make).parameters)
    places = [
        place
        for place, kind in enumerate(kernel.src.signature.values())
        if isinstance(kind, str) and kind.startswith("tensordesc")
    ]
    if len(places) != len(metas):
        return None, None
    by_place = dict(zip(places, metas, strict=True))

    def encode(descriptor: Any, place: int) -> list[Any]:
        extra = (None,) * (count - 2)
        return list(make(descriptor, by_place[place], *extra))

    return inner["launcher"], encode
