"""Neural-network operators written only with the language; the compiler knows none of them.

Sixteen-bit floats are cast to float32 on reading, everything is computed there, and the result is
cast back to the dtype of the first input.  Each operator takes and returns whole tensors; what it
builds are ordinary computes, to be scheduled like any other.
"""

from tedsl.expr.nn.activations import (
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
from tedsl.expr.nn.indexing import argmax, argmin, cumsum, embedding, one_hot
from tedsl.expr.nn.losses import (
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
from tedsl.expr.nn.norms import (
    add_rms_norm,
    batch_norm,
    batch_norm_training,
    group_norm,
    instance_norm,
    layer_norm,
    rms_norm,
)
from tedsl.expr.nn.optim import adam, adamw, foreach_adam, foreach_adamw, foreach_sgd, sgd
from tedsl.expr.nn.products import linear, matmul
from tedsl.expr.nn.random import dropout, philox, random_bits, random_uniform
from tedsl.expr.nn.rotary import rope, rope_tables
from tedsl.expr.nn.softmax import log_softmax, logsumexp, softmax
from tedsl.expr.nn.statistics import mean, std, var

__all__ = [
    "adam",
    "adamw",
    "add_rms_norm",
    "argmax",
    "argmin",
    "batch_norm",
    "batch_norm_training",
    "bce_loss",
    "bce_with_logits",
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
    "mean",
    "mish",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "philox",
    "random_bits",
    "random_uniform",
    "relu",
    "relu6",
    "rms_norm",
    "rope",
    "rope_tables",
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
