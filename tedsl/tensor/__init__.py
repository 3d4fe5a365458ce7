"""Tensors and their definitions: above scalars (`expr`) and integer reasoning (`index`).

- `tensor`: operations, and the tensors that they produce
- `axis`: `reduce_axis`, `var`, `size_var`
- `compute`: `placeholder` and `compute`
- `reduce`: `sum`, `max`, `comm_reducer`, ...
- `reducer_stages`: reductions inside a body become stages
- `broadcast`: operators between tensors
- `math`: functions of elements and of tensors
- `scan`: `scan`
- `scan_body`: the operations of its steps
- `extern`: `extern`
- `foreign`: functions from outside of the language
- `intrin`: `decl_tensor_intrin`
- `tags`: `tag_scope`
- `signatures`: what arguments of public functions may be
- `verify_op`: what a new definition must satisfy
- `bounds_check`: reads outside a tensor
- `scan_check`: scans that read rows that are not there
- `printer`: definitions and graphs as text

TVM's module `te.tensor` has the classes of `tensor`, and so has this one.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """A class of `tensor`."""
    if name.startswith("_"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("tedsl.tensor.tensor"), name)
