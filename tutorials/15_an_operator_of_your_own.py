"""Tutorial 15: an operator of your own, with its backward.

    python tutorials/15_an_operator_of_your_own.py     # needs PyTorch; the CPU, under a minute

A kernel is worth more to a PyTorch program when PyTorch knows it: then it works under autograd,
`torch.compile` with any backend, `torch.export` and `vmap`, as an operator of PyTorch's own does.
`tedsl.torch.op` registers one from a definition; its derivative, its fake implementation and its
rule for batches follow from that.
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
ROWS, WIDTH = lesson.size(2048, 2048, 64), lesson.size(512, 512, 96)


# %% 1. The definition
# Something that PyTorch has no operator for: each row times its neighbours in a window, weighted by
# their distance.  Written with PyTorch it is as many shifted copies as the window is wide.
REACH = 4


def neighbours(x: te.Tensor, weight: te.Tensor) -> te.Tensor:
    """out[i, j] = x[i, j] * sum over d of weight[d] * x[i, j + d - REACH], zeros outside."""
    n, m = x.shape
    d = te.reduce_axis((0, 2 * REACH + 1), name="d")

    def near(i: Any, j: Any) -> Any:
        at = j + d - REACH
        return te.if_then_else(te.all(at >= 0, at < m), x[i, at], 0.0)

    window = te.compute((n, m), lambda i, j: te.sum(weight[d] * near(i, j), axis=d), name="window")
    return te.compute((n, m), lambda i, j: x[i, j] * window[i, j], name="out")


def by_pytorch(x: Any, weight: Any) -> Any:
    """The same, in operators that are there."""
    padded = torch.nn.functional.pad(x, (REACH, REACH))
    return x * sum(weight[d] * padded[:, d : d + x.shape[1]] for d in range(2 * REACH + 1))


operator = tt.op("tutorial::neighbours", neighbours)
x, weight = torch.randn(ROWS, WIDTH, requires_grad=True), torch.randn(9, requires_grad=True)
torch.testing.assert_close(operator(x, weight), by_pytorch(x, weight), rtol=1e-4, atol=1e-4)

# %% 2. What PyTorch asks of an operator
# `opcheck` tries what can go wrong: the schema, the fake implementation against the real one, the
# derivative under dynamic shapes.  `gradcheck` compares the derivative with differences.
title("PyTorch's own checks")
small = torch.randn(3, 12, requires_grad=True), weight
print(torch.library.opcheck(operator, small))
exact = [each.detach().double().requires_grad_() for each in small]
print("gradcheck:", torch.autograd.gradcheck(operator, exact))
print("and again:", torch.autograd.gradgradcheck(operator, exact))


# %% 3. Schedules for both ways
# The rules schedule the operator and its derivative; either can be yours.  A schedule is a function
# here, for it is applied for each shape that the operator is called with.
def forward_schedule(s: te.Schedule) -> None:
    """The window in lanes of registers, rows in parallel."""
    row, column = s["out"].op.axis
    outer, lanes = s["out"].split(column, factor=16)
    s["out"].vectorize(lanes)
    s["window"].compute_at(s["out"], outer)
    (near,) = s["window"].op.reduce_axis
    s["window"].reorder(near, *s["window"].op.axis)
    s["window"].vectorize(s["window"].op.axis[1])
    s["out"].parallel(row)


by_hand = tt.op("tutorial::neighbours_by_hand", neighbours, schedule=forward_schedule)
with torch.no_grad():
    lesson.compare_torch(
        f"forward, {ROWS} rows of {WIDTH}",
        {
            "PyTorch eager": lambda: by_pytorch(x, weight),
            "default rules": lambda: operator(x, weight),
            "by hand": lambda: by_hand(x, weight),
        },
    )


def pulled(call: Any) -> list[Any]:
    """Derivatives by both arguments."""
    found: list[Any] = torch.autograd.grad(call(x, weight).sum(), (x, weight))
    return found


lesson.compare_torch(
    "forward and backward",
    {"PyTorch eager": lambda: pulled(by_pytorch), "by hand": lambda: pulled(by_hand)},
)


# %% 4. Inside larger programs
# Compiled around, exported, batched: in each the operator is one node.
title("in a compiled function, an exported program, and a batch")


def layer(x: Any, weight: Any) -> Any:
    """Something around the operator."""
    return torch.relu(operator(x, weight)).mean(-1)


for backend in ("aot_eager", "tedsl"):
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(x, weight), layer(x, weight), rtol=1e-4, atol=1e-4)
    print(f"torch.compile, backend {backend!r}: agrees")


class Layer(torch.nn.Module):
    """The same as a module, to be exported."""

    def forward(self, x: Any, weight: Any) -> Any:
        """See `layer`."""
        return layer(x, weight)


exported = torch.export.export(Layer(), (x.detach(), weight.detach()))
print(exported.graph)
several = torch.randn(3, *small[0].shape)
batched = torch.vmap(operator, (0, None))(several, weight)
for one, many in zip(several, batched, strict=True):
    torch.testing.assert_close(many, by_pytorch(one, weight), rtol=1e-4, atol=1e-4)
print("vmap: agrees")

# %% Exercises (solutions/15_an_operator_of_your_own.py)
# 1. Give the operator a schedule for its derivative (`backward=`).  Print the schedule in it to see
#    the stages, and put the two uses of the window into one loop.
# 2. Make an operator of `by_pytorch` with `tt.trace`.  Which of the two derivatives does less work?
lesson.done()
