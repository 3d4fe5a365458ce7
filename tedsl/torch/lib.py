"""PyTorch as this folder uses it: the package and its operators, typed as anything.

First file of `tedsl.torch`, which alone loads PyTorch; its stubs are incomplete, so that the rest
of the folder holds what comes from there as `Any` behind typed functions.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


def load(name: str) -> Any:
    """A module of PyTorch."""
    return importlib.import_module(name)


torch: Any = load("torch")
fx: Any = load("torch.fx")
pytree: Any = load("torch.utils._pytree")
aten: Any = torch.ops.aten
load("torch._inductor.inductor_prims")  # defines some that Dynamo puts into graphs
prims: Any = torch.ops.prims


def changes(node: Any) -> bool:
    """True of a call that writes to an argument."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


_INCLUDED: Any = torch._C._dispatch_tls_local_include_set()
_EXCLUDED: Any = torch._C._dispatch_tls_local_exclude_set()
dispatch: Any = load("torch.utils._python_dispatch")


@contextmanager
def undisturbed() -> Generator[None]:
    """Within, PyTorch dispatches as at the start of a program: derivatives are recorded, and no
    mode of who calls an operator sees what its implementation traces or computes."""
    with (
        dispatch._disable_current_modes(),
        torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED),
        torch.enable_grad(),
    ):
        yield
