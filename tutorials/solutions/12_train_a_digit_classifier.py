"""Solutions of tutorial 12: mean pooling, momentum with a falling rate, updates in one kernel.

python tutorials/solutions/12_train_a_digit_classifier.py     # needs scikit-learn
"""

# %% Setup: the digits, and one convolution with a linear layer
from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tedsl as te

digits: Any = importlib.import_module("sklearn.datasets").load_digits()
random = np.random.default_rng(0)
order = random.permutation(len(digits.target))
images = (digits.images[order, :, :, None] / 16.0).astype(np.float32)
labels = digits.target[order].astype(np.int32)
BATCH, TEST, WIDE, F32 = 64, 360, 16, "float32"
SHAPES = {"w1": (3, 3, 1, WIDE), "b1": (WIDE,), "w2": (4, 4, WIDE, 10), "b2": (10,)}
Pooling = Callable[..., te.Tensor]


def parameters(prefix: str = "") -> list[te.Tensor]:
    """A placeholder for each parameter."""
    return [te.placeholder(shape, F32, name=prefix + name) for name, shape in SHAPES.items()]


def network(count: int, weights: list[te.Tensor], pooling: Pooling) -> te.Tensor:
    """Logits of `count` images."""
    w1, b1, w2, b2 = weights
    x = te.placeholder((count, 8, 8, 1), F32, name="x")
    h = te.nn.relu(te.nn.conv2d(x, w1, b1, padding=1, name="conv"), name="h")
    pooled = pooling(h, 2, name="pool")
    i, j, c = (te.reduce_axis((0, n)) for n in (4, 4, WIDE))
    return te.compute(
        (count, 10),
        lambda n, d: te.sum(pooled[n, i, j, c] * w2[i, j, c, d], axis=[i, j, c]) + b2[d],
        name="logits",
    )


def step_with(pooling: Pooling) -> list[te.Tensor]:
    """Loss, new parameters and new buffers of a step of SGD; the rate is an input."""
    weights, buffers = parameters(), parameters("m_")
    y = te.placeholder((BATCH,), "int32", name="y")
    loss = te.nn.cross_entropy(network(BATCH, weights, pooling), y, name="loss")
    rate = te.placeholder((), F32, name="rate")
    gradients = te.gradient(loss, weights)
    new, kept = te.nn.foreach_sgd(weights, gradients, buffers, lr=rate, momentum=0.9, name="sgd")
    return [loss, *new, *kept]


# %% 1. The mean instead of the largest pixel
# Where the largest pixel was is not needed any more: `pool.arg`, the reduction that finds it,
# is gone from the loops of the kernel that finds the largest.  The derivative of a mean hands a
# quarter of it to each pixel.
largest = te.build(step_with(te.nn.max_pool2d), "cpu")
mean = te.build(step_with(te.nn.avg_pool2d), "cpu")
stages = {stage.name for stage in largest.schedule.stages}
without = {stage.name for stage in mean.schedule.stages}
assert "pool.arg" in stages
assert "pool.arg" not in without
count = {"largest": len(largest.explain().kernels), "mean": len(mean.explain().kernels)}
print(f"exercise 1: kernels of a step: {count}; gone: {sorted(stages - without)}")
assert count["mean"] <= count["largest"]


# %% 2. Momentum, and a rate that falls along a half cosine
# The rate is a tensor without dimensions: an input like any other, so one kernel serves all steps.
def train(step: te.Kernel, predict: te.Kernel, epochs: int = 12, rate: float = 0.1) -> float:
    """The accuracy on the test digits."""
    state: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        deviation = math.sqrt(2 / math.prod(shape[:-1])) if len(shape) > 1 else 0.0
        state[name] = (random.standard_normal(shape) * deviation).astype(np.float32)
        state[f"m_{name}"] = np.zeros(shape, np.float32)
    names = [each.name for each in step.signature.inputs]
    kept = [*SHAPES, *(f"m_{name}" for name in SHAPES)]
    steps = (len(images) - TEST) // BATCH * epochs
    for number in range(steps):
        chosen = random.integers(0, len(images) - TEST, BATCH)
        now = rate * 0.5 * (1 + math.cos(math.pi * number / steps))
        state |= {"x": images[chosen], "y": labels[chosen], "rate": np.array(now, np.float32)}
        _, *new = step(*(state[name] for name in names))
        state |= dict(zip(kept, new, strict=True))
    state["x"] = images[-TEST:]
    logits = predict(*(state[each.name] for each in predict.signature.inputs))
    return float((logits.argmax(1) == labels[-TEST:]).mean())


predict = te.build(network(TEST, parameters(), te.nn.avg_pool2d), "cpu")
accuracy = train(mean, predict)
print(f"exercise 2: test accuracy {accuracy:.1%}")
assert accuracy >= 0.95


# %% 3. Updates in one kernel
# `compute_with` without an axis makes one kernel whose programs are those of the one stage and then
# those of the other: two starts of a kernel become one.  The gradients stay with their updates.
def updates(together: bool) -> te.Schedule:
    """Every stage at root, the two updates of the biases in one kernel or in two."""
    s = te.create_schedule(step_with(te.nn.avg_pool2d))
    for stage in s.stages:
        if stage.op.axis:
            stage.vectorize(stage.op.axis[-1])
    s["d_loss_d_b1"].compute_root()
    if together:
        s["sgd.3"].compute_with(s["sgd.1"])
    return s


apart, joined = (te.build(updates(together), "cpu") for together in (False, True))
kernels = [len(kernel.explain().kernels) for kernel in (apart, joined)]
print(f"exercise 3: {kernels[0]} kernels, {kernels[1]} with the biases together")
assert kernels[1] == kernels[0] - 1
given = {each.name: random.standard_normal([int(str(n)) for n in each.shape]).astype(np.float32)
         for each in apart.signature.inputs if each.name != "y"}  # fmt: skip
given["y"] = labels[:BATCH]
inputs = [given[each.name] for each in apart.signature.inputs]
for one, other in zip(apart(*inputs), joined(*inputs), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
