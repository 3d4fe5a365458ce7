"""Where a measurement holds: what was tuned, where, and with what.  Plain data."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Context:
    """Where results are comparable.

    Attributes:
        workload: name-free hash of the computation, constant sizes included; `family` leaves them
            out.
        sizes, dtypes: shapes and element types of inputs and outputs, as JSON; for symbolic sizes
            the values that were tuned for.
        target: `cpu` or `cuda`.
        device: name of the processor or GPU.
        features: of the processor, e.g. its vector extensions.
        toolchain: versions of what generates, compiles and runs the code, driver included.
        codegen: digest of the compiler's own sources.
        space: which schedule function was searched.
        layout: strides and alignment of the arrays.
    """

    workload: str
    family: str
    sizes: str
    dtypes: str
    target: str
    device: str
    features: str
    toolchain: str
    codegen: str
    space: str = "rules"
    layout: str = "contiguous, 16 bytes"

    @property
    def near(self) -> dict[str, str]:
        """What must agree for a record to be worth a new certificate: all but the tools."""
        names = ("workload", "sizes", "target", "device", "features", "space", "layout")
        return {name: value for name, value in asdict(self).items() if name in names}

    @property
    def exact(self) -> dict[str, str]:
        """What must agree for a record to be used as it is."""
        return {**self.near, "toolchain": self.toolchain, "codegen": self.codegen}

    @property
    def digest(self) -> str:
        """32 hex digits of what must agree for a record to be used as it is."""
        text = json.dumps(self.exact, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
