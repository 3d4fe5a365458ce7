"""Tutorial 8: horizontal fusion, and an optimiser's step over many tensors.

    python tutorials/08_horizontal_fusion.py                   # CPU, under a minute
    python tutorials/08_horizontal_fusion.py --target cuda     # an NVIDIA GPU and PyTorch

So far one stage read what another wrote.  Stages that know nothing of each other can be fused too,
side by side, and for two reasons.  They read the same input: together they read it once.  Or they
are small: each alone leaves most of the machine idle, and starting it costs as much as running it.
`compute_with` is the primitive for both: with an axis the two share loops, without one they share
only the launch.  An optimiser wants both: three results for each of many tensors.
"""

# %% Setup
from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from lesson import Lesson, Panel, bars, installed, title

import tedsl as te

lesson = Lesson.begin(__doc__)
torch: Any = importlib.import_module("torch") if lesson.measured and installed("torch") else None
F32 = "float32"
TILE = 1024 if lesson.gpu else 4096


def whole(stage: te.Stage) -> te.Axis:
    """All elements as one loop."""
    first, *others = stage.op.axis
    return stage.fuse(first, *others) if others else first


def flat(stage: te.Stage) -> te.Axis:
    """Pieces of TILE elements, lanes within; programs of a GPU.  Returns the loop over pieces."""
    piece, lanes = stage.split(whole(stage), factor=TILE)
    stage.vectorize(lanes)
    if lesson.gpu:
        stage.bind(piece, "blockIdx.x")
    return piece


# %% 1. Two results of one input: what is above zero, what is below
# Apart, each reads x and writes a result: 4 arrays.  Together 3.
N = lesson.size(3072, 8192, 128)


def parts() -> list[te.Tensor]:
    """max(x, 0) and min(x, 0)."""
    x = te.placeholder((N, N), F32, name="x")
    above = te.compute((N, N), lambda i, j: te.max(x[i, j], 0.0), name="above")
    below = te.compute((N, N), lambda i, j: te.min(x[i, j], 0.0), name="below")
    return [above, below]


def apart(outputs: Sequence[te.Tensor]) -> te.Schedule:
    """A kernel for each."""
    s = te.create_schedule(outputs)
    for output in outputs:
        piece = flat(s[output])
        if not lesson.gpu:
            s[output].parallel(piece)
    return s


def together(outputs: Sequence[te.Tensor]) -> te.Schedule:
    """One loop over the pieces; what is common to both bodies is loaded once."""
    s = te.create_schedule(outputs)
    leader = s[outputs[0]]
    piece = flat(leader)
    for output in outputs[1:]:
        _, lanes = s[output].split(whole(s[output]), factor=TILE)  # as many pieces as the leader
        s[output].vectorize(lanes)
        s[output].compute_with(leader, piece)
    if not lesson.gpu:
        leader.parallel(piece)
    return s


title("1. two results of one input")
both = parts()
print(together(both))
kernels = {
    "unfused": lesson.build(apart(both)),
    "by hand": lesson.build(together(both)),
    "default rules": lesson.build(both),
    **lesson.search(both),
}
pair = lesson.compare(
    f"above and below zero, {N} x {N} float32",
    kernels,
    [lesson.normal(N, N)],
    lambda x: (np.maximum(x, 0), np.minimum(x, 0)),
    lambda x: (x.clamp(min=0), x.clamp(max=0)),
)
pair.print()
pair.draw("08_two_results")
if pair:
    counted = kernels["unfused"].explain().nbytes / kernels["by hand"].explain().nbytes
    print(f"The count says {counted:.2f}x; the clock says {pair.speedup('by hand'):.2f}x.")

# %% 2. Two sums over one row: the loops of reductions can be shared as well
# Mean and mean of squares: what a norm needs.  The shared loop is the one over k; each sum starts
# before it and is finished after it.
M, K = lesson.size(3072, 16384, 64), lesson.size(4096, 4096, 128)


def moments() -> list[te.Tensor]:
    """sum_k x[i, k] and sum_k x[i, k]^2."""
    x = te.placeholder((M, K), F32, name="x")
    k, r = te.reduce_axis((0, K), name="k"), te.reduce_axis((0, K), name="k")
    first = te.compute((M,), lambda i: te.sum(x[i, k], axis=k), name="first")
    second = te.compute((M,), lambda i: te.sum(x[i, r] * x[i, r], axis=r), name="second")
    return [first, second]


