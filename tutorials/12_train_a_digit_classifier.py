"""Tutorial 12: training a small convolutional network on handwritten digits.

    python tutorials/12_train_a_digit_classifier.py     # needs scikit-learn, for its digits
    python tutorials/12_train_a_digit_classifier.py --target cuda     # an NVIDIA GPU and PyTorch

The network and its loss are definitions; `te.gradient` gives definitions of the derivatives;
`te.nn.foreach_adam` gives definitions of the new parameters.  Together they are one graph of some
fifty stages, which is scheduled and built like a matrix product is: one training step is one call.
There is no framework around it, and nothing in the compiler knows what a convolution is.
"""

# %% Setup, and 1797 digits of 8 x 8 pixels: four fifths to train with, the rest to test with
from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from lesson import Lesson, installed, several, title, to_torch, wide

import tedsl as te

lesson = Lesson.begin(__doc__)
if not installed("sklearn"):
    sys.exit("this tutorial needs scikit-learn for its digits: pip install scikit-learn")
digits: Any = importlib.import_module("sklearn.datasets").load_digits()
order = lesson.random.permutation(len(digits.target))
images = (digits.images[order, :, :, None] / 16.0).astype(np.float32)
labels = digits.target[order].astype(np.int32)
TEST = 360
F32 = "float32"
BATCH = 8 if lesson.target == "triton-interpret" else 64
EPOCHS, RATE = 15, 3e-3
WIDE, DEEP = 8, 16  # channels of the first and of the second convolution


# %% The network: two convolutions, the largest of each 2 x 2 pixels, one linear layer
# Images are [batch, row, column, channel].  The linear layer is written as the sum that it is.
SHAPES = {
    "w1": (3, 3, 1, WIDE), "b1": (WIDE,), "w2": (3, 3, WIDE, DEEP), "b2": (DEEP,),
    "w3": (4, 4, DEEP, 10), "b3": (10,),
}  # fmt: skip


def network(count: int, weights: Sequence[te.Tensor]) -> te.Tensor:
    """Logits of `count` images: float32[count, 10]."""
    w1, b1, w2, b2, w3, b3 = weights
    x = te.placeholder((count, 8, 8, 1), F32, name="x")
    h1 = te.nn.relu(te.nn.conv2d(x, w1, b1, padding=1, name="c1"), name="h1")
    h2 = te.nn.relu(te.nn.conv2d(h1, w2, b2, padding=1, name="c2"), name="h2")
    pooled = te.nn.max_pool2d(h2, 2, name="pool")
    i, j, c = (te.reduce_axis((0, n), name=name) for n, name in ((4, "i"), (4, "j"), (DEEP, "c")))

    def logit(n: te.Axis, digit: te.Axis) -> te.Expr:
        return te.sum(pooled[n, i, j, c] * w3[i, j, c, digit], axis=[i, j, c]) + b3[digit]

    return te.compute((count, 10), logit, name="logits")


def parameters(prefix: str = "") -> list[te.Tensor]:
    """A placeholder for each parameter, or for what Adam keeps of each."""
    return [te.placeholder(shape, F32, name=prefix + name) for name, shape in SHAPES.items()]


# %% One step of training, as a graph
# Inputs: images, labels, the number of the step, parameters, and Adam's two running means of each.
# Outputs: the loss, and new ones of all the others.
weights, means, squares = parameters(), parameters("m_"), parameters("v_")
loss = te.nn.cross_entropy(
    network(BATCH, weights), te.placeholder((BATCH,), "int32", name="y"), name="loss"
)
gradients = te.gradient(loss, weights)
count = te.placeholder((), "int32", name="t")
updated = te.nn.foreach_adam(weights, gradients, means, squares, count, lr=RATE)
STEP: list[te.Tensor] = [loss, *updated[0], *updated[1], *updated[2]]
KEPT = [*SHAPES, *(f"m_{n}" for n in SHAPES), *(f"v_{n}" for n in SHAPES)]

# The derivative of a convolution by its weights is a sum over all pixels of all images; by its
# input it is a sum over the window again, with a condition where the window leaves the image.
title(
    "what te.gradient returns for w2, and what it makes of the second convolution on the way to w1"
)
graph = te.create_schedule(STEP)
for name in ("d_loss_d_w2", "d_loss_d_c2.padded", "d_loss_d_c1"):
    print(graph[name].op)


