"""Solutions of tutorial 13: a derivative scheduled by hand, a softmax in one pass.

python tutorials/solutions/13_a_pytorch_function_by_hand.py     # needs PyTorch
"""

# %% Setup
from __future__ import annotations

import importlib
from typing import Any

import tedsl as te

torch: Any = importlib.import_module("torch")
tt: Any = importlib.import_module("tedsl.torch")
torch.manual_seed(0)


def gated_norm(x: Any, gate: Any, weight: Any) -> Any:
    """silu(gate) * (x / rms(x)) * weight."""
    h = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight
    return torch.nn.functional.silu(gate) * h


# %% 1. The derivative by hand
# Results, sums over rows and what lies between share no loop with the derivative by the weight:
# that one folds over rows, the others over columns.  So rows are parallel in each of them, and the
# last has its columns in parallel.
given = [torch.randn(shape, requires_grad=True) for shape in ((64, 96), (64, 96), (96,))]
program = tt.trace(gated_norm, *given)
s = te.create_schedule(program.backward)
inputs = [each.op for each in program.backward.inputs]
results = [each.op for each in program.backward.outputs]
for stage in s.stages:
    folds = bool(getattr(stage.op, "reduce_axis", ()))
    if not folds and stage.op not in inputs and stage.op not in results:
        stage.compute_inline()
    elif stage.op not in inputs:
        stage.parallel(stage.op.axis[0])
print(s)
call = program.build(target="cpu", backward=s)
ours, theirs = (torch.autograd.grad(f(*given).sum(), given) for f in (call, gated_norm))
torch.testing.assert_close(ours, theirs)
print("the derivative agrees")

# %% 2. A softmax in one pass
# The sum of exponentials depends on the largest element.  `online` repairs what was summed whenever
# a larger one comes.
(x, *_) = given
program = tt.trace(lambda x: torch.softmax(x, -1), x)
s = te.create_schedule(program)
_, summed = (stage for stage in s.stages if getattr(stage.op, "reduce_axis", ()))
summed.online(summed.op.reduce_axis[0])
print(s)
torch.testing.assert_close(program.build(s, target="cpu")(x), torch.softmax(x, -1))
print("the softmax agrees")
