"""Tutorial 1: one computation, several schedules: unfused, by hand, by default rules, by search.

    python tutorials/01_fuse_by_hand_and_by_search.py                   # CPU, under a minute
    python tutorials/01_fuse_by_hand_and_by_search.py --target cuda     # an NVIDIA GPU and PyTorch

Two pieces of GPT-2: the MLP block (768 -> 3072 -> gelu -> 768, residual, layer_norm) and the
softmax over its 50257 logits.  Each is defined once; what changes below is only where its stages
are computed.  Every result is compared with NumPy before it is timed.
"""

# %% Setup: options, arrays, and two ways to read a clock
from __future__ import annotations

import argparse
import importlib
import importlib.util
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lesson import (
    Panel,
    asked_of_gpu,
    bars,
    bytes_of_numpy,
    size_text,
    spread_text,
    times_of,
    told_of_spread,
)
from rich.console import Console
from rich.table import Table

import tedsl as te
from tedsl.runtime.timing import Stats, compare, compare_cuda

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
parser.add_argument(
    "--target",
    choices=("cpu", "cuda", "triton-interpret", "cuda:sm_80", "cuda:sm_90", "cuda:sm_100"),
    default="cpu",
    help="triton-interpret: the GPU schedules in Triton's interpreter, no times; cuda:sm_90 and the"
    " like: compiled, and not run",
)
parser.add_argument("--tokens", type=int, help="rows of both problems (256; 4096 on a GPU)")
parser.add_argument("--trials", type=int, default=32, help="candidates of each search")
parser.add_argument("--seconds", type=float, default=15.0, help="time of each search")
parser.add_argument("--quick", action="store_true", help="few tokens, short searches")
parser.add_argument("--out", type=Path, default=Path("pictures"), help="folder of pictures")
options = parser.parse_args()

GPU = options.target != "cpu"
MEASURED = options.target in ("cpu", "cuda")  # the interpreter computes; its times say nothing
if options.quick or not MEASURED:
    options.trials, options.seconds = min(options.trials, 2), min(options.seconds, 5.0)
DEFAULT_TOKENS = {"cpu": 256, "triton-interpret": 16}.get(options.target, 4096)
TOKENS: int = options.tokens or (min(DEFAULT_TOKENS, 32) if options.quick else DEFAULT_TOKENS)
WIDTH, HIDDEN, VOCABULARY = 768, 3072, 50257
DTYPE = "bfloat16" if options.target.startswith("cuda") else "float32"
console = Console(highlight=False, markup=False, width=96)
begin = time.perf_counter()


def has_torch() -> bool:
    """PyTorch is a peer when it is there; only the GPU needs it."""
    return importlib.util.find_spec("torch") is not None


if options.target == "cuda" and not has_torch():
    parser.error("--target cuda needs PyTorch: python -m pip install torch")
torch: Any = importlib.import_module("torch") if MEASURED and has_torch() else None


def title(text: str) -> None:
    """A heading in the output."""
    print(f"\n--- {text} {'-' * (90 - len(text))}")


title(f"{TOKENS} tokens, {DTYPE}, target {options.target}")


# %% Problem 1: the MLP block, as GPT-2 has it (weights are [in, out])
def mlp_block() -> te.Tensor:
    """norm(x + gelu(x @ w1 + b1) @ w2 + b2): what is computed, and nothing about how."""
    f32 = "float32"
    x = te.placeholder((TOKENS, WIDTH), DTYPE, name="x")
    w1 = te.placeholder((WIDTH, HIDDEN), DTYPE, name="w1")
    b1 = te.placeholder((HIDDEN,), DTYPE, name="b1")
    w2 = te.placeholder((HIDDEN, WIDTH), DTYPE, name="w2")
    b2 = te.placeholder((WIDTH,), DTYPE, name="b2")
    scale = te.placeholder((WIDTH,), DTYPE, name="scale")
    shift = te.placeholder((WIDTH,), DTYPE, name="shift")
    k = te.reduce_axis((0, WIDTH), name="k")
    up = te.compute(
        (TOKENS, HIDDEN),
        lambda i, j: te.sum(x[i, k].astype(f32) * w1[k, j].astype(f32), axis=k),
        name="up",
    )
    biased = te.compute(
        (TOKENS, HIDDEN), lambda i, j: (up[i, j] + b1[j].astype(f32)).astype(DTYPE), name="biased"
    )
    hidden = te.nn.gelu(biased, approximate="tanh", name="hidden")
    h = te.reduce_axis((0, HIDDEN), name="h")
    down = te.compute(
        (TOKENS, WIDTH),
        lambda i, j: te.sum(hidden[i, h].astype(f32) * w2[h, j].astype(f32), axis=h),
        name="down",
    )
    residual = te.compute(
        (TOKENS, WIDTH),
        lambda i, j: (down[i, j] + b2[j].astype(f32) + x[i, j].astype(f32)).astype(DTYPE),
        name="residual",
    )
    return te.nn.layer_norm(residual, scale, shift, name="norm")


