"""TVM's modules by their paths: `tvm.target.cuda()`, `from tedsl.tvm.topi.utils import prod`.

A path that no file of this folder has means what it means as an expression, `tvm.topi.utils`; of
one that means nothing the import says what to write instead.  Imports `slips`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, cast

from tedsl.errors import ExprError
from tedsl.slips import also

ROOT = "tedsl.tvm."
_LISTS = {"Array": "builtins:list", "Map": "builtins:dict"}
NAMES: dict[str, Mapping[str, str]] = {
    "container": _LISTS,
    "ir": {**_LISTS, "IRModule": "tedsl.ir.nodes:Module", "Range": "tedsl.expr.nodes:Range"},
    "runtime": {
        "Module": "tedsl.runtime.kernel:Kernel",
        "NDArray": "tedsl.tvm.nd:NDArray",
        "convert": "tedsl.runtime.like_module:convert",
        "enabled": "tedsl.tvm.testing:device_enabled",
        "ndarray": "tedsl.tvm.nd",
    },
    "target": {
        "Target": "tedsl.target:Target",
        "create": "tedsl.target:Target",
        "cuda": "tedsl.tvm.devices:target_of_cuda",
    },
}
"""Where the names of a module are that `te` does not have."""


def of_te(name: str) -> Any:
    """The name in `te`: the `__getattr__` of modules that TVM has and `te` has not."""
    if name.startswith("__"):
        raise AttributeError(f"there is no {name} in a module of TVM's names")
    return getattr(located("tedsl"), name)


def located(place: str) -> Any:
    """What stands at `module:attribute`, or the module."""
    module, _, attribute = place.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


class Namespace(ModuleType):
    """A module of TVM's: names of its own, and those of `te`."""

    __path__: Sequence[str] = ()

    def __getattr__(self, name: str) -> Any:
        own = NAMES[self.__name__.removeprefix(ROOT)]
        return located(own[name]) if name in own else of_te(name)


class _Paths:
    """Finds what follows `tedsl.tvm.` as attributes of attributes."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(ROOT):
            return None
        own = PathFinder.find_spec(fullname, path) if fullname.count(".") == 2 else None
        return own or ModuleSpec(fullname, cast("Any", self))

    def create_module(self, spec: ModuleSpec) -> None:
        """None: `import` makes one, in whose place `exec_module` puts what the path means."""

    def exec_module(self, module: ModuleType) -> None:
        holder, _, name = module.__name__.rpartition(".")
        try:
            sys.modules[module.__name__] = getattr(sys.modules[holder], name)
        except ExprError as error:
            facts = {"facts": error.facts, "hint": error.hint}
            raise also(ExprError, ModuleNotFoundError)(error.reason, **facts) from None


def install() -> None:
    """Let `import` find them."""
    if not any(isinstance(finder, _Paths) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Paths())