# %% The same step in NumPy, by hand: what is checked against
def patches(x: Any) -> Any:
    """[n, 8, 8, c] -> [n, 8, 8, c, 3, 3]: the window of each pixel, zeros outside the image."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))


def quarters(x: Any) -> Any:
    """[n, 8, 8, c] -> [n, 4, 4, c, 4]: the pixels of each 2 x 2 square, last."""
    n, _, _, c = x.shape
    return x.reshape(n, 4, 2, 4, 2, c).transpose(0, 1, 3, 5, 2, 4).reshape(n, 4, 4, c, 4)


def gradients_numpy(x: Any, y: Any, w1: Any, b1: Any, w2: Any, b2: Any, w3: Any, b3: Any) -> Any:
    """Loss and gradients, layer by layer forward and back."""
    n = len(x)
    c1 = np.einsum("nhwcij,ijcf->nhwf", patches(x), w1, optimize=True) + b1
    h1 = np.maximum(c1, 0)
    c2 = np.einsum("nhwcij,ijcf->nhwf", patches(h1), w2, optimize=True) + b2
    squares4 = quarters(np.maximum(c2, 0))
    pooled = squares4.max(-1)
    logits = pooled.reshape(n, -1) @ w3.reshape(-1, 10) + b3
    e = np.exp(logits - logits.max(1, keepdims=True))
    share = e / e.sum(1, keepdims=True)
    value = -np.log(share[np.arange(n), y]).mean()
    share[np.arange(n), y] -= 1
    d_logits = share / np.float32(n)
    d_pool = (d_logits @ w3.reshape(-1, 10).T).reshape(pooled.shape)
    first = squares4.argmax(-1)[..., None] == np.arange(4)  # of equal pixels the first one
    d_squares = (first * d_pool[..., None]).reshape(n, 4, 4, DEEP, 2, 2)
    d_c2 = d_squares.transpose(0, 1, 4, 2, 5, 3).reshape(c2.shape) * (c2 > 0)
    flipped = w2[::-1, ::-1]
    d_h1 = np.einsum("nhwfij,ijcf->nhwc", patches(d_c2), flipped, optimize=True)
    d_c1 = d_h1 * (c1 > 0)
    return (
        value,
        np.einsum("nhwcij,nhwf->ijcf", patches(x), d_c1, optimize=True),
        d_c1.sum((0, 1, 2)),
        np.einsum("nhwcij,nhwf->ijcf", patches(h1), d_c2, optimize=True),
        d_c2.sum((0, 1, 2)),
        np.einsum("nijc,nd->ijcd", pooled, d_logits),
        d_logits.sum(0),
    )


def adam(xp: Any, t: Any, p: Any, g: Any, m: Any, v: Any) -> tuple[Any, Any, Any]:
    """Adam's rule in NumPy or PyTorch."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    t = float(t)
    away = xp.sqrt(v / (1 - 0.999**t)) + 1e-8
    return p - RATE / (1 - 0.9**t) * m / away, m, v


def step_numpy(**given: Any) -> list[Any]:
    """The outputs of STEP."""
    value, *grads = gradients_numpy(given["x"], given["y"], *(given[n] for n in SHAPES))
    return [np.asarray(value), *stepped(np, given, grads)]


def stepped(xp: Any, given: dict[str, Any], grads: Sequence[Any]) -> list[Any]:
    """New parameters, then new means, then new means of squares."""
    moved = [
        adam(xp, given["t"], given[n], g, given[f"m_{n}"], given[f"v_{n}"])
        for n, g in zip(SHAPES, grads, strict=True)
    ]
    return [each[place] for place in range(3) for each in moved]


def step_torch(**given: Any) -> list[Any]:
    """The outputs of STEP from PyTorch's own operators and automatic derivatives."""
    torch: Any = importlib.import_module("torch")
    nn = torch.nn.functional
    w1, b1, w2, b2, w3, b3 = wanted = [given[n].detach().requires_grad_() for n in SHAPES]
    x = given["x"].permute(0, 3, 1, 2)
    h1 = nn.relu(nn.conv2d(x, w1.permute(3, 2, 0, 1), b1, padding=1))
    h2 = nn.relu(nn.conv2d(h1, w2.permute(3, 2, 0, 1), b2, padding=1))
    pooled = nn.max_pool2d(h2, 2).permute(0, 2, 3, 1).flatten(1)
    value = nn.cross_entropy(pooled @ w3.reshape(-1, 10) + b3, given["y"].long())
    return [value.detach(), *stepped(torch, given, torch.autograd.grad(value, wanted))]


