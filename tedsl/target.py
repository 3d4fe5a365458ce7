"""Targets: where a kernel is to run.  Imports only `errors`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from tedsl.errors import BackendError

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")


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
        """`"cpu"`, `"cuda"`, `"cuda:sm_80" | "cuda:sm_90" | "cuda:sm_100"`, `"triton-interpret"`.

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
            hint='TVM\'s "llvm" is "cpu" here; options of the machine are found out'
            if kind.split(" ")[0] in ("llvm", "c")
            else 'use target="cpu" where there is no GPU',
        )

    @property
    def is_triton(self) -> bool:
        """True when the kernel becomes Triton source."""
        return self.kind is not TargetKind.CPU

    def __str__(self) -> str:
        return self.kind.value if self.arch is None else f"{self.kind.value}:{self.arch}"
