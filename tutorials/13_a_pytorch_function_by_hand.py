"""Tutorial 13: a PyTorch function, scheduled by hand.

    python tutorials/13_a_pytorch_function_by_hand.py     # needs PyTorch; the CPU, under a minute

You have a function of PyTorch, and PyTorch runs it operator by operator: each reads its inputs from
memory and writes its result there.  `tedsl.torch.trace` takes the same function as tensor
expressions, without a line of it written again, and from there on its loops are yours: you decide
what is computed where, call the kernel like the function, and train through it.
"""

# %% Setup
from __future__ import annotations

import importlib
from typing import Any

from lesson import Lesson, title

import tedsl as te

lesson = Lesson.begin(__doc__, ["cpu"])
torch: Any = importlib.import_module("torch")
tt: Any = importlib.import_module("tedsl.torch")
torch.manual_seed(0)
ROWS, WIDTH = lesson.size(2048, 2048, 64), lesson.size(1024, 1024, 128)


# %% 1. The function
# The end of a layer of a language model: a root-mean-square norm, scaled, times a gate.
def gated_norm(x: Any, gate: Any, weight: Any) -> Any:
    """silu(gate) * (x / rms(x)) * weight."""
    h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight
    return torch.nn.functional.silu(gate) * h


x = torch.randn(ROWS, WIDTH, requires_grad=True)
gate = torch.randn(ROWS, WIDTH, requires_grad=True)
weight = torch.randn(WIDTH, requires_grad=True)
with torch.no_grad():
    program = tt.trace(gated_norm, x, gate, weight)
title("the program: inputs are named after the arguments")
print(program)

# %% 2. As many kernels as stages
# A fresh schedule computes each stage in a loop nest of its own, much as PyTorch does.  `mul` is
# the squares, `mean` their sum, `mean_1` and `rsqrt` one number for each row, `mul_3` the result:
# stages have the names that PyTorch gives the nodes of its graph.
title("nothing scheduled")
unfused = te.create_schedule(program)
print(unfused)
for stage in unfused.stages:
    if stage.op.axis and stage.op not in [each.op for each in program.inputs]:
        stage.parallel(stage.op.axis[0])  # as PyTorch does too

# %% 3. One kernel
# What is pointwise goes into what reads it.  The sum is left, and is computed where a row of the
# result begins: a row of x is 4 kB and stays in the first cache until its elements are used again,
# so that x is read from memory once.  Sixteen elements go in lanes, in the sum as in the result.
title("by hand")
s = te.create_schedule(program)
for name in ("mul", "mean_1", "rsqrt"):
    s[name].compute_inline()
row, column = s["mul_3"].op.axis
outer, lanes = s["mul_3"].split(column, factor=16)
s["mul_3"].vectorize(lanes)
s["mean"].compute_at(s["mul_3"], row)
_, terms = s["mean"].split(s["mean"].op.reduce_axis[0], factor=16)
s["mean"].vectorize(terms)
s["mul_3"].parallel(row)
print(s)

# %% 4. Called like the function
# `build` gives what is called as the function is.  Without a schedule the rules write one.
by_hand = program.build(s, target=lesson.target)
apart = program.build(unfused, target=lesson.target)
by_rules = program.build(target=lesson.target)
calls = {
    "PyTorch eager": lambda: gated_norm(x, gate, weight),
    "unfused": lambda: apart(x, gate, weight),
    "by hand": lambda: by_hand(x, gate, weight),
    "default rules": lambda: by_rules(x, gate, weight),
}
with torch.no_grad():
    seconds = lesson.compare_torch(f"gated norm of {ROWS} rows of {WIDTH}", calls)
moved = 4 * (3 * ROWS * WIDTH + WIDTH)
print(f"x, gate and result once are {moved / 1e6:.0f} MB: by hand "
      f"{moved / seconds['by hand'] / 1e9:.1f} GB/s")  # fmt: skip

# %% 5. Its derivative
# What you built has gradients.  They are PyTorch's own derivative of the function, taken as tensor
# expressions in turn: a program whose inputs are those of the function, its result, and the
# derivative by the result.
title("the derivative, a program as well")
print(tt.trace(gated_norm, x, gate, weight).backward)


def step(call: Any) -> list[Any]:
    """Derivatives by all three, through a call."""
    found: list[Any] = torch.autograd.grad(call(x, gate, weight).square().sum(), (x, gate, weight))
    return found


training = {
    "PyTorch eager": lambda: step(gated_norm),
    "by hand, backward by rules": lambda: step(by_hand),
}
lesson.compare_torch("forward and backward", training)

# %% 6. What does not fit is told
title("another shape")
try:
    by_hand(x[:3], gate, weight)
except te.BackendError as error:
    print(error)

# %% Exercises (solutions/13_a_pytorch_function_by_hand.py)
# 1. Schedule the derivative by hand: `program.backward.outputs`, and `program.build(s, backward=)`.
#    Which of its stages cannot share the loop over rows, and why?
# 2. Take a softmax of rows instead of the norm.  It folds each row twice; `online` makes one pass.
lesson.done()