def sums(outputs: Sequence[te.Tensor], *, shared: bool) -> te.Schedule:
    """Each by itself, or the second in the loops of the first."""
    s = te.create_schedule(outputs)
    for output in outputs:
        stage = s[output]
        _, lanes = stage.split(stage.op.reduce_axis[0], factor=1024 if lesson.gpu else 64)
        stage.vectorize(lanes)
        if shared and output is outputs[1]:
            leader = s[outputs[0]]
            _, steps, _ = leader.leaf_iter_vars
            stage.compute_with(leader, steps)
        elif lesson.gpu:
            stage.bind(stage.op.axis[0], "blockIdx.x")
        else:
            stage.parallel(stage.op.axis[0])
    return s


title("2. two sums over one row")
two = moments()
print(sums(two, shared=True))
kernels = {
    "unfused": lesson.build(sums(two, shared=False)),
    "by hand": lesson.build(sums(two, shared=True)),
    "default rules": lesson.build(two),
}
read = lesson.compare(
    f"two sums over rows, {M} x {K} float32",
    kernels,
    [lesson.normal(M, K)],
    lambda x: (x.sum(axis=1), np.square(x).sum(axis=1)),
    lambda x: (x.sum(1), x.square().sum(1)),
)
read.print()
read.draw("08_two_sums")
if read:
    print(f"Reading x once instead of twice: {read.speedup('by hand'):.2f}x.")
    if read.rows["default rules"].kernels == 1:
        print("The rules see by themselves that the two fold the same rows of one input.")

# %% 3. One step of Adam on many tensors
# For each tensor: new first moment, new second moment, new parameter.  Written as three results
# that share the inputs, each alone reads what it needs: m, g -> m'; v, g -> v'; p, g, m, v -> p'.
# That is 3 + 3 + 5 = 11 arrays for each tensor; sharing the loop it is 4 read and 3 written: 7.
# And there are COUNT tensors of all sizes: 3 * COUNT launches, or COUNT, or one.
COUNT = lesson.size(16, 24, 3)
SIZES = [1000 + lesson.size(9001, 2503, 37) * place for place in range(COUNT)]
RATE, BETA1, BETA2, EPS, STEP = 1e-3, 0.9, 0.999, 1e-8, 10


def adam_of(t: int, n: int, *, one_stage: bool) -> list[te.Tensor]:
    """New p, new m and new v of tensor number t, of n elements: three stages, or one.

    `te.compute` of a function that returns a tuple is one stage with several results, which share
    its loops from the beginning.
    """
    p, m, g, v = (te.placeholder((n,), F32, name=f"{name}{t}") for name in "pmgv")

    def first(i: te.Axis) -> te.Expr:
        return m[i] * BETA1 + g[i] * (1 - BETA1)

    def second(i: te.Axis) -> te.Expr:
        return v[i] * BETA2 + g[i] * g[i] * (1 - BETA2)

    def moved(i: te.Axis) -> te.Expr:
        root = te.sqrt(second(i) * (1 / (1 - BETA2**STEP))) + EPS
        return p[i] - first(i) * (RATE / (1 - BETA1**STEP)) / root

    if one_stage:
        return list(te.compute((n,), lambda i: (moved(i), first(i), second(i)), name=f"step{t}"))
    return [
        te.compute((n,), moved, name=f"new_p{t}"),
        te.compute((n,), first, name=f"new_m{t}"),
        te.compute((n,), second, name=f"new_v{t}"),
    ]


def adam(*, one_stage: bool = False) -> list[list[te.Tensor]]:
    """For each tensor [new p, new m, new v]."""
    return [adam_of(t, n, one_stage=one_stage) for t, n in enumerate(SIZES)]


def adam_numpy(*arrays: Any) -> list[Any]:
    """The same in NumPy, tensor by tensor."""
    results: list[Any] = []
    for at in range(0, len(arrays), 4):
        p, m, g, v = arrays[at : at + 4]
        m2 = m * np.float32(BETA1) + g * np.float32(1 - BETA1)
        v2 = v * np.float32(BETA2) + g * g * np.float32(1 - BETA2)
        root = np.sqrt(v2 * np.float32(1 / (1 - BETA2**STEP))) + np.float32(EPS)
        results += [p - m2 * np.float32(RATE / (1 - BETA1**STEP)) / root, m2, v2]
    return results


