"""TVM's `build`: its arguments in its order, of several functions or for several targets too.

`te.build` is what compiles.  Imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tedsl.build import Lowered, lower
from tedsl.build import build as build_one
from tedsl.errors import BackendError, LowerError
from tedsl.slips import suggests
from tedsl.target import Target
from tedsl.tvm.saved import made_of

__all__ = ["Functions", "build", "build_module", "lower", "schedule_to_module"]
__path__: Sequence[str] = ()
build_module = sys.modules[__name__]
schedule_to_module = lower


@suggests(BackendError, {}, "a module of several functions")
class Functions:
    """Kernels by the names that `tvm.lower(..., name=)` gave them."""

    def __init__(self, kernels: Mapping[str, Any]) -> None:
        self._kernels = dict(kernels)

    def __getitem__(self, name: str) -> Any:
        """The kernel of a name.

        Raises:
            BackendError: there is none.
        """
        if name not in self._kernels:
            raise BackendError(
                f"there is no function {name!r}",
                facts=[("functions", ", ".join(self._kernels))],
                hint="give the name to tvm.lower(s, args, name=)",
            )
        return self._kernels[name]

    get_function = __getitem__

    def get_source(self, fmt: str = "") -> str:
        """The texts of all, one after the other."""
        return "\n".join(kernel.get_source(fmt) for kernel in self._kernels.values())


def build(
    inputs: Any,
    args: Any = None,
    target: Any = None,
    target_host: object = None,
    name: str | None = None,
    binds: object = None,
    **options: Any,
) -> Any:
    """`te.build`, as TVM's scripts call it.

    Args:
        inputs: as for `te.build`; or a list of what `tvm.lower` gave, or such by target.
        args: as for `te.build`.
        target: as for `te.build`.
        target_host: what calls a kernel; there is nothing to choose here.
        name: what the kernel calls itself.
        binds: buffers by tensor, which `args` may list in the place of the tensors; nothing else
            is read of them: kernels look at the arrays.
        options: others of `te.build`.

    Returns:
        The kernel; of several functions a module that has them by name.

    Raises:
        LowerError: as `te.build`; or two functions have one name.
        BackendError: as `te.build`.
    """
    args = _tensors(args, binds)
    if isinstance(inputs, Mapping):
        by_target = cast("Mapping[Any, Any]", inputs)
        pairs = [(each, where) for where, each in by_target.items()]
    elif isinstance(inputs, Lowered) or not _are_lowered(inputs):
        made = build_one(inputs, args, target, name=name, **options)
        return made_of(made, inputs, args, target, {"name": name, **options})
    else:
        where = args if target is None and isinstance(args, (str, Target)) else target
        pairs = [(each, where) for each in cast("Sequence[Any]", inputs)]
    names = [each.name for each, _ in pairs]
    twice = next((each for each in names if names.count(each) > 1), None)
    if twice is not None:
        raise LowerError(
            f"two of the functions are called {twice!r}",
            hint="give each a name of its own: tvm.lower(s, args, name=)",
        )
    kernels = {each.name: build(each, target=where, **options) for each, where in pairs}
    return next(iter(kernels.values())) if len(kernels) == 1 else Functions(kernels)


def _tensors(args: Any, binds: object) -> Any:
    """The arguments, with tensors for the buffers that are bound to them."""
    if not isinstance(binds, Mapping) or not isinstance(args, (list, tuple)):
        return args
    pairs = cast("Mapping[Any, Any]", binds).items()
    bound = {id(buffer): tensor for tensor, buffer in pairs}
    return [bound.get(id(each), each) for each in cast("Sequence[Any]", args)]


def _are_lowered(inputs: object) -> bool:
    items = cast("Sequence[object]", inputs) if isinstance(inputs, (list, tuple)) else ()
    return bool(items) and all(isinstance(each, Lowered) for each in items)
