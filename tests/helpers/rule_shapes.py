"""One computation for each rule, at the size that it is made for."""

from __future__ import annotations

from collections.abc import Callable

import rule_cases as c
from attentions import attention
from rule_cases import Outputs

import tedsl as te
from tedsl.tensor.tensor import Tensor

B = "bfloat16"


def product_with_epilogue() -> Tensor:
    """A contraction, a row vector added, and work on each element of the result."""
    n, wide = 4096, "float32"
    a, b = c.p(n, n, dtype=B, name="a"), c.p(n, n, dtype=B, name="b")
    bias = c.p(n, dtype=B, name="bias")
    k = te.reduce_axis((0, n), name="k")
    product = te.compute(
        (n, n), lambda i, j: te.sum(a[i, k].astype(wide) * b[k, j].astype(wide), axis=k), name="ab"
    )
    biased = te.compute((n, n), lambda i, j: product[i, j] + bias[j].astype(wide), name="biased")
    return te.cast(te.nn.gelu(biased, approximate="tanh"), B)


SHAPES: dict[str, Callable[[], Outputs]] = {
    "chain": lambda: c.chain(8192, 8192),
    "row_vectors": lambda: c.broadcast(8192, 8192),
    "crossed": lambda: c.transpose_add(8192, 8192),
    "whole_rows": lambda: c.softmax(16384, 4096, dtype=B),
    "long_rows": lambda: c.softmax(64, 50257),
    "dependent_rows": lambda: c.layer_norm(16384, 8192, dtype=B),
    "crossed_rows": lambda: c.softmax(64, 512, 512, axis=1),
    "columns": lambda: c.fold((4096, 4096), (0,)),
    "few_columns": lambda: c.fold((1000000, 3), (0,)),
    "rows_and_columns": lambda: c.slopes_of_rows(16384, 8192, dtype=B),
    "rows_read_again": lambda: c.loss_and_slope(8192, 128256, dtype=B),
    "few_very_long_rows": lambda: c.softmax(128, 1 << 20, dtype=B),
    "odd_rows": lambda: c.loss_and_slope(8192, 50257, dtype=B),
    "mean": lambda: c.mean_of_all(8191, 8193, dtype=B),
    "whole": lambda: c.fold((100000000,), (0,)),
    "one_order": lambda: c.welford(4096, 4096),
    "contraction": lambda: c.matmul(4096, 4096, 4096, B),
    "contraction_with_epilogue": product_with_epilogue,
    "products_of_one_operand": lambda: c.gated(1000, 5000, 2000),
    "exact_contraction": lambda: c.matmul(1024, 1024, 1024),
    "batch": lambda: c.batched(64, 128, 128, 64),
    "thin_contraction": lambda: c.matmul(8, 4096, 4096, B),
    "matrix_and_vector": lambda: c.matmul(1, 4096, 4096, B),
    "split_contraction": lambda: c.matmul(64, 64, 4096, B),
    "split_rows": lambda: c.fold((16, 1000000), (1,)),
    "rows_apart": lambda: c.softmax(1, 1000000),
    "around_a_chain": lambda: attention(32, 2048, 2048, 64, B).result,
    "windows": lambda: c.channels(8, 32, 64, 56, 3),
    "images": lambda: c.images(32, 56, 64, 128, B),
    "any_size": lambda: c.softmax(te.size_var("m"), te.size_var("n")),
}
