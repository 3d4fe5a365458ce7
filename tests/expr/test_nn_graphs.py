"""What operators of te.nn are made of: their stages, by the names that their docstrings give."""

from __future__ import annotations

from collections.abc import Callable

import tedsl as te
from tedsl.tensor.printer import print_graph

nn = te.nn
N = te.var("n")
X = te.placeholder((N, 64), "bfloat16", name="x")
IMAGE = te.placeholder((N, 6, 35), name="x")
TARGET = te.placeholder((N,), "int32", name="t")
WEIGHT = te.placeholder((64,), name="w")
V, W = te.placeholder((6,), name="v"), te.placeholder((6,), name="w")


def test_losses(golden: Callable[..., None]) -> None:
    golden(print_graph(nn.cross_entropy(X, TARGET, WEIGHT, label_smoothing=0.1)), "cross_entropy")
    golden(print_graph(nn.nll_loss(X, TARGET, reduction="none")), "nll_loss")
    golden(print_graph(nn.bce_with_logits(IMAGE, IMAGE)), "bce_with_logits")
    golden(print_graph(nn.logsumexp(X, keepdims=True)), "logsumexp")


def test_norms(golden: Callable[..., None]) -> None:
    golden(print_graph(nn.batch_norm(IMAGE, V, W)), "batch_norm")
    golden(print_graph(nn.batch_norm_training(IMAGE, V, W)), "batch_norm_training")
    golden(print_graph(nn.group_norm(IMAGE, 2)), "group_norm")
    golden(print_graph(nn.add_rms_norm(X, X, WEIGHT)), "add_rms_norm")
    golden(print_graph(nn.std(X, 0, keepdims=True)), "std")


def test_indexing(golden: Callable[..., None]) -> None:
    golden(print_graph(nn.embedding(TARGET, X)), "embedding")
    golden(print_graph(nn.argmax(IMAGE, 1, keepdims=True)), "argmax")
    golden(print_graph(nn.cumsum(X, reverse=True)), "cumsum")
    golden(print_graph(nn.rope(X, *nn.rope_tables(N, 64), interleaved=True)), "rope")


def test_steps(golden: Callable[..., None]) -> None:
    step, lr = te.placeholder((), "int32", name="step"), te.placeholder((), name="lr")
    golden(print_graph(nn.foreach_adamw([V, X], [W, X], [V, X], [W, X], step, lr=lr)[0]), "adamw")
    new, buffer = nn.sgd(V, W, V, momentum=0.9, nesterov=True)
    assert buffer is not None
    golden(print_graph([new, buffer]), "sgd")
