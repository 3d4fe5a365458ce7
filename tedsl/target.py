"""Targets: where a kernel is to run, and on what device.

The device of plain `cuda` is the GPU that is here; where there is none, an H200 stands for it, as
it does for `cuda:sm_90`, so that schedules and generated text are the same with and without one.
Imports only `device`, `detect` and `errors`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum

from tedsl.detect import cpu_here, gpu_here
from tedsl.devices import ARCHITECTURES, DEFAULT, Device, GpuDevice, gpu_of
from tedsl.errors import BackendError
from tedsl.slips import near, suggests


class TargetKind(StrEnum):
    """The backends: LLVM, Triton on a device, Triton's own interpreter over NumPy arrays.

    Their values are the targets' names here, and `name` is what TVM calls them: `"llvm"`, `"cuda"`.
    """

    CPU = "cpu"
    CUDA = "cuda"
    TRITON_INTERPRET = "triton-interpret"

    @enum.property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """TVM's name for it."""
        return "llvm" if self is TargetKind.CPU else self.value


_OF_TVM = {
    "attrs": "a target has a kind and an arch; str(target) has both",
    "with_host": "leave it out: there is no host to choose",
}


@suggests(BackendError, _OF_TVM, "a target")
@dataclass(frozen=True, slots=True, init=False)
class Target:
    """A backend and, for `cuda:sm_90`, the architecture to compile for without a device (compile
    only).

    Args:
        target: as `te.build` takes it, or TVM's `{"kind": "cuda", "arch": "sm_80"}`.
        arch: the architecture, where the text does not have it; or `host`, as TVM has it second.
        host: TVM's other target, for what calls a kernel; there is nothing to choose here.
    """

    kind: TargetKind
    arch: str | None

    def __init__(
        self,
        target: TargetKind | str | Target | Mapping[str, object] = "",
        arch: str | None = None,
        host: object = None,
    ) -> None:
        if isinstance(target, Mapping):
            options = (f" -{key}={value}" for key, value in target.items() if key != "kind")
            target = f"{target.get('kind', '')}{''.join(options)}"
        kind, of_text = _parts(target)
        if arch is not None and not _is_host(arch):
            kind, of_text = _parts(f"{kind.value}:{arch}")
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "arch", of_text)

    @staticmethod
    def parse(text: str | Target) -> Target:
        """`"cpu"`, `"cuda"`, `"triton-interpret"`, or `"cuda:sm_90"` and the other architectures of
        `tedsl.devices`; TVM's `"llvm"` and `"cuda -arch=sm_90"`, with whatever options.

        Raises:
            BackendError: any other text.
        """
        return text if isinstance(text, Target) else Target(text)

    def __enter__(self) -> Target:
        """Within the block it is the target where none is given."""
        _around.set((*_around.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        _around.set(_around.get()[:-1])

    @staticmethod
    def current(allow_none: bool = True) -> Target | None:
        """The target of the innermost block around; None where there is none, as `allow_none`
        says: no target has to be chosen before kernels are built."""
        return _around.get()[-1] if _around.get() else None

    @property
    def keys(self) -> tuple[str, ...]:
        """TVM's words for what it is: scripts ask whether `"cpu"` or `"gpu"` is among them."""
        return ("cuda", "gpu") if self.is_triton else ("cpu",)

    @property
    def max_num_threads(self) -> int:
        """The most threads of a program."""
        return self.resolve_gpu().threads_block if self.is_triton else 1

    @property
    def thread_warp_size(self) -> int:
        """How many threads run one instruction together."""
        return 32 if self.is_triton else 1

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


_around: ContextVar[tuple[Target, ...]] = ContextVar("targets around", default=())


def _parts(target: TargetKind | str | Target) -> tuple[TargetKind, str | None]:
    """The kind and the architecture that a text says."""
    if isinstance(target, TargetKind):
        return target, None
    if isinstance(target, Target):
        return target.kind, target.arch
    text = _as_here(str(target))
    kind, _, arch = text.partition(":")
    known = kind in tuple(TargetKind)
    if known and (not arch or (kind == TargetKind.CUDA and arch in ARCHITECTURES)):
        return TargetKind(kind), arch or None
    close = (
        ["cuda"]
        if kind.partition("/")[0] in ("gpu", "triton", "nvidia")
        else near(kind, [*TargetKind, *(f"cuda:{a}" for a in ARCHITECTURES)])
    )
    meant = f"did you mean {' or '.join(close)}?"
    names = ", ".join(f"cuda:{a}" for a in ARCHITECTURES)
    raise BackendError(
        f"unknown target {target!r}",
        facts=[("allowed", f"cpu, cuda, {names}, triton-interpret")],
        hint=meant if close else 'use "cpu", or "cuda" for an NVIDIA GPU: there are no others',
    )


def _is_host(text: object) -> bool:
    """True for a target of what calls a kernel, by which nothing changes."""
    return str(text).split(" ")[0] in ("c", "cpu", "llvm", "stackvm")


def _as_here(text: str) -> str:
    """A target of TVM under the name that it has here; others as they are.

    Options of the processor are found out.  `-arch` is the GPU that is here, or one to compile for.
    """
    kind, *options = text.split() or [""]
    if kind in ("llvm", "c"):
        return TargetKind.CPU.value
    if kind not in ("cuda", "nvptx") or not (options or kind == "nvptx"):
        return text
    arch = next((option[6:] for option in options if option.startswith("-arch=")), "")
    here = gpu_here() if arch else None
    return f"cuda:{arch}" if arch and (here is None or here.arch != arch) else "cuda"
