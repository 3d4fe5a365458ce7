"""Solutions of tutorial 15: a schedule for the derivative, and PyTorch's derivative.

python tutorials/solutions/15_an_operator_of_your_own.py     # needs PyTorch
"""

# %% Setup
from __future__ import annotations

import importlib
from typing import Any

import tedsl as te

torch: Any = importlib.import_module("torch")
tt: Any = importlib.import_module("tedsl.torch")
torch.manual_seed(0)
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


def derivatives(call: Any) -> list[Any]:
    """By both arguments."""
    found: list[Any] = torch.autograd.grad(call(*given).sum(), given)
    return found


given = [torch.randn(16, 40, requires_grad=True), torch.randn(9, requires_grad=True)]


# %% 1. The derivative's schedule
# It is called for each shape, with the schedule of the stages that `te.gradient` made.
def backward_schedule(s: te.Schedule) -> None:
    """Rows in parallel wherever a stage has them."""
    print(s)
    for stage in s.stages:
        if stage.op.name.startswith("d_") and stage.op.axis:
            stage.parallel(stage.op.axis[0])
    print(s)


operator = tt.op("solution::neighbours", neighbours, backward=backward_schedule)
torch.testing.assert_close(derivatives(operator), derivatives(by_pytorch), rtol=1e-4, atol=1e-4)
print("the derivative agrees")

# %% 2. PyTorch's derivative
# The traced function has PyTorch's derivative, which has a stage for each of the nine shifts, and
# pads; `te.gradient` inverts the index, and has a fold over the window.
program = tt.trace(by_pytorch, *given)
traced = tt.op("solution::traced", program)
print(program.backward)
torch.testing.assert_close(derivatives(traced), derivatives(by_pytorch), rtol=1e-4, atol=1e-4)
print("PyTorch's derivative agrees")
