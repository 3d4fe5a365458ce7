"""Neural-network operators written only with the language; the compiler knows none of them.

Floats of 8 and 16 bits are cast to float32 on reading, everything is computed there, and the result
is cast back to the dtype of the first input.  Each operator takes and returns whole tensors; what
it builds are ordinary computes, to be scheduled like any other.

- `operator`: what is given to an operator is of the types that its signature names
- `arguments`, `windows`, `moments`: what several of them share
- the other files: the operators, by what they are for
"""

from typing import TYPE_CHECKING

from tedsl.nn.activations import (
    elu,
    gelu,
    glu,
    hardsigmoid,
    hardswish,
    leaky_relu,
    mish,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    swiglu,
    tanh,
)
from tedsl.nn.attention import attention, paged_attention
from tedsl.nn.conv import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from tedsl.nn.indexing import argmax, argmin, cumsum, embedding, one_hot
from tedsl.nn.losses import (
    bce_loss,
    bce_with_logits,
    cross_entropy,
    huber_loss,
    kl_div,
    l1_loss,
    mse_loss,
    nll_loss,
    smooth_l1_loss,
)
from tedsl.nn.matmul import linear, matmul
from tedsl.nn.moments import mean, std, var
from tedsl.nn.norms import (
    add_rms_norm,
    batch_norm,
    batch_norm_training,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from tedsl.nn.optim import adam, adamw, foreach_adam, foreach_adamw, foreach_sgd, sgd
from tedsl.nn.pool import (
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
from tedsl.nn.quantize import quantize, scaled_matmul
from tedsl.nn.random import dropout, philox, random_bits, random_uniform
from tedsl.nn.rotary import rope, rope_tables
from tedsl.nn.softmax import log_softmax, logsumexp, softmax
from tedsl.slips import in_module, uncalled

__all__ = [
    "adam",
    "adamw",
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "add_rms_norm",
    "argmax",
    "argmin",
    "attention",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "batch_norm",
    "batch_norm_training",
    "bce_loss",
    "bce_with_logits",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cross_entropy",
    "cumsum",
    "dropout",
    "elu",
    "embedding",
    "foreach_adam",
    "foreach_adamw",
    "foreach_sgd",
    "gelu",
    "glu",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "huber_loss",
    "instance_norm",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsumexp",
    "matmul",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "mean",
    "mish",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "paged_attention",
    "philox",
    "quantize",
    "random_bits",
    "random_uniform",
    "relu",
    "relu6",
    "rms_norm",
    "rope",
    "rope_tables",
    "scaled_matmul",
    "selu",
    "sgd",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "std",
    "swiglu",
    "tanh",
    "var",
]

if not TYPE_CHECKING:  # a type checker knows the names there are
    __getattr__ = in_module(__name__, __all__)
    uncalled(__name__, __all__)
