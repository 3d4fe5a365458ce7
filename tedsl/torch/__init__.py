"""PyTorch's front door: functions and models of PyTorch as tensor expressions.

`trace` takes a function that you schedule yourself, `op` makes an operator of PyTorch's of it;
`torch.compile(model, backend="tedsl")` takes a model, and `explain` says what became of it.
Loading this loads PyTorch; `import tedsl` does not load this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tedsl.slips import in_module
from tedsl.tensor.signatures import explained
from tedsl.torch.backend.entry import explain
from tedsl.torch.backend.report import Report
from tedsl.torch.custom import op
from tedsl.torch.program import BuiltProgram, Program
from tedsl.torch.refusals import CompilerFault, NotTaken
from tedsl.torch.trace import trace

trace, op = explained(trace, NotTaken), explained(op, NotTaken)

__all__ = [
    "BuiltProgram",
    "CompilerFault",
    "NotTaken",
    "Program",
    "Report",
    "explain",
    "op",
    "trace",
]

if not TYPE_CHECKING:  # a type checker knows the names there are
    __getattr__ = in_module("tedsl.torch", __all__)
