"""Rows that are reduced and written again: softmax, norms and their backward, cross entropy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import written
from workload import AUTOGRAD, B, F, Fill, Workload

LONG_SMALL = {"m": 4, "n": 70000}
"""Longer than a program holds as a whole, so that the rule of long rows is the one checked."""


def workloads() -> list[Workload]:
    """The rows with a bar of their own first."""
    return [
        _row("softmax", "softmax", "rows 4096", 16384, 4096),
        _row("softmax", "softmax", "rows short", 65536, 1024),
        _row("rms_norm(x + r)", "rms_norm_add", "norms", 65536, 1024),
        _row("layer_norm", "layer_norm", "norms", 16384, 8192),
        _cross_entropy("cross_entropy", "cross entropy", 8192, 128256),
        _backward("layer_norm", "layer_norm_backward", 16384, 8192),
        _row("softmax", "softmax", "rows 32768", 4096, 32768),
        _row("softmax", "softmax", "rows 5000", 16384, 5000),
        _row("softmax", "softmax", "rows 4097", 16384, 4097),
        _row("softmax", "softmax", "rows 131072", 1024, 131072, LONG_SMALL),
        _row("softmax", "softmax", "rows 1048576", 128, 1 << 20, LONG_SMALL),
        _cross_entropy("cross_entropy_both", "cross entropy both", 8192, 128256),
        _row("softmax", "softmax", "rows short", 262144, 128),
        _row("softmax", "softmax", "rows short", 65536, 257),
        _row("log_softmax", "log_softmax", "rows short", 65536, 1024),
        _row("log_softmax", "log_softmax", "rows short", 262144, 128),
        _row("log_softmax", "log_softmax", "rows short", 65536, 257),
        _row("rms_norm(x + r)", "rms_norm_add", "norms", 16384, 8192),
        _row("layer_norm", "layer_norm", "norms", 65536, 1024),
        _row("layer_norm", "layer_norm", "norms", 16384, 5000),
        _row("layer_norm", "layer_norm", "norms", 16384, 4096, dtype=F),
        _row("rms_norm(x + r)", "rms_norm_add", "norms", 16384, 4097),
        _backward("rms_norm", "rms_norm_backward", 16384, 8192),
        _backward("layer_norm", "layer_norm_backward", 65536, 1024),
        _backward("layer_norm", "layer_norm_backward", 8191, 5000),
        _cross_entropy("cross_entropy", "cross entropy", 16384, 32000),
        _cross_entropy("cross_entropy", "cross entropy", 8192, 50257),
        _cross_entropy("cross_entropy_both", "cross entropy both", 8192, 50257),
        _row("softmax", "softmax", "rows short", 65536, 1024, dtype=F),
    ]


def _row(
    title: str,
    function: str,
    line: str,
    m: int,
    n: int,
    small: Mapping[str, int] | None = None,
    dtype: str = B,
    **more: Any,
) -> Workload:
    make: Any = getattr(written, function)
    chosen = small or {"m": 9, "n": n if n < 300 else 200 + n % 3}
    return Workload(
        name=f"{title}, {'f32' if dtype == F else 'bf16'} {m}x{n}",
        line=line,
        function=function,
        make=make,
        sizes={"m": m, "n": n, "dtype": dtype},
        small={**chosen, "dtype": dtype},
        error=1e-5 if dtype == F else 1e-2,
        **more,
    )


def _backward(title: str, function: str, m: int, n: int) -> Workload:
    """The sums over rows and over columns take one read of x and dy."""
    kept = {"rstd": Fill(0.1, 1.0)}
    if function == "layer_norm_backward":
        kept["mean"] = Fill(0.1)
    return _row(f"{title} backward", function, "norms backward", m, n, fills=kept)


def _cross_entropy(function: str, line: str, m: int, n: int) -> Workload:
    both = function == "cross_entropy_both"
    title = "cross entropy, forward and backward" if both else "cross entropy"
    more: dict[str, Any] = {"fills": {"target": Fill(high="n")}}
    if both:
        more["peers"] = {AUTOGRAD: "prepare_cross_entropy_autograd"}
    # The logits are written once more by the backward pass.
    more["traffic"] = (4 if both else 2) * m * n + 12 * m
    return _row(title, function, line, m, n, **more)