def mlp_numpy(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, scale: Any, shift: Any) -> Any:
    """The same in NumPy."""
    z = x @ w1 + b1
    hidden = z * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * (z * z * z))))
    residual = hidden @ w2 + b2 + x
    centred = residual - residual.mean(axis=1, keepdims=True)
    variance = np.square(centred).mean(axis=1, keepdims=True)
    return centred / np.sqrt(variance + 1e-5) * scale + shift


def mlp_torch(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, scale: Any, shift: Any) -> Any:
    """The same in PyTorch, eager: its fused operators, one after the other."""
    nn = torch.nn.functional
    hidden = nn.gelu(torch.addmm(b1, x, w1), approximate="tanh")
    return nn.layer_norm(torch.addmm(b2, hidden, w2) + x, (WIDTH,), scale, shift)


# %% Problem 2: softmax, one row per token, each row longer than a first-level cache
def logit_softmax() -> te.Tensor:
    """exp(logits - max) / sum, with the exponentials a stage of their own."""
    logits = te.placeholder((TOKENS, VOCABULARY), DTYPE, name="logits")
    k = te.reduce_axis((0, VOCABULARY), name="k")
    r = te.reduce_axis((0, VOCABULARY), name="k")
    shape = (TOKENS, VOCABULARY)
    top = te.compute(
        (TOKENS,), lambda i: te.max(logits[i, k].astype("float32"), axis=k), name="top"
    )
    e = te.compute(shape, lambda i, j: te.exp(logits[i, j].astype("float32") - top[i]), name="e")
    total = te.compute((TOKENS,), lambda i: te.sum(e[i, r], axis=r), name="total")
    return te.compute(shape, lambda i, j: (e[i, j] / total[i]).astype(DTYPE), name="softmax")


def softmax_numpy(logits: Any) -> Any:
    """The same in NumPy."""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def softmax_torch(logits: Any) -> Any:
    """The same in PyTorch: one operator."""
    return torch.softmax(logits, 1)


# %% A matrix product, by hand: the part that the unfused and the hand schedule share
# `out` is stored tile by tile; `accumulator` (the reduction) is attached where a tile is begun, so
# its running sums are registers.  Stages are named by strings: s["up"] is the stage called "up".
CPU_TILE = (8, 48)  # 24 vectors of 16 floats, of AVX-512's 32 registers
GPU_TILE = (128, 128, 64)  # rows, columns, and the depth of one step


def product_on_cpu(s: te.Schedule, out: te.Stage, accumulator: te.Stage, weight: str) -> te.Axis:
    """Register tiles over packed panels of the weight.  Returns the loop over panels."""
    rows, columns = CPU_TILE
    i, j = out.op.axis
    row_tile, panel, row, column = out.tile(i, j, rows, columns)
    out.reorder(panel, row_tile)  # all tiles of a panel in turn: the packed panel stays in cache
    out.vectorize(row)  # a tile of two dimensions is a block of vector registers
    out.vectorize(column)
    accumulator.compute_at(out, row_tile)  # one tile of sums at a time: they never leave registers
    ti, tj = accumulator.op.axis
    step, unrolled = accumulator.split(accumulator.op.reduce_axis[0], factor=4)
    accumulator.reorder(step, unrolled, ti, tj)  # the reduction outside: each step updates a tile
    accumulator.unroll(unrolled)  # fewer branches, and loads of a step can move up
    accumulator.vectorize(ti)
    accumulator.vectorize(tj)
    packed = s[s.cache_read(s[weight], "local", [accumulator])]
    packed.compute_at(out, panel)  # a panel's rows copied side by side: one page, no stride
    packed.vectorize(packed.op.axis[1])
    return panel


