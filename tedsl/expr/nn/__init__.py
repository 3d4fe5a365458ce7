"""Neural-network operators written only with the language; the compiler knows none of them.

Sixteen-bit floats are cast to float32 on reading, everything is computed there, and the result is
cast back to the dtype of the first input.  Each operator takes and returns whole tensors; what it
builds are ordinary computes, to be scheduled like any other.
"""

from tedsl.expr.nn.activations import gelu, relu, silu
from tedsl.expr.nn.norms import layer_norm, rms_norm
from tedsl.expr.nn.products import linear, matmul
from tedsl.expr.nn.softmax import softmax

__all__ = ["gelu", "layer_norm", "linear", "matmul", "relu", "rms_norm", "silu", "softmax"]
