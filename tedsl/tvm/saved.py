"""Kernels and definitions in files and texts: `export_library` and `load_module`, `save_json` and
`load_json`, as TVM's scripts call them.

What is written is what a kernel was made of, pickled: `load_module` builds it again, whose code is
in the cache on disk.  As with any pickle, load only what you trust.  Imports the definitions, and
`te.build` by name.
"""

from __future__ import annotations

import base64
import importlib
import json
import pickle
from os import PathLike
from pathlib import Path
from typing import Any, cast
from weakref import WeakKeyDictionary

from tedsl.errors import BackendError, ExprError
from tedsl.once import tell
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.graph import producers_first
from tedsl.tensor.tensor import Operation, Tensor, noted

_KIND = "what tedsl wrote"
_MADE: WeakKeyDictionary[Any, tuple[Any, ...]] = WeakKeyDictionary()
"""What `tvm.build` made each kernel of."""


def made_of(kernel: Any, obj: Any, args: Any, target: Any, options: dict[str, Any]) -> Any:
    """The kernel, after noting what it is of."""
    args = getattr(obj, "args", None) if args is None else args
    _MADE[kernel] = getattr(obj, "made_of", obj), args, target, options
    return kernel


def save_module(kernel: Any, file_name: str | PathLike[str]) -> None:
    """Write what `load_module` makes a kernel of again.

    Raises:
        BackendError: it was not made by `tvm.build`, or calls functions that cannot be written.
    """
    if kernel not in _MADE:
        raise BackendError(
            "what this kernel was made of is not known",
            subject="export_library",
            hint="build it by tvm.build of tedsl.tvm; kernel.save(path) writes texts of others",
        )
    Path(file_name).write_text(save_json(_MADE[kernel]), encoding="utf-8")


def load_module(path: str | PathLike[str], fmt: str = "") -> Any:
    """The kernel that `save` or `export_library` wrote, built again.

    Args:
        path: the file.
        fmt: its format; there is one.

    Raises:
        BackendError: there is no such file, or another wrote it.
    """
    try:
        obj, args, target, options = load_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ExprError, TypeError, ValueError) as error:
        raise BackendError(
            f"{str(path)!r} has no kernel of tedsl: {error}",
            subject="load_module",
            hint="write it by kernel.export_library(path) here; code that TVM wrote does not run",
        ) from error
    return importlib.import_module("tedsl.tvm.driver").build(obj, args, target, **options)


def save_json(node: Any) -> str:
    """A schedule, tensor, operation or expression as a text that `load_json` reads.

    Raises:
        ExprError: it has parts that cannot be written: a Python function of an extern.
    """
    notes = {op: noted(op) for op in _operations(node) if noted(op)}
    try:
        data = pickle.dumps((node, notes))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ExprError(
            f"it cannot be written: {error}",
            subject="save_json",
            hint="define functions of te.extern in a module, by name",
        ) from error
    return json.dumps({_KIND: base64.b64encode(data).decode()})


def load_json(json_str: str) -> Any:
    """What `save_json` wrote.

    Raises:
        ExprError: another wrote the text.
    """
    read: Any = json.loads(json_str)
    if not isinstance(read, dict) or _KIND not in read:
        raise ExprError(
            "the text was not written by save_json of tedsl",
            subject="load_json",
            hint="write it by tvm.ir.save_json(x) here",
        )
    node, notes = pickle.loads(base64.b64decode(cast("dict[str, str]", read)[_KIND]))
    for op, kept in notes.items():
        tell(noted, op, kept)
    return node


def _operations(node: Any) -> tuple[Operation, ...]:
    """The operations below a schedule, a tensor or an operation; none of others."""
    match node:
        case Tensor():
            return producers_first((node,))
        case Schedule():
            return producers_first(node.outputs)
        case Operation():
            return producers_first(node.outputs)
        case _:
            return ()