def product_on_gpu(s: te.Schedule, out: te.Stage, accumulator: te.Stage) -> None:
    """One program per tile of the result, operands streamed through a pipeline."""
    rows, columns, depth = GPU_TILE
    i, j = out.op.axis
    row_tile, column_tile, row, column = out.tile(i, j, rows, columns)
    group, member = out.split(row_tile, factor=8)
    out.reorder(group, column_tile, member)  # 8 programs share a panel of the weight in L2
    grid = out.fuse(group, column_tile, member)
    out.bind(grid, "blockIdx.x")
    out.vectorize(row)  # block axes: the tile that a program holds
    out.vectorize(column)
    accumulator.compute_at(out, grid)  # the sums are registers of the program
    step, lanes = accumulator.split(accumulator.op.reduce_axis[0], factor=depth)
    accumulator.vectorize(lanes)  # multiply-accumulate over block axes: it becomes tl.dot
    accumulator.pipeline(step, num_stages=3)  # loads of two steps ahead fly during the dot
    out.launch(num_warps=8)


# %% Unfused: every stage at root, so each is a kernel and every result goes to memory
# Not crippled: threads over the rows, SIMD lanes (on a GPU, programs and tiles) along them, and the
# matrix products are those of the hand schedule.  The only thing missing is fusion.
def unfused(output: te.Tensor) -> te.Schedule:
    """Each stage by itself, parallel and vectorized."""
    s = te.create_schedule(output)
    for stage in s.stages:
        op = stage.op
        if stage.name in ("up", "down"):
            accumulator = s[s.cache_write(stage, "local")]
            if GPU:
                product_on_gpu(s, stage, accumulator)
            else:
                stage.parallel(product_on_cpu(s, stage, accumulator, WEIGHT_OF[stage.name]))
        elif op.axis:
            inner = op.reduce_axis[0] if op.reduce_axis else op.axis[-1]
            _, lanes = stage.split(inner, factor=1024 if GPU else 128)
            stage.vectorize(lanes)
            stage.parallel(stage.leaf_iter_vars[0])
    return s


WEIGHT_OF = {"up": "w1", "down": "w2"}
MEANS = ("norm.var", "norm.var.red", "norm.mean", "norm.mean.red")  # readers before what they read


# %% The MLP block by hand, on the CPU: three kernels
# What is pointwise is done where a tile of sums is still in registers: bias and gelu behind the
# first product, bias and skip behind the second.  The norm takes a row through all its stages.
def mlp_by_hand_cpu(output: te.Tensor) -> te.Schedule:
    """Two products with epilogues, and the norm row by row."""
    s = te.create_schedule(output)
    s["biased"].compute_inline()  # an addition: cheaper to repeat than to keep
    for out, accumulator, weight in (("hidden", "up", "w1"), ("residual", "down", "w2")):
        panel = product_on_cpu(s, s[out], s[accumulator], weight)
        s[out].parallel(panel)  # each panel is packed once, by the thread that uses it
    row, column = s["norm"].op.axis
    s["norm"].vectorize(column)
    norm_at(s, row)
    s["norm"].parallel(row)
    return s


def norm_at(s: te.Schedule, axis: te.Axis) -> None:
    """The stages of the norm's mean and variance, at a loop of the norm."""
    for name in MEANS:
        for lanes in s[name].op.reduce_axis:
            s[name].vectorize(lanes)
        s[name].compute_at(s["norm"], axis)  # two numbers per row, made just before they are used


