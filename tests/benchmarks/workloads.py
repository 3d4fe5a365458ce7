"""What is measured: each computation in the language and in PyTorch, its traffic, and its bars."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tedsl as te

sys.path.append(str(Path(__file__).parents[1] / "helpers"))

from attentions import attention, one_pass

torch: Any = importlib.import_module("torch")  # `pip install "tedsl[torch]"`


@dataclass(frozen=True)
class Bar:
    """At least `ratio` times as fast as `peer` (seconds of the peer over seconds of ours)."""

    peer: str
    ratio: float


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    `make` builds the tensors (inputs are its placeholders, in order) or a schedule of them, where
    the rules have none yet, `torch_call` the same from
    PyTorch tensors; `shapes` and `dtypes` are of the inputs; `traffic` counts each input and each
    output once, in bytes; `error` bounds the relative error against float32 (Frobenius norm).
    """

    name: str
    target: str
    make: Callable[[], list[te.Tensor] | te.Schedule]
    torch_call: Callable[..., Any]
    shapes: Sequence[tuple[int, ...]]
    dtypes: Sequence[str]
    traffic: int
    bars: Sequence[Bar]
    flops: int = 0
    error: float = 1e-5


F = "float32"
B = "bfloat16"


def _chain(n: int) -> list[te.Tensor]:
    x, y = te.placeholder((n, n), F, name="x"), te.placeholder((n, n), F, name="y")
    return [te.sigmoid(te.maximum((x + y) * 2.0, 0.0) - 1.0)]


def _row_vectors(n: int) -> list[te.Tensor]:
    x = te.placeholder((n, n), F, name="x")
    w, b = te.placeholder((n,), F, name="w"), te.placeholder((n,), F, name="b")
    return [te.nn.relu(x * w + b)]


def _sincos(n: int) -> list[te.Tensor]:
    x = te.placeholder((n, n), F, name="x")
    return list(te.compute((n, n), lambda i, j: (te.sin(x[i, j]), te.cos(x[i, j])), name="sincos"))


def _transpose_add(n: int) -> list[te.Tensor]:
    x, y = te.placeholder((n, n), F, name="x"), te.placeholder((n, n), F, name="y")
    return [te.compute((n, n), lambda i, j: x[i, j] + y[j, i], name="transpose_add")]


def _softmax(m: int, n: int, dtype: str) -> list[te.Tensor]:
    return [te.nn.softmax(te.placeholder((m, n), dtype, name="x"))]


def _layer_norm(m: int, n: int, dtype: str) -> list[te.Tensor]:
    x = te.placeholder((m, n), dtype, name="x")
    w, b = te.placeholder((n,), dtype, name="w"), te.placeholder((n,), dtype, name="b")
    return [te.nn.layer_norm(x, w, b)]


def _matmul(n: int, dtype: str) -> list[te.Tensor]:
    a, b = te.placeholder((n, n), dtype, name="a"), te.placeholder((n, n), dtype, name="b")
    return [te.nn.matmul(a, b)]


def _matmul_gelu(n: int, dtype: str) -> list[te.Tensor]:
    a, b = te.placeholder((n, n), dtype, name="a"), te.placeholder((n, n), dtype, name="b")
    bias = te.placeholder((n,), dtype, name="bias")
    k = te.reduce_axis((0, n), name="k")
    product = te.compute(
        (n, n), lambda i, j: te.sum(a[i, k].astype(F) * b[k, j].astype(F), axis=k), name="product"
    )
    biased = te.compute((n, n), lambda i, j: product[i, j] + bias[j].astype(F), name="biased")
    return [te.cast(te.nn.gelu(biased, approximate="tanh"), dtype)]


def _torch_chain(x: Any, y: Any) -> Any:
    return torch.sigmoid(torch.relu((x + y) * 2.0) - 1.0)


def _torch_row_vectors(x: Any, w: Any, b: Any) -> Any:
    return torch.relu(x * w + b)


def _torch_sincos(x: Any) -> Any:
    return torch.sin(x), torch.cos(x)


def _torch_transpose_add(x: Any, y: Any) -> Any:
    return x + y.t()


def _torch_softmax(x: Any) -> Any:
    return torch.softmax(x, -1)


def _torch_layer_norm(x: Any, w: Any, b: Any) -> Any:
    return torch.nn.functional.layer_norm(x, (x.shape[-1],), w, b)


def _torch_matmul(a: Any, b: Any) -> Any:
    return a @ b


def _torch_matmul_gelu(a: Any, b: Any, bias: Any) -> Any:
    return torch.nn.functional.gelu(a @ b + bias, approximate="tanh")


def _torch_attention(q: Any, k: Any, v: Any) -> Any:
    return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def _torch_causal_attention(q: Any, k: Any, v: Any) -> Any:
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q[None], k[None], v[None], is_causal=True)[0]