# %% Unfused: every stage is a kernel
# The last axis (channels, or classes) in lanes, what is summed outside of it, the rest in parallel.
def alone(s: te.Schedule, name: str) -> te.Axis | None:
    """A loop nest that is parallel and has lanes; returns its parallel loop."""
    stage = s[name]
    axes, summed = stage.op.axis, getattr(stage.op, "reduce_axis", ())
    if not axes:
        return None
    stage.reorder(*axes[:-1], *summed, axes[-1])
    outer, lanes = stage.split(axes[-1], factor=16)
    stage.reorder(*axes[:-1], outer, *summed, lanes)
    stage.vectorize(lanes)
    grid = stage.fuse(*axes[:-1], outer)
    stage.parallel(grid)
    return grid


def unfused() -> te.Schedule:
    """As many kernels as stages."""
    s = te.create_schedule(STEP)
    for stage in s.stages:
        alone(s, stage.name)
    return s


# %% By hand: which stages go together
# What is pointwise is substituted.  Sums over a window or over channels are attached where a tile
# of their result is stored; bias or Adam's rule then follow in registers.  The two passes over the
# squares of the pooling (which pixel is the largest, and where it is) go together in one loop.
POINTWISE = ("h1", "h2", "loss.each", "d_loss_d_loss.red", "d_loss_d_loss.sum", "d_loss_d_loss.max",
             "d_loss_d_h2", "d_loss_d_c1")  # fmt: skip
SUMMED_IN = {"c1": "c1.red", "c2": "c2.red", "logits": "logits.red"} | {
    f"adam.{place}": f"d_loss_d_{name}" for place, name in enumerate(SHAPES)
}


def by_hand() -> te.Schedule:
    """Sums in tiles of four pixels (or taps) by sixteen channels; everything small as it was."""
    s = te.create_schedule(STEP)
    for name in POINTWISE:
        s[name].compute_inline()
    for name, sums in SUMMED_IN.items():
        tiles_of_sums(s[name], s[sums])
    done = {*POINTWISE, *SUMMED_IN, *SUMMED_IN.values()}
    grids = {each.name: alone(s, each.name) for each in s.stages if each.name not in done}
    pooling = grids["pool"]
    assert pooling is not None
    s["pool.arg"].compute_with(s["pool"], pooling)
    return s


def tiles_of_sums(stage: te.Stage, sums: te.Stage) -> None:
    """`sums` where a tile of `stage` is begun, its last two axes in lanes of registers."""
    axes = stage.op.axis
    outer, lanes = stage.split(axes[-1], factor=16)
    stage.vectorize(lanes)
    loops = [outer]
    if len(axes) > 1:
        tile, rows = stage.split(axes[-2], factor=4)
        stage.reorder(*axes[:-2], tile, outer, rows, lanes)
        stage.vectorize(rows)
        loops = [*axes[:-2], tile, outer]
    grid = stage.fuse(*loops)
    sums.compute_at(stage, grid)
    sums.reorder(*sums.op.reduce_axis, *sums.op.axis[-2:])
    for axis in sums.op.axis[-2:]:
        sums.vectorize(axis)
    stage.parallel(grid)


# %% One step, measured
# Parameters as they are drawn at the start; means as they might be after a while, so that Adam's
# rule does something.  Times of small kernels are those of starting them: on a GPU, and where
# threads have to be woken, the number of kernels counts more than their bytes.  There is no search
# here: a candidate is the whole step, which takes seconds to schedule and to check.
def initial() -> dict[str, Any]:
    """Parameters (He's variance, no bias) and Adam's means, zeros."""
    state: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        deviation = float(np.sqrt(2 / np.prod(shape[:-1]))) if len(shape) > 1 else 0.0
        state[name] = lesson.normal(*shape, scale=deviation)
        state[f"m_{name}"] = np.zeros(shape, np.float32)
        state[f"v_{name}"] = np.zeros(shape, np.float32)
    return state


kernels = {
    "unfused": lesson.build(unfused()),
    "by hand": lesson.build(by_hand()),
    "default rules": lesson.build(STEP),
}
names = [each.name for each in kernels["unfused"].signature.inputs]
assert all([i.name for i in kernel.signature.inputs] == names for kernel in kernels.values())
some = initial()
for name in SHAPES:
    some[f"m_{name}"] = lesson.normal(*SHAPES[name], scale=0.01)
    some[f"v_{name}"] = np.square(lesson.normal(*SHAPES[name], scale=0.1)) + np.float32(1e-4)
some |= {"x": images[:BATCH], "y": labels[:BATCH], "t": np.array(7, np.int32)}
found = lesson.compare(
    f"a step of training, {BATCH} digits",
    kernels,
    [some[name] for name in names],
    lambda *arrays: step_numpy(**dict(zip(names, arrays, strict=True))),
    lambda *arrays: step_torch(**dict(zip(names, arrays, strict=True))),
    tolerance=1e-3,  # Adam divides by the root of a small number
)
found.print()
found.draw("12_step")