# %% The MLP block by hand, on the CPU: one kernel
# A thread takes ROWS tokens through everything.  Their hidden layer, 1.6 MB at most, is about what
# a second-level cache holds, and no intermediate has a place in memory.  These are the fewest bytes
# there can be.  The price: every thread packs all panels of both weights for itself.
ROWS = max(1, min(128, TOKENS // (os.cpu_count() or 1)))


def mlp_in_one_kernel(output: te.Tensor) -> te.Schedule:
    """All stages inside one loop over blocks of tokens."""
    s = te.create_schedule(output)
    norm = s["norm"]
    i, j = norm.op.axis
    block, row = norm.split(i, factor=ROWS)
    norm.vectorize(j)
    norm_at(s, row)
    s["residual"].compute_at(norm, block)
    product_on_cpu(s, s["residual"], s["down"], "w2")
    s["biased"].compute_inline()
    s["hidden"].compute_at(norm, block)  # the hidden layer of ROWS tokens, in cache
    product_on_cpu(s, s["hidden"], s["up"], "w1")
    norm.parallel(block)
    return s


# %% The MLP block by hand, on a GPU: three kernels
# A program cannot hold 3072 columns of hidden layer, so that goes to memory once; bias, gelu and
# the residual are epilogues of the two products, and the norm is one pass over rows in registers.
def mlp_by_hand_gpu(output: te.Tensor) -> te.Schedule:
    """Two products with epilogues, and the norm of whole rows."""
    s = te.create_schedule(output)
    s["biased"].compute_inline()
    product_on_gpu(s, s["hidden"], s["up"])
    product_on_gpu(s, s["residual"], s["down"])
    norm = s["norm"]
    i, j = norm.op.axis
    grid, rows = norm.split(i, factor=4)  # four tokens to a program: enough loads in flight
    norm.bind(grid, "blockIdx.x")
    norm.vectorize(rows)
    norm.vectorize(j)
    norm_at(s, grid)
    readers = ["norm.mean.red", "norm.var.red", "norm"]
    staged = s[s.cache_read(s["residual"], "local", readers)]
    staged.compute_at(norm, grid)  # the rows are loaded once, into registers, for three readers
    norm.launch(num_warps=4)
    return s


# %% Softmax by hand: one kernel, and memory is read once
# The unfused stages read the logits twice and the exponentials twice.  Attached at the row, the
# exponentials of one row are 200 kB in cache (on a GPU: 64 registers of each of 1024 threads).
def softmax_by_hand(output: te.Tensor) -> te.Schedule:
    """All stages of a row together; the exponentials are computed once and kept."""
    s = te.create_schedule(output)
    softmax = s[output]
    i, j = softmax.op.axis
    loops = {"softmax": j, "total": s["total"].op.reduce_axis[0], "e": s["e"].op.axis[1],
             "top": s["top"].op.reduce_axis[0]}  # fmt: skip
    for name, loop in loops.items():
        # A GPU program holds the whole row as one tile; a CPU passes over it in pieces.
        s[name].vectorize(loop if GPU else s[name].split(loop, factor=128)[1])
    for name in ("total", "e", "top"):
        s[name].compute_at(softmax, i)
    if GPU:
        softmax.bind(i, "blockIdx.x")
        staged = s[s.cache_read(s["logits"], "local", ["top", "e"])]
        staged.compute_at(softmax, i)  # one load of the row, for the maximum and the exponentials
        softmax.launch(num_warps=32)
    else:
        softmax.parallel(i)
    return s


# %% Check, then measure: every candidate against NumPy first, then all in turn on one clock
def to_target(array: Any) -> Any:
    """The array where the kernels want it."""
    return torch.from_numpy(array).to("cuda", torch.bfloat16) if DTYPE == "bfloat16" else array


def to_numpy(array: Any) -> Any:
    """A float32 NumPy array, wherever it was."""
    return array if isinstance(array, np.ndarray) else array.detach().float().cpu().numpy()


def check(name: str, result: Any, wanted: Any) -> None:
    """Equal up to rounding, relative to the element and to the size of a typical one."""
    tolerance = 4e-2 if DTYPE == "bfloat16" else 2e-4
    typical = float(np.sqrt(np.mean(np.square(wanted))))
    error = np.abs(to_numpy(result) - wanted) / (np.abs(wanted) + typical)
    assert float(error.max()) <= tolerance, f"{name}: off by {error.max():.2g}"  # NaN fails too


def report(
    problem: str,
    kernels: Mapping[str, te.Kernel],
    arrays: Sequence[Any],
    in_numpy: Callable[..., Any],
    in_torch: Callable[..., Any],
) -> str:
    """Check, measure and tabulate; returns the name of the fastest kernel."""
    if options.target.startswith("cuda:"):
        asked_of_gpu(f"{problem}, {TOKENS} tokens, {DTYPE}", kernels, options.target)
        return "by hand"
    here = [to_target(array) for array in arrays]
    exact = [to_numpy(array) for array in here]
    wanted = in_numpy(*exact)
    calls: dict[str, Callable[[], object]] = {}
    for name, kernel in kernels.items():
        check(name, kernel(*here), wanted)
        calls[name] = lambda kernel=kernel: kernel(*here)
    if not MEASURED:
        print(f"{problem}: {', '.join(kernels)} agree with NumPy")
        return "by hand"
    if torch is not None:
        there = here if GPU else [torch.from_numpy(array) for array in arrays]
        check("PyTorch", in_torch(*there), wanted)
        calls["PyTorch eager"] = lambda: in_torch(*there)
    alone = compare({"NumPy": lambda: in_numpy(*exact)}, repeats=3, warmup=0) if GPU else {}
    if not GPU:
        calls["NumPy"] = lambda: in_numpy(*exact)
    repeats = 3 if options.quick else 50 if GPU else 15
    times = {**(compare_cuda if GPU else compare)(calls, repeats=repeats), **alone}
    table = Table(title=f"{problem}, {TOKENS} tokens, {DTYPE}", title_justify="left")
    for heading in ("schedule", "kernels", "moves", "of least", "time", "spread", "vs unfused"):
        table.add_column(heading, justify="left" if heading == "schedule" else "right")
    base = times["unfused"].median
    least = kernels["unfused"].explain().least_bytes
    for name, stats in times.items():
        count, moved = "", bytes_of_numpy(in_numpy, exact) if name == "NumPy" else 0
        if name in kernels:
            cost = kernels[name].explain()
            count, moved = str(len(cost.kernels)), cost.nbytes
        size = (f"{moved / 1e6:.1f} MB", f"{moved / least:.2f}x") if moved else ("", "")
        where = " (on the CPU, float32)" if GPU and name == "NumPy" else ""
        table.add_row(name + where, count, *size, f"{stats.median * 1e3:.3g} ms",
                      spread_text(stats), f"{base / stats.median:.2f}x")  # fmt: skip
    console.print(table)
    told_of_spread(times.values())
    told(problem, kernels, times)
    return min(kernels, key=lambda name: times[name].median)


def told(problem: str, kernels: Mapping[str, te.Kernel], times: Mapping[str, Stats]) -> None:
    """What the table says about bytes and time, as a sentence and as a picture."""
    costs = {name: kernel.explain() for name, kernel in kernels.items()}
    least = costs["unfused"].least_bytes
    flops = min(cost.flops for cost in costs.values())
    print(f"{flops / 1e9:.3g} Gflop for the {least / 1e6:.1f} MB of inputs and outputs: "
          f"{flops / least:.3g} per byte")  # fmt: skip
    fewest = min(costs, key=lambda name: costs[name].nbytes)
    share = costs[fewest].nbytes / costs["unfused"].nbytes
    time_share = times[fewest].median / times["unfused"].median
    print(f"`{fewest}` moves the fewest bytes, {share:.0%} of those of `unfused`, and takes "
          f"{time_share:.0%} of its time.")  # fmt: skip
    if time_share > 1.1 * share:
        print("Where time falls by less than bytes, something else is waited for: arithmetic, or a")
        print("cache that had kept between two kernels what the fused one no longer writes.")
    moved = [(name, float(cost.nbytes)) for name, cost in costs.items()]
    panels = [
        times_of(times),
        Panel("bytes moved\n(dotted: every input and output once)", moved, size_text, least),
    ]
    bars(options.out / f"01_{problem.split()[0].lower()}.png", problem, panels)


def kernels_of(
    output: te.Tensor, **by_hand: Callable[[te.Tensor], te.Schedule]
) -> dict[str, te.Kernel]:
    """The same tensor, scheduled in every way."""
    kernels = {"unfused": te.build(unfused(output), options.target)}
    for name, schedule in by_hand.items():
        kernels[name.replace("_", " ")] = te.build(schedule(output), options.target)
    kernels["default rules"] = te.build(output, options.target)
    if MEASURED:
        found = te.autotune(
            output,
            options.target,
            trials=options.trials,
            seconds=options.seconds,
            candidate_seconds=30.0 if GPU or options.quick else 15.0,
        )
        searched = found.tuning is None or found.tuning.replayed or found.tuning.tried
        kernels["search" if searched else "search: 0 tried, the default"] = found
    return kernels


# %% The MLP block: what it says, and the loop nest of the hand schedule
block = mlp_block()
mlp_by_hand = mlp_by_hand_gpu if GPU else mlp_by_hand_cpu
more = {} if GPU else {"one_kernel": mlp_in_one_kernel}
title("MLP block: the loop nest by hand")
print(
    "Three kernels: what is pointwise is done where a tile of sums still is in registers, bias and"
)
print(
    "gelu behind the first product, bias and skip behind the second.  Not inlined and not attached"
)
print("is what goes to memory: `hidden` and `residual`.")
print(mlp_by_hand(block))
if not GPU:
    title("MLP block: the loop nest in one kernel")
    print(
        "All of it inside one loop over blocks of tokens: no intermediate goes to memory, and each"
    )
    print("thread packs both weights for itself.")
    print(mlp_in_one_kernel(block))

# %% The MLP block measured
random = np.random.default_rng(0)


def normal(*shape: int, scale: float = 1.0) -> Any:
    """Random float32 numbers; weights get GPT-2's initial scale of 0.02."""
    return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)


weights = [
    normal(WIDTH, HIDDEN, scale=0.02), normal(HIDDEN, scale=0.02),
    normal(HIDDEN, WIDTH, scale=0.02), normal(WIDTH, scale=0.02),
    1 + normal(WIDTH, scale=0.02), normal(WIDTH, scale=0.02),
]  # fmt: skip
title("MLP block: measured")
mlp_kernels = kernels_of(block, by_hand=mlp_by_hand, **more)
mlp_winner = report(
    "MLP block", mlp_kernels, [normal(TOKENS, WIDTH), *weights], mlp_numpy, mlp_torch
)

# %% Softmax over the logits: fewer operations per byte, so bytes weigh more
softmax = logit_softmax()
title("softmax: the loop nest by hand")
print("One kernel: maximum, exponentials and sum of a row are computed where the row is begun:")
print("memory is read once and written once.")
print(softmax_by_hand(softmax))
title("softmax: measured")
softmax_kernels = kernels_of(softmax, by_hand=softmax_by_hand)
logits = normal(TOKENS, VOCABULARY, scale=3.0)
softmax_winner = report("softmax", softmax_kernels, [logits], softmax_numpy, softmax_torch)


# %% What the winner is: its schedule as Python to edit, its loops, its code
def excerpt(kernel: te.Kernel) -> str:
    """The Triton source; on the CPU, the machine code around the first fused multiply-add."""
    if GPU:
        return kernel.source
    lines = kernel.asm.splitlines()
    fused = [n for n, line in enumerate(lines) if "vfmadd" in line or "fmla" in line]
    first = max(fused[0] - 4, 0) if fused else 0
    return "\n".join(lines[first : first + 16])


winner = softmax_kernels[softmax_winner]
title(f"softmax, {softmax_winner}: what each kernel moves")
print(winner.explain())
title(f"softmax, {softmax_winner}: the schedule as Python")
print(winner.schedule.as_python())
title(f"softmax, {softmax_winner}: the loop IR")
print(winner.ir)
title(f"softmax, {softmax_winner}: the code" + ("" if GPU else ", around its exp"))
print(excerpt(winner))
title(f"MLP block, {mlp_winner}: the code" + ("" if GPU else ", inside a matrix product"))
print(excerpt(mlp_kernels[mlp_winner]))
for problem, kernels in (("MLP block", mlp_kernels), ("softmax", softmax_kernels)):
    if "search" in kernels:
        title(f"{problem}: what the search chose")
        print(", ".join(f"{k.name}={k.chosen}" for k in kernels["search"].schedule.knobs))

# %% Exercises (solutions/01_fuse_by_hand_and_by_search.py)
# 1. Inline the exponentials of the softmax instead of attaching them at the row.  What becomes of
#    operations and buffers (`kernel.explain()`)?  Which is faster here, and why?
# 2. Replace layer_norm by te.nn.rms_norm.  Which stages are gone, and what is left of `norm_at`?
# 3. Turn the tile of the matrix product into knobs (`s.knob("rows", (4, 8, 12))`) and let
#    `te.autotune(..., schedule=your_function)` choose.
title(f"done in {time.perf_counter() - begin:.0f} s")
