"""Lowered modules on disk: what the lowering made of a plan, found again by the plan's digest.

A plan is immutable data and the lowering a function of it and of the target, so a module is kept
under a digest of both and of the compiler.  What is kept is data: it is read by an unpickler that
knows the node classes of `ir` and `expr` and nothing else.  The variables of a module that is read
are those of the plan it is asked for.  Imports `ir` and the other files of `runtime`.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

from tedsl import dtypes
from tedsl.errors import InternalError
from tedsl.expr import nodes as expr_nodes
from tedsl.expr.nodes import Var
from tedsl.ir import nodes as ir_nodes
from tedsl.ir.nodes import Module
from tedsl.runtime.cache.disk import DiskCache
from tedsl.runtime.cache.fingerprint import code_version, digest_of, fingerprint, tool_versions
from tedsl.target import Target

_NO_MODULE = (ValueError, LookupError, TypeError, AttributeError, ImportError, RecursionError)
"""What comes of bytes that are a pickle of something else."""
_ROOMS = {module.__name__: module for module in (dtypes, expr_nodes, ir_nodes)}


@dataclass(frozen=True, slots=True)
class PlanKey:
    """Under what a plan's module is kept, and the plan's variables in the order of its digest."""

    digest: str
    variables: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class Lowered:
    """A module and its own digest, under which machine code is kept."""

    module: Module
    digest: str


def plan_key(plan: object, target: Target) -> PlanKey | None:
    """The key of a plan; None where it refers to functions from outside, whose meaning no digest
    covers."""
    tools = tool_versions("numpy")
    found = digest_of(plan, lowered_for=str(target), code=code_version(), tools=tools)
    if found.opaque:
        return None
    variables = tuple(node for node in found.nodes if isinstance(node, Var))
    return PlanKey(found.digest, variables)


def find(disk: DiskCache, key: PlanKey) -> Lowered | None:
    """What is kept under the key; None where that is no module."""
    parts = disk.get(key.digest, "module", "digest")
    if parts is None:
        return None
    try:
        module: object = _Reader(io.BytesIO(parts["module"]), key.variables).load()
        digest = parts["digest"].decode()
    except (pickle.UnpicklingError, InternalError, EOFError, *_NO_MODULE):
        return None
    return Lowered(module, digest) if isinstance(module, Module) else None


def keep(disk: DiskCache, key: PlanKey, module: Module) -> Lowered:
    """Keep a module under the key."""
    data = io.BytesIO()
    _Writer(data, key.variables).dump(module)
    lowered = Lowered(module, fingerprint(module))
    disk.put(key.digest, {"module": data.getvalue(), "digest": lowered.digest.encode()})
    return lowered


class _Writer(pickle.Pickler):
    """Writes a module, its plan's variables by their numbers."""

    def __init__(self, file: io.BytesIO, variables: Sequence[Var]) -> None:
        super().__init__(file, protocol=5)
        self._numbers = {id(var): place for place, var in enumerate(variables)}

    def persistent_id(self, obj: object) -> int | None:
        """The number of a variable of the plan; what else there is, is written out."""
        return self._numbers.get(id(obj)) if type(obj) is Var else None


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` wrote, and refuses all but nodes."""

    def __init__(self, file: io.BytesIO, variables: Sequence[Var]) -> None:
        super().__init__(file)
        self._variables = variables

    def persistent_load(self, pid: int) -> Var:
        """The variable with this number."""
        return self._variables[pid]

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """A class of nodes, or an enumeration beside them.

        Raises:
            InternalError: anything else.
        """
        found = getattr(_ROOMS.get(module_name), global_name, None)
        if isinstance(found, type) and (is_dataclass(found) or issubclass(found, Enum)):
            return found
        raise InternalError(f"{module_name}.{global_name} is no node of a lowered module")
