"""Neural-network operators written only with the language; the compiler knows none of them.

Sixteen-bit floats are cast to float32 on reading, everything is computed there, and the result is
cast back to the dtype of the first input.  Each operator takes and returns whole tensors; what it
builds are ordinary computes, to be scheduled like any other.
"""

from tedsl.expr.nn.activations import gelu, relu, silu
from tedsl.expr.nn.attention import attention, paged_attention
from tedsl.expr.nn.conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from tedsl.expr.nn.norms import layer_norm, rms_norm
from tedsl.expr.nn.pool import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
    adaptive_max_pool3d,
    avg_pool1d,
    avg_pool2d,
    avg_pool3d,
    max_pool1d,
    max_pool2d,
    max_pool3d,
)
from tedsl.expr.nn.products import linear, matmul
from tedsl.expr.nn.softmax import softmax

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "attention",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "gelu",
    "layer_norm",
    "linear",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "paged_attention",
    "relu",
    "rms_norm",
    "silu",
    "softmax",
]
