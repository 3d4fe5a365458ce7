"""Targets: where a kernel is to run, and on what device.

The device of plain `cuda` is the GPU that is here; where there is none, an H200 stands for it, as
it does for `cuda:sm_90`, so that schedules and generated text are the same with and without one.
Imports only `device`, `detect` and `errors`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tedsl.detect import cpu_here, gpu_here
from tedsl.devices import ARCHITECTURES, DEFAULT, Device, GpuDevice, gpu_of
from tedsl.errors import BackendError
from tedsl.slips import near


class TargetKind(StrEnum):
    """The backends: LLVM, Triton on a device, Triton's own interpreter over NumPy arrays."""

    CPU = "cpu"
    CUDA = "cuda"
    TRITON_INTERPRET = "triton-interpret"


@dataclass(frozen=True, slots=True)
class Target:
    """A backend and, for `cuda:sm_90`, the architecture to compile for without a device (compile
    only)."""

    kind: TargetKind
    arch: str | None = None

    @staticmethod
    def parse(text: str | Target) -> Target:
        """`"cpu"`, `"cuda"`, `"triton-interpret"`, or `"cuda:sm_90"` and the other architectures of
        `tedsl.devices`.

        Raises:
            BackendError: any other text.
        """
        if isinstance(text, Target):
            return text
        kind, _, arch = str(text).partition(":")
        known = kind in tuple(TargetKind)
        if known and (
            not arch
            or (kind == TargetKind.CUDA and re.fullmatch(r"sm_\d+", arch) and arch in ARCHITECTURES)
        ):
            return Target(TargetKind(kind), arch or None)
        raise BackendError(
            f"unknown target {text!r}",
            facts=[
                (
                    "allowed",
                    "cpu, cuda, "
                    + ", ".join(f"cuda:{a}" for a in ARCHITECTURES)
                    + ", triton-interpret",
                )
            ],
            hint=_meant(kind),
        )

    def resolve(self) -> Device:
        """The device that it is: of an architecture the GPU that stands for it, of plain `cuda` the
        one that is here, of the interpreter, and where no GPU is, the default one."""
        if self.kind is TargetKind.CPU:
            return cpu_here()
        return self.resolve_gpu()

    def resolve_gpu(self) -> GpuDevice:
        """The GPU that Triton's text is for."""
        here = gpu_here() if self.kind is TargetKind.CUDA and self.arch is None else None
        return here or gpu_of(self.arch or DEFAULT)

    @property
    def is_triton(self) -> bool:
        """True when the kernel becomes Triton source."""
        return self.kind is not TargetKind.CPU

    def __str__(self) -> str:
        return self.kind.value if self.arch is None else f"{self.kind.value}:{self.arch}"


def _meant(text: str) -> str:
    """What to write in place of a target of TVM, else of any other text."""
    words = text.split()
    if words[:1] in (["llvm"], ["c"]):
        return 'TVM\'s "llvm" is "cpu" here; options of the machine are found out'
    arch = re.search(r"sm_\d+", text)
    if words[:1] in (["cuda"], ["nvptx"]):
        return f'write "cuda:{arch[0]}"' if arch else 'write "cuda"'
    close = near(text, [*TargetKind, *(f"cuda:{a}" for a in ARCHITECTURES)])
    meant = f"did you mean {' or '.join(close)}?"
    return meant if close else 'use target="cpu" where there is no GPU'
