"""What one row of the benchmark is: a computation in the language, the same in PyTorch and in
NumPy, and the bar that it has to reach.

A row is data.  `function` names it in `references.py` (NumPy, float64) and in `torch_peers.py`
(loaded only where PyTorch is measured), so that the rows can be listed, built and checked without
PyTorch.  Inputs are passed by the names of the placeholders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tedsl as te
from tedsl.expr.nodes import Const
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import PlaceholderOp, Tensor

F = "float32"
B = "bfloat16"

OURS = "tedsl"
LAUNCHED = "tedsl without a graph"
EAGER = "torch eager"
COMPILED = "torch.compile"
TUNED = "torch.compile max-autotune"
COPY = "copy"
NUMPY = "numpy"
CUDNN = "cuDNN"
FLASH = "SDPA flash"
FLEX = "FlexAttention"
SCALED = "torch._scaled_mm"
FOREACH = "foreach"
FUSED = "fused"
AUTOGRAD = "torch.compile autograd"
LIMIT = "limit"
BEST_COMPILED = "best torch.compile"
BEST = "best of torch.compile and library"

TOGETHER: Mapping[str, tuple[str, ...]] = {
    BEST_COMPILED: (COMPILED, TUNED, AUTOGRAD),
    BEST: (COMPILED, TUNED, EAGER),
}
"""Peers of which the fastest counts."""


@dataclass(frozen=True)
class Bar:
    """How many times as fast as `peer` the rows of a line have to be.

    `geomean` is the least geometric mean over the line, `least` the least of any row; a ratio is
    seconds of the peer over seconds of ours.
    """

    peer: str
    geomean: float
    least: float = 0.0


@dataclass(frozen=True)
class Line:
    """Rows that share a bar: a line of the table in the issue, or a part of one."""

    key: str
    family: str
    title: str
    bars: tuple[Bar, ...] = ()


@dataclass(frozen=True)
class Fill:
    """What an input is filled with: normal numbers times `scale` plus `mean`, or integers from 0
    below `high`, which is a number or the name of a size."""

    scale: float = 1.0
    mean: float = 0.0
    high: int | str | None = None
    positive: bool = False


@dataclass(frozen=True)
class Workload:
    """One row.

    Attributes:
        name: unique, with dtype and sizes.
        line: the key of its `Line`.
        function: the name of the computation in `references` and `torch_peers`.
        make: builds the outputs (or a schedule of them) from `sizes`.
        sizes: what is measured.
        small: the same computation in a size that an interpreter can run.
        settings: what the NumPy and the PyTorch function are told besides the tensors.
        fills: of inputs that are not plain normal numbers, by name.
        traffic: bytes that have to be moved; None for all inputs and outputs, once each.
        flops: operations; 0 where memory sets the limit.
        error: bound of the relative error (Frobenius norm).
        peers: more peers, as the name of a function of `torch_peers` that prepares a call.
        without: peers that are not run.
        bars: of this row alone.
        target: "cuda" or "cpu".
        lacks: what the language does not have yet; such a row is listed and not built.
        one_kernel: whether one kernel should do, which `--static` says.
        uses_dot: whether the matrix units should be used.
        host: True where the time of the host is measured and not that of the device.
        graphed: True where our side is one CUDA graph, of arguments that are read where they are,
            as a step of an optimiser would be; the plain call is measured beside it.
    """

    name: str
    line: str
    function: str
    make: Callable[..., Sequence[Tensor] | te.Schedule]
    sizes: Mapping[str, Any]
    small: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    fills: Mapping[str, Fill] = field(default_factory=dict[str, Fill])
    traffic: int | None = None
    flops: int = 0
    error: float = 1e-2
    peers: Mapping[str, str] = field(default_factory=dict[str, str])
    without: tuple[str, ...] = ()
    bars: tuple[Bar, ...] = ()
    target: str = "cuda"
    lacks: str = ""
    one_kernel: bool = True
    uses_dot: bool = False
    host: bool = False
    graphed: bool = False

    def outputs(self, small: bool = False) -> Sequence[Tensor] | te.Schedule:
        """The definitions, made anew."""
        return self.make(**(self.small if small else self.sizes))

    def inputs(self, small: bool = False) -> dict[str, Tensor]:
        """The placeholders by name."""
        made = self.outputs(small)
        outputs = made.outputs if isinstance(made, te.Schedule) else made
        found = [op for op in operations(list(outputs)) if isinstance(op, PlaceholderOp)]
        return {op.name: op.outputs[0] for op in found}

    @cached_property
    def moved(self) -> int:
        """Bytes to be moved."""
        if self.traffic is not None or self.lacks:
            return self.traffic or 0
        made = self.outputs()
        outputs = list(made.outputs if isinstance(made, te.Schedule) else made)
        return sum(nbytes(t) for t in (*self.inputs().values(), *outputs))


def buildable(made: Sequence[Tensor] | te.Schedule) -> te.Schedule | Tensor | list[Tensor]:
    """In the form that `te.build` takes: one tensor by itself."""
    if isinstance(made, te.Schedule):
        return made
    return list(made) if len(made) > 1 else made[0]


def shape_of(tensor: Tensor) -> tuple[int, ...]:
    """The extents, which are constants in every row."""
    return tuple(int(n.value) for n in tensor.shape if isinstance(n, Const))


def nbytes(tensor: Tensor) -> int:
    """Bytes of a whole tensor."""
    return math.prod(shape_of(tensor)) * tensor.dtype.nbytes


BEYOND = "beyond"
"""The line of rows that are measured and shown, and of which nothing is asked."""

LINES: tuple[Line, ...] = (
    Line(
        "pointwise",
        "pointwise",
        "pointwise chains, broadcast vectors, sin+cos, transpose-add, gather-add",
        (Bar(COPY, 0.98), Bar(BEST_COMPILED, 1.0)),
    ),
    Line(
        "reductions",
        "reductions",
        "mean of squares, column sum, var over everything",
        (Bar(BEST_COMPILED, 1.05), Bar(COPY, 0.88)),
    ),
    Line("rows short", "rows", "softmax, log-softmax, short rows", (Bar(BEST_COMPILED, 1.0),)),
    Line("rows 4096", "rows", "softmax 16384x4096", (Bar(BEST_COMPILED, 1.8),)),
    Line("rows 32768", "rows", "softmax 4096x32768", (Bar(BEST_COMPILED, 1.65),)),
    Line("rows 5000", "rows", "softmax 16384x5000", (Bar(BEST_COMPILED, 1.6),)),
    Line("rows 4097", "rows", "softmax 16384x4097", (Bar(BEST_COMPILED, 1.8),)),
    Line("rows 131072", "rows", "softmax 1024x131072", (Bar(BEST_COMPILED, 1.8),)),
    Line("rows 1048576", "rows", "softmax 128x1048576", (Bar(BEST_COMPILED, 2.2),)),
    Line("norms", "rows", "layer_norm, rms_norm with residual", (Bar(BEST_COMPILED, 1.03, 0.98),)),
    Line("norms backward", "rows", "backward of the norms", (Bar(BEST_COMPILED, 1.8),)),
    Line("cross entropy", "rows", "cross entropy, forward", (Bar(BEST_COMPILED, 2.1),)),
    Line(
        "cross entropy both",
        "rows",
        "cross entropy, forward and backward",
        (Bar(BEST_COMPILED, 1.7),),
    ),
    Line("gemm", "gemm", "GEMM, squares and odd, skinny, deep shapes", (Bar(EAGER, 1.02, 0.93),)),
    Line("gemm gelu", "gemm", "GEMM + bias + gelu", (Bar(BEST, 1.07),)),
    Line("swiglu", "gemm", "SwiGLU", (Bar(BEST, 1.05),)),
    Line("norm gemm", "gemm", "norm -> GEMM", (Bar(BEST, 1.1),)),
    Line("gemm rows", "gemm", "GEMM -> row statistics", (Bar(BEST, 1.15),)),
    Line("fp8", "gemm", "fp8 GEMM with row scales", (Bar(SCALED, 1.0),)),
    Line(
        "attention",
        "attention",
        "attention forward, d64 and d128, causal or not, 2k-16k",
        (Bar(FLEX, 1.2), Bar(CUDNN, 0.85)),
    ),
    Line(
        "attention variants",
        "attention",
        "attention with a window, with a soft cap",
        (Bar(FLEX, 1.2),),
    ),
    Line("attention backward", "attention", "attention backward", (Bar(CUDNN, 0.75),)),
    Line(
        "convolution",
        "convolution",
        "conv + scale + bias + relu, NHWC",
        (Bar(BEST_COMPILED, 1.0),),
    ),
    Line("depthwise", "convolution", "depthwise conv", (Bar(BEST_COMPILED, 1.2),)),
    Line(
        "horizontal",
        "horizontal",
        "100 small tensors, one Adam step, ours as one CUDA graph",
        (Bar(COMPILED, 3.0), Bar(FOREACH, 1.0)),
    ),
    Line("launch", "launch", "host time of one call, tiny input", (Bar(LIMIT, 1.0),)),
    Line(BEYOND, BEYOND, "beyond the asked: float32 products, attention, convolution"),
    Line("cpu", "cpu", "the CPU"),
)

HOST_LIMIT = 8e-6
"""Seconds of the host that a call may take."""


def line_of(key: str) -> Line:
    """A line by its key."""
    return next(line for line in LINES if line.key == key)