def adam_torch(*arrays: Any) -> list[Any]:
    """The same in PyTorch, with the operators on lists that its own optimisers use."""
    p, m, g, v = (list(arrays[at::4]) for at in range(4))
    m2 = torch._foreach_mul(m, BETA1)
    torch._foreach_add_(m2, g, alpha=1 - BETA1)
    v2 = torch._foreach_mul(v, BETA2)
    torch._foreach_addcmul_(v2, g, g, 1 - BETA2)
    root = torch._foreach_mul(v2, 1 / (1 - BETA2**STEP))
    torch._foreach_sqrt_(root)
    torch._foreach_add_(root, EPS)
    p2 = torch._foreach_addcdiv(p, m2, root, -RATE / (1 - BETA1**STEP))
    return [result for each in zip(p2, m2, v2, strict=True) for result in each]


def results_of(every: list[list[te.Tensor]]) -> list[te.Tensor]:
    """All results in order."""
    return [result for three in every for result in three]


def step_apart(every: list[list[te.Tensor]]) -> te.Schedule:
    """A launch for each result of each tensor."""
    s = te.create_schedule(results_of(every))
    for result in results_of(every):
        piece = flat(s[result])
        if not lesson.gpu:
            s[result].parallel(piece)
    return s


def step_by_tensor(every: list[list[te.Tensor]]) -> te.Schedule:
    """The three results of a tensor in one loop: COUNT kernels."""
    s = te.create_schedule(results_of(every))
    for three in every:
        leader = s[three[0]]
        piece = flat(leader)
        if not lesson.gpu:
            leader.parallel(piece)
        for other in three[1:]:
            _, lanes = s[other].split(s[other].op.axis[0], factor=TILE)
            s[other].vectorize(lanes)
            s[other].compute_with(leader, leader.leaf_iter_vars[0])
    return s


def one_launch(every: list[list[te.Tensor]]) -> te.Schedule:
    """`compute_with` without an axis: the grid has the pieces of all tensors, one after the other.

    A stage joins others in one way, by its loops or by its launch.  So the three results are one
    stage here, from the definition on.
    """
    s = te.create_schedule(results_of(every))
    for three in every:
        piece = flat(s[three[0]])
        if not lesson.gpu:
            s[three[0]].parallel(piece)
        if three is not every[0]:
            s[three[0]].compute_with(s[every[0][0]])
    return s


title(f"3. a step of Adam on {COUNT} tensors")
tensors = adam()
print(step_by_tensor(tensors[:1]))
print(one_launch(adam(one_stage=True)[:2]))
kernels = {
    "unfused": lesson.build(step_apart(tensors)),
    "a loop for each tensor": lesson.build(step_by_tensor(tensors)),
    "one launch": lesson.build(one_launch(adam(one_stage=True))),
    "default rules": lesson.build(results_of(adam(one_stage=True))),
}
arrays: list[Any] = []  # in the order in which the definition reads them: p, m, g, v
for n in SIZES:
    arrays += [lesson.normal(n) for _ in range(3)] + [np.abs(lesson.normal(n))]
steps = lesson.compare(
    f"Adam, {COUNT} tensors, {sum(SIZES)} parameters", kernels, arrays, adam_numpy, adam_torch
)
steps.print()
if steps:
    loops = steps.speedup("a loop for each tensor")
    launch = steps.speedup("one launch", "a loop for each tensor")
    print(
        f"Sharing the loops gains {loops:.2f}x (the count says {11 / 7:.2f}x); sharing the launch"
    )
    print(f"as well, another {launch:.2f}x.")
    if not lesson.gpu:
        print(
            "A launch on the CPU is a call of a function and a word to the threads: little beside a"
        )
        print(
            "tensor of some thousand elements.  There is nothing to gain, and finding out to which"
        )
        print(
            "tensor a piece belongs costs something.  On a GPU a launch is microseconds, in which"
        )
        print("a kernel could have moved megabytes: there this is where most of the time goes.")
    shown = [(name, row.seconds) for name, row in steps.rows.items() if "(on the" not in name]
    panels = [
        Panel("time of a step", shown),
        Panel(
            "kernels",
            [(row.name, float(row.kernels)) for row in steps.rows.values() if row.kernels],
            lambda count: f"{count:.0f}",
        ),
    ]
    bars(lesson.pictures / "08_adam.png", steps.heading, panels)

# %% Exercises (solutions/08_horizontal_fusion.py)
# 1. Momentum and weight decay: write the step of SGD.  How many arrays does it move, apart and
#    together?
# 2. `compute_with` is refused where one stage reads what the other computes.  Try it, and read the
#    message: which primitive does it send you to?
# 3. The norm of all gradients together (for clipping), then the step: what can run side by side,
#    and what has to wait?
lesson.done()
