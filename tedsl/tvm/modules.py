"""TVM's modules that are names of others here: `tvm.target.cuda()`, `tvm.ir.structural_equal`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, MutableSequence
from types import ModuleType
from typing import Any

from tedsl.slips import no_attribute

ROOT = "tedsl.tvm."
_LISTS = {"Array": "builtins:list", "Map": "builtins:dict"}
_SAVED = {name: f"tedsl.tvm.saved:{name}" for name in ("load_json", "save_json")}
_ASSERTED = {"assert_structural_equal": "tedsl.tvm.testing:assert_structural_equal"}
NAMES: dict[str, Mapping[str, str]] = {
    "_ffi": {
        "base": "tedsl.tvm.error",
        "get_global_func": "tedsl.tvm.packed:get_global_func",
        "register_func": "tedsl.tvm.packed:register_func",
    },
    "container": _LISTS,
    "ir": {
        **_LISTS,
        "IRModule": "tedsl.ir.nodes:Module",
        "Range": "tedsl.expr.nodes:Range",
        **_SAVED,
        **_ASSERTED,
    },
    "runtime": {
        "Module": "tedsl.runtime.kernel:Kernel",
        "NDArray": "tedsl.tvm.nd:NDArray",
        "convert": "tedsl.runtime.like_module:convert",
        **_SAVED,
        "load_module": "tedsl.tvm.saved:load_module",
        "enabled": "tedsl.tvm.testing:device_enabled",
        "ndarray": "tedsl.tvm.nd",
    },
    "target": {
        "codegen": "tedsl.tvm.devices:codegen",
        "Target": "tedsl.target:Target",
        "build_config": "tedsl.tvm.transform:build_config",
        "create": "tedsl.target:Target",
        "cuda": "tedsl.tvm.devices:target_of_cuda",
        "generic_func": "tedsl.tvm.devices:generic_func",
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


FILES = frozenset(
    (
        "autodiff",
        "batch_matmul",
        "batch_norm",
        "broadcast",
        "conv1d",
        "conv1d_transpose",
        "conv2d",
        "conv2d_transpose",
        "conv3d",
        "conv3d_transpose",
        "dense",
        "depth_to_space",
        "depthwise_conv2d",
        "dilate",
        "einsum",
        "elemwise",
        "flatten",
        "group_conv2d",
        "group_norm",
        "injective",
        "instance_norm",
        "layer_norm",
        "local_response_norm",
        "mapping",
        "math",
        "nn",
        "pad",
        "pooling",
        "prelu",
        "reduction",
        "rms_norm",
        "scan",
        "softmax",
        "space_to_depth",
        "tensor",
        "transform",
        "upsampling",
        "utils",
        "winograd_util",
    )
)
"""Files of TVM's packages, whose names are also those of the package around them."""


class File(ModuleType):
    """A file of TVM's packages, for imports by its path: it has the names of the package.  Where an
    operator has the name of its file, it is that, too."""

    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __init__(self, name: str, holder: Any, operator: Any = None) -> None:
        super().__init__(name)
        self._holder, self._operator = holder, operator

    def __getattr__(self, name: str) -> Any:
        own = self._operator is not None and name == self.__name__.rpartition(".")[2]
        return self._operator if own else getattr(self._holder, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        """What the operator of this name gives."""
        if self._operator is None:
            raise TypeError(f"{self.__name__} is a file, no operator")
        return self._operator(*args, **options)


class Absent(ModuleType):
    """A module of TVM's that is not here: it can be imported, and each name in it answers with what
    to write instead."""

    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __init__(self, name: str, advice: str) -> None:
        super().__init__(f"{ROOT}{name}")
        self._advice = advice

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        told = {name: self._advice}
        raise no_attribute(self.__name__.removeprefix("tedsl."), name, tuple, told)


class Namespace(ModuleType):
    """A module of TVM's: names of its own, and those of `te`."""

    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> Any:
        own = NAMES[self.__name__.removeprefix(ROOT)]
        return located(own[name]) if name in own else of_te(name)
