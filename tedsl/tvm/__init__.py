"""TVM's module, for scripts of which only the imports change: `from tedsl import tvm`, then
`from tedsl.tvm import te, topi`.

Most that is here are the names of `tedsl`, in which both are the same: `tvm.lower` is `te.lower`.
What only TVM's scripts use is in the files of this folder, loaded when it is asked for.

- `te`: definitions and schedules that are judged when they are lowered, as TVM's are
- `modules`: TVM's modules by their paths, in imports too
- `driver`: `tvm.build` with TVM's arguments, of several functions too
- `packed`: functions by name, for `call_packed` in externs
- `nd`, `devices`: arrays that say `numpy()`, and where they are
- `tir`, `testing`, `topi`, `transform`, `error`: what scripts take from these modules
- `saved`, `contrib`, `arith`: kernels in files, what scripts take from these modules
- `topi`: its operators
- `refused_names`: names that are left out on purpose, with what stands for each

What `tedsl` itself answers of TVM's names is in `tedsl.counterparts`.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace
from typing import Any

from tedsl.counterparts import PACKAGE
from tedsl.errors import ExprError
from tedsl.slips import also

_ABSENT = (
    *("autotvm", "auto_scheduler", "instrument", "meta_schedule", "micro"),
    *("parser", "relax", "relay", "rpc", "script"),
)
"""Modules that scripts import and need not use."""
_OF_TE = ("comm_reducer", "compute", "create_schedule", "tag_scope")
_OWN = {
    **dict.fromkeys(("expr", "make", "stmt"), "tir"),
    "build": "driver:build",
    **{each: each for each in ("arith", "contrib", "driver", "te")},
    **{each: f"saved:{each}" for each in ("load_json", "load_module", "save_json")},
    **{each: f"te:{each}" for each in _OF_TE},
    "build_config": "transform:build_config",
    "decl_buffer": "tir:decl_buffer",
    **{each: f"packed:{each}" for each in ("call_packed", "get_global_func", "register_func")},
}
"""Names that are not those of `te`, and names of older versions: where each is."""


def __getattr__(name: str) -> Any:
    """A module of TVM's, or the name in `tedsl`."""
    if name.startswith("__") and name != "__version__":
        raise AttributeError(f"module 'tedsl.tvm' has no attribute {name!r}")
    if name in ("_ffi", "container", "ir", "runtime", "target"):
        made = importlib.import_module("tedsl.tvm.modules").Namespace(f"tedsl.tvm.{name}")
        return globals().setdefault(name, made)
    if name in _ABSENT:
        absent = importlib.import_module("tedsl.tvm.modules").Absent(name, PACKAGE[name])
        return globals().setdefault(name, absent)
    if name in _OWN:
        module, _, attribute = _OWN[name].partition(":")
        loaded = importlib.import_module(f"tedsl.tvm.{module}")
        return globals().setdefault(name, getattr(loaded, attribute) if attribute else loaded)
    return getattr(importlib.import_module("tedsl"), name)


def _spec(name: str, path: Any, target: object = None) -> ModuleSpec | None:
    """Where `import tedsl.tvm.te.tensor` looks: a path that no file has means what it means as an
    expression."""
    if not name.startswith("tedsl.tvm."):
        return None
    return PathFinder.find_spec(name, path) or ModuleSpec(name, _LOADER)


def _load(module: ModuleType) -> None:
    """Put what a path means in the place of the module that `import` has made.

    Raises:
        ModuleNotFoundError: it means nothing; an ExprError that says what to write instead.
    """
    path, _, name = module.__name__.rpartition(".")
    holder, modules = sys.modules[path], importlib.import_module("tedsl.tvm.modules")
    try:
        found = getattr(holder, name)
    except ExprError as error:
        if name not in modules.FILES or isinstance(holder, modules.Absent):
            made = also(ExprError, ModuleNotFoundError)
            raise made(error.reason, facts=error.facts, hint=error.hint) from None
        found = modules.File(module.__name__, holder)
    if not isinstance(found, ModuleType) and name in modules.FILES:
        found = modules.File(module.__name__, holder, found)
    sys.modules[module.__name__] = found


def _made(spec: ModuleSpec) -> None:
    """None: `import` makes a module, whose place another takes."""


_LOADER: Any = SimpleNamespace(create_module=_made, exec_module=_load)
_FINDER: Any = SimpleNamespace(find_spec=_spec)
sys.meta_path.insert(0, _FINDER)