# %% Training
# A step takes a batch and the state, and returns the loss and the new state, which are arrays of
# the kernel (NumPy's, or PyTorch's on the GPU).  That is all there is to a training loop.
def here(array: Any) -> Any:
    """The array where the kernels want it."""
    return to_torch(array, "cuda") if lesson.target == "cuda" else array


def train(step: te.Kernel, predict: te.Kernel) -> tuple[list[float], list[float], Any, float]:
    """Loss of each step, test accuracy of each epoch, the predicted digits, the seconds taken."""
    state = {key: here(array) for key, array in initial().items()}
    inputs = [each.name for each in predict.signature.inputs]
    seen = {"x": here(images[-TEST:])}
    losses: list[Any] = []
    accuracies: list[float] = []
    predicted: Any = None
    start = time.perf_counter()
    for _ in range(EPOCHS):
        mixed = lesson.random.permutation(len(images) - TEST)
        for first in range(0, len(mixed) - BATCH + 1, BATCH):
            chosen = mixed[first : first + BATCH]
            state["x"], state["y"] = here(images[chosen]), here(labels[chosen])
            state["t"] = here(np.array(len(losses) + 1, np.int32))
            given = [state[key] for key in names]
            value, *new = several(step(*given))
            state |= dict(zip(KEPT, new, strict=True))
            losses.append(value)
        logits = predict(*(seen.get(name, state.get(name)) for name in inputs))
        predicted = wide(logits).argmax(1)
        accuracies.append(float((predicted == labels[-TEST:]).mean()))
    seconds = time.perf_counter() - start
    return [float(wide(value)) for value in losses], accuracies, predicted, seconds


def draw(losses: list[float], accuracies: list[float], predicted: Any) -> None:
    """How loss and accuracy went, and the digits that are still taken for others."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    left.semilogy(losses, color="0.6", linewidth=1, label="loss of each batch")
    epochs = np.arange(1, EPOCHS + 1) * (len(losses) // EPOCHS)
    beside = left.twinx()
    beside.plot(epochs, accuracies, "o-", color="tab:blue", label="test accuracy")
    beside.set_ylim(0.9, 1.0)
    left.set_xlabel("steps")
    left.legend(loc="lower left", fontsize=8, frameon=False)
    beside.legend(loc="lower center", fontsize=8, frameon=False)
    wrong = np.flatnonzero(predicted != labels[-TEST:])[:12]
    sheet = np.full((3 * 11, 4 * 11), np.nan)
    for place, digit in enumerate(wrong):
        y, x = 11 * (place // 4) + 2, 11 * (place % 4)
        sheet[y : y + 8, x : x + 8] = images[-TEST:][digit, :, :, 0]
        right.text(x, y - 0.9, f"{labels[-TEST:][digit]}, not {predicted[digit]}", fontsize=8)
    right.imshow(sheet, cmap="gray_r")
    right.set_title(f"all {len(wrong)} mistakes" if len(wrong) < 12 else "mistakes", fontsize=10)
    right.set_axis_off()
    lesson.pictures.mkdir(parents=True, exist_ok=True)
    figure.savefig(lesson.pictures / "12_training.png", dpi=110)
    print(f"picture: {lesson.pictures / '12_training.png'}")


if found:
    title("training")
    fastest = found.fastest()
    predict = lesson.build(network(TEST, parameters()))
    losses, accuracies, predicted, seconds = train(kernels[fastest], predict)
    print(f"{len(losses)} steps of the kernel {fastest!r} in {seconds:.1f} s, "
          f"{seconds / len(losses) * 1e3:.2f} ms each with everything around it")  # fmt: skip
    print(f"loss {losses[0]:.3f} -> {np.mean(losses[-20:]):.3f}")
    print(f"test accuracy {accuracies[-1]:.1%} of {TEST} digits that it was not trained with")
    assert accuracies[-1] >= 0.97, accuracies
    if installed("matplotlib"):
        draw(losses, accuracies, predicted)

# %% Exercises (solutions/12_train_a_digit_classifier.py)
# 1. Take the mean of each 2 x 2 square instead of the largest pixel (te.nn.avg_pool2d).  Which
#    stages are gone from the graph, and how many kernels do the default rules make of it now?
# 2. Train with stochastic gradient descent and momentum (te.nn.foreach_sgd).  The learning rate is
#    to fall from step to step without building another kernel.
# 3. Weights are updated by kernels of their own in `by_hand`, one for each parameter.  Put the
#    updates of two biases into one kernel (`compute_with`), and compare.
lesson.done()
