"""Decompositions of 16-bit floats as kernels compute: what lies between the first and the last
operation of one operator is float32, and its results are rounded once.

PyTorch says many operators in terms of others that round each to 16 bits, where the kernel that it
calls itself does not: a sum of losses is infinite in float16 before it is divided by their number.
Imports `importer.registry`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tedsl.torch.importer.registry import Family, entry_of
from tedsl.torch.lib import dispatch, pytree, torch

_NARROW = (torch.float16, torch.bfloat16)
_MOVING = (Family.VIEW, Family.INDEXING, Family.CREATION)
_COMPOSED = ("CompositeExplicitAutograd", "CompositeImplicitAutograd")


def has_kernel(overload: Any) -> bool:
    """True for an operator that PyTorch computes by a kernel of its own, not by other operators."""

    def has(key: str) -> bool:
        return torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key)

    return has("CPU") or not any(map(has, _COMPOSED))


@dataclass(frozen=True, slots=True)
class RoundedOnce:
    """A decomposition with float32 in the place of every 16-bit float that it computes between its
    arguments and its results."""

    decomposition: Callable[..., Any]

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        if not any(map(_narrow, pytree.tree_leaves((arguments, keywords)))):
            return self.decomposition(*arguments, **keywords)
        values: Any = _Unrounded()
        with values:
            found = self.decomposition(*arguments, **keywords)
        return pytree.tree_map(values.rounded, found)


class _Unrounded(dispatch.TorchDispatchMode):
    """While it is on, each 16-bit result has a float32 one beside it, made from what is beside the
    arguments; who computes sees the 16-bit ones, which nothing reads in the end."""

    def __init__(self) -> None:
        dispatch.TorchDispatchMode.__init__(self)
        self._wide: dict[int, tuple[Any, Any]] = {}

    def rounded(self, value: Any) -> Any:
        """A result: the float32 value as the 16-bit one, rounded here alone."""
        _, wide = self._wide.get(id(value), (None, None))
        return value if wide is None else wide.to(value.dtype)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operator of the decomposition."""
        given, form = pytree.tree_flatten((args, kwargs or {}))
        made = func(*args, **(kwargs or {}))
        if func._schema.is_mutable:
            self._wide.clear()
            return made
        if torch.Tag.nondeterministic_seeded in func.tags:
            return made
        entry = entry_of(func)
        family = None if entry is None else entry.family
        known = any(id(each) in self._wide for each in given)
        if family is Family.CAST:
            return self._cast(made, given[0])
        if not known and (family is None or family in _MOVING or not any(map(_narrow, given))):
            return made
        arguments, keywords = pytree.tree_unflatten(list(map(self._widened, given)), form)
        exact = func(*arguments, **keywords)
        return pytree.tree_map(self._paired, made, exact)

    def _cast(self, made: Any, source: Any) -> Any:
        """A cast: to 16 bits it is put off, from them it takes the float32 value."""
        _, wide = self._wide.get(id(source), (source, source))
        if wide.dtype is torch.float32 and _narrow(made):
            self._wide[id(made)] = made, wide
        elif wide is not source:
            return wide.to(made.dtype)
        return made

    def _widened(self, value: Any) -> Any:
        if not _narrow(value):
            return value
        if id(value) not in self._wide:
            self._wide[id(value)] = value, value.to(torch.float32)
        return self._wide[id(value)][1]

    def _paired(self, made: Any, exact: Any) -> Any:
        """What the decomposition sees of a result: the 16-bit one, or the exact one of others."""
        if not _narrow(made) or exact.dtype is not torch.float32:
            return exact
        self._wide[id(made)] = made, exact
        return made


def _narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in _NARROW
