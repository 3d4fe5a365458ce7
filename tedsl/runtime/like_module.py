"""What TVM's compiled modules can do, for kernels: `time_evaluator`, `get_source`.

`Kernel` has these methods.  Imports `timing`, `detect`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, cast

import numpy as np

from tedsl.detect import gpu_here
from tedsl.expr import build
from tedsl.runtime.timing import measure, measure_cuda


def convert(value: Any) -> Any:
    """A number as a constant, whose `value` and `astype` scripts ask for; in lists too.  Others are
    what they are."""
    if isinstance(value, (list, tuple)):
        return [convert(each) for each in cast("Sequence[object]", value)]
    return build.as_expr(value) if isinstance(value, (bool, int, float)) else value


@dataclass(frozen=True, slots=True)
class Device:
    """A place for arrays: of `device_type` "cpu" or "cuda", the number `index` of its kind; others
    do not exist."""

    device_type: str
    index: int = 0

    @property
    def exist(self) -> bool:
        """Whether there is such a device here."""
        return self.device_type == "cpu" or (self.device_type == "cuda" and gpu_here() is not None)

    def sync(self) -> None:
        """Wait for the kernels that were launched on it."""
        if self.device_type != "cpu":
            torch: Any = importlib.import_module("torch")
            torch.cuda.synchronize(self.index)

    def __str__(self) -> str:
        return f"{self.device_type}({self.index})"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of a call, one result for each repeat."""

    results: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Their mean."""
        return float(np.mean(self.results))

    @property
    def median(self) -> float:
        """The middle one."""
        return float(np.median(self.results))

    @property
    def min(self) -> float:
        """The shortest."""
        return min(self.results)

    @property
    def max(self) -> float:
        """The longest."""
        return max(self.results)

    @property
    def std(self) -> float:
        """How far they are apart, by the standard deviation."""
        return float(np.std(self.results))


class LikeModule:
    """The methods of TVM's modules."""

    __slots__ = ()

    @property
    def entry_name(self) -> str:
        """What `time_evaluator` is given: the kernel is its own entry."""
        return "__tvm_main__"

    @property
    def entry_func(self) -> Any:
        """The kernel itself."""
        return self

    def __getitem__(self, name: str) -> Any:
        """The kernel itself, which is the only function of its module."""
        return self

    get_function = __getitem__

    @property
    def type_key(self: Any) -> str:
        """TVM's word for what runs it."""
        return "cuda" if self.target.kind == "cuda" else "llvm"

    @property
    def imported_modules(self) -> list[Any]:
        """The kernel itself, whose source has the code of all of it."""
        return [self]

    def import_module(self, module: object) -> None:
        """Nothing: a kernel has all of its code."""

    def export_library(self, file_name: str | PathLike[str], *args: Any, **options: Any) -> None:
        """Write what `tvm.runtime.load_module` makes the kernel of again: what `tvm.build` was
        given, whatever the ending.

        Raises:
            BackendError: it was not made by `tvm.build`.
        """
        importlib.import_module("tedsl.tvm.saved").save_module(self, file_name)

    def get_source(self: Any, fmt: str = "") -> str:
        """The generated program, or with `"asm"` or `"ptx"` what the target's compiler made of it
        (`kernel.source`, `kernel.asm`)."""
        return str(self.asm if fmt in ("asm", "ptx", "s") else self.source)

    def time_evaluator(
        self: Any,
        func_name: str = "",
        dev: Device | None = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 0,
        **options: object,
    ) -> Callable[..., Times]:
        """A function that is called as the kernel is, and gives the times of its calls.

        `te.runtime.measure` and `te.runtime.measure_cuda`, which this is, take samples until they
        agree; here there are as many as TVM's scripts ask for.

        Args:
            func_name: the kernel is the only one.
            dev: the device; the arrays have one.
            number: as many calls at least are one sample.
            repeat: samples.
            min_repeat_ms: so long a sample is at least.
            options: others of TVM's, which are not needed here.
        """
        timer: Any = measure_cuda if self.target.kind == "cuda" else measure

        def timed(*arrays: Any) -> Times:
            stats = timer(lambda: self(*arrays), repeats=max(3, repeat))
            return Times(tuple(stats.samples[: max(1, repeat)]))

        return timed
