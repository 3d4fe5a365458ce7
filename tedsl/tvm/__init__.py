"""TVM's module, for scripts of which only the imports change: `from tedsl import tvm`, then
`from tedsl.tvm import te, topi`.

All that is here are the names of `tedsl`, in which both are the same: `tvm.build` is `te.build`.
What only TVM's scripts use is in the files of this folder, loaded when it is asked for.

- `modules`: TVM's modules by their paths, in imports too
- `nd`, `devices`: arrays that say `numpy()`, and where they are
- `tir`, `testing`, `topi`, `transform`, `error`: what scripts take from these modules
- `topi_utils`, `topi_tags`: what TOPI's schedules look at
- `refused_names`: names that are left out on purpose, with what stands for each
- `counterparts`: names of modules and methods, and what to write instead
- `schedule_names`: methods of schedules and stages elsewhere, with what stands for each
"""

from __future__ import annotations

import importlib
from typing import Any

from tedsl.tvm.modules import NAMES, ROOT, Namespace, install

PLACES = {
    **{name: f"tedsl.tvm.{name}" for name in ("nd", "tir", "testing", "topi", "transform")},
    **{name: f"tedsl.tvm.devices:{name}" for name in ("cpu", "cuda", "gpu", "device", "context")},
    **{f"{name}Op": f"tedsl.tensor.tensor:{name}Op" for name in ("Compute", "Extern", "Scan")},
    "PlaceholderOp": "tedsl.tensor.tensor:PlaceholderOp",
    "error": "tedsl.tvm.error",
    "TVMError": "tedsl.errors:TedslError",
    "convert": "tedsl.runtime.like_module:convert",
    "IRModule": "tedsl.ir.nodes:Module",
    "container": "tedsl.tvm.container",
    "module": "tedsl.tvm.runtime",
    "ndarray": "tedsl.tvm.nd",
    "operation": "tedsl.tensor.tensor",
    "tag": "tedsl.tvm.topi_tags",
    "te": "tedsl",
    "tvm": "tedsl.tvm",
}
"""Names of TVM that `tedsl` answers too: where each is."""

install()


def __getattr__(name: str) -> Any:
    """The name in `tedsl`."""
    if name.startswith("__") and name != "__version__":
        raise AttributeError(f"module 'tedsl.tvm' has no attribute {name!r}")
    if name in NAMES:
        return globals().setdefault(name, Namespace(ROOT + name))
    return getattr(importlib.import_module("tedsl"), name)
