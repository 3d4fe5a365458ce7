"""What a call costs the host: inputs so small that the device has nothing to do."""

from __future__ import annotations

import written
from workload import B, F, Workload


def workloads() -> list[Workload]:
    """A chain of 1024 elements, which the bar is for, and kernels of other forms."""
    return [
        _chain(1024, F),
        _chain(1000, B),
        Workload(
            name="call: row_vectors, f32 4x256",
            line="launch",
            function="row_vectors",
            make=written.row_vectors,
            sizes={"m": 4, "n": 256},
            small={"m": 4, "n": 256},
            error=1e-5,
            host=True,
        ),
        Workload(
            name="call: softmax, bf16 8x129",
            line="launch",
            function="softmax",
            make=written.softmax,
            sizes={"m": 8, "n": 129, "dtype": B},
            small={"m": 8, "n": 129, "dtype": B},
            host=True,
        ),
    ]


def _chain(n: int, dtype: str) -> Workload:
    return Workload(
        name=f"call: chain of 5, {'f32' if dtype == F else 'bf16'} {n}",
        line="launch",
        function="short_chain",
        make=written.short_chain,
        sizes={"n": n, "dtype": dtype},
        small={"n": n, "dtype": dtype},
        error=1e-5 if dtype == F else 1e-2,
        host=True,
    )