def _attention(heads: int, rows: int, depth: int, causal: bool) -> Workload:
    shape = (heads, rows, depth)
    return Workload(
        f"attention{', causal' if causal else ''}, bf16 {heads}x{rows}x{depth}",
        "cuda",
        lambda: one_pass(attention(heads, rows, rows, depth, B, causal), 64, 64),
        _torch_causal_attention if causal else _torch_attention,
        [shape] * 3,
        [B] * 3,
        8 * heads * rows * depth,
        [],
        (2 if causal else 4) * heads * rows * rows * depth,
        1e-2,
    )


COMPILED, TUNED, EAGER = "torch.compile", "torch.compile max-autotune", "torch eager"


def gpu_workloads() -> list[Workload]:
    """The rows measured on a GPU."""
    n, m = 8192, 4096
    square = (n, n)
    return [
        Workload(
            f"chain of 5, f32 {n}x{n}", "cuda", lambda: _chain(n), _torch_chain,
            [square] * 2, [F] * 2, 12 * n * n, [Bar("copy", 0.97)],
        ),
        Workload(
            f"relu(x*w + b), f32 {n}x{n}", "cuda", lambda: _row_vectors(n), _torch_row_vectors,
            [square, (n,), (n,)], [F] * 3, 8 * n * n, [Bar(COMPILED, 0.97)],
        ),
        Workload(
            f"sin and cos, f32 {n}x{n}", "cuda", lambda: _sincos(n), _torch_sincos,
            [square], [F], 12 * n * n, [Bar(COMPILED, 0.97)],
        ),
        Workload(
            f"x + y.T, f32 {n}x{n}", "cuda", lambda: _transpose_add(n), _torch_transpose_add,
            [square] * 2, [F] * 2, 12 * n * n, [Bar(COMPILED, 0.97)],
        ),
        Workload(
            "softmax, bf16 16384x4096", "cuda", lambda: _softmax(16384, 4096, B), _torch_softmax,
            [(16384, 4096)], [B], 4 * 16384 * 4096, [Bar(TUNED, 1.5)], error=1e-2,
        ),
        Workload(
            "layer_norm, bf16 16384x8192", "cuda", lambda: _layer_norm(16384, 8192, B),
            _torch_layer_norm, [(16384, 8192), (8192,), (8192,)], [B] * 3, 4 * 16384 * 8192,
            [Bar(TUNED, 1.0)], error=1e-2,
        ),
        Workload(
            f"matmul, bf16 {m}^3", "cuda", lambda: _matmul(m, B), _torch_matmul,
            [(m, m)] * 2, [B] * 2, 6 * m * m, [Bar(EAGER, 0.9)], 2 * m**3, 1e-2,
        ),
        Workload(
            f"matmul + bias + gelu, bf16 {m}^3", "cuda", lambda: _matmul_gelu(m, B),
            _torch_matmul_gelu, [(m, m), (m, m), (m,)], [B] * 3, 6 * m * m, [Bar(TUNED, 0.95)],
            2 * m**3, 1e-2,
        ),
        _attention(32, 2048, 64, causal=False),
        _attention(16, 4096, 128, causal=True),
    ]  # fmt: skip


def cpu_workloads() -> list[Workload]:
    """The rows measured on the CPU."""
    n, m = 4096, 1024
    square = (n, n)
    return [
        Workload(
            f"chain of 5, f32 {n}x{n}", "cpu", lambda: _chain(n), _torch_chain,
            [square] * 2, [F] * 2, 12 * n * n, [Bar("numpy", 2.5), Bar(COMPILED, 1.0)],
        ),
        Workload(
            f"softmax, f32 {n}x{n}", "cpu", lambda: _softmax(n, n, F), _torch_softmax,
            [square], [F], 8 * n * n, [Bar(EAGER, 1.0)],
        ),
        Workload(
            f"layer_norm, f32 {n}x{n}", "cpu", lambda: _layer_norm(n, n, F), _torch_layer_norm,
            [square, (n,), (n,)], [F] * 3, 8 * n * n, [Bar(EAGER, 1.0)],
        ),
        Workload(
            f"matmul, f32 {m}^3", "cpu", lambda: _matmul(m, F), _torch_matmul,
            [(m, m)] * 2, [F] * 2, 12 * m * m, [Bar("numpy", 0.7)], 2 * m**3,
        ),
        Workload(
            f"matmul + bias + gelu, f32 {m}^3", "cpu", lambda: _matmul_gelu(m, F),
            _torch_matmul_gelu, [(m, m), (m, m), (m,)], [F] * 3, 12 * m * m, [Bar(EAGER, 0.9)],
            2 * m**3,
        ),
    ]  # fmt: skip
