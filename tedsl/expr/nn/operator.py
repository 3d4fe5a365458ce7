"""`operator`: what is given to an operator is of the types that its signature names, or is refused.

The signature is what a user reads, so it is what is checked: without that, a number in place of a
tensor is met somewhere inside by an AttributeError.  Values (ranks, dtypes, ranges) are checked by
the operators themselves.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import (
    Any,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr.nodes import Expr
from tedsl.expr.tensor import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_WORDS: dict[object, str] = {
    Tensor: "a tensor",
    Expr: "an expression",
    int: "an int",
    float: "a number",
    bool: "True or False",
    str: "a string",
    type(None): "None",
    DType: "a dtype",
    np.dtype: "a dtype of numpy",
    type: "a type of number",
    np.generic: "a number",
}
_HINTS: tuple[tuple[object, str], ...] = (
    (Tensor, "pass what te.placeholder or te.compute returned"),
    (Sequence, "pass a list or a tuple"),
)


def operator(function: Callable[P, R]) -> Callable[P, R]:
    """An operator that refuses arguments of other types than its signature names."""

    @functools.cache
    def known() -> tuple[inspect.Signature, dict[str, Any]]:  # not when the package is imported
        return inspect.signature(function), get_type_hints(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        signature, hints = known()
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise ExprError(
                str(error),
                subject=function.__name__,
                facts=[("allowed", f"({', '.join(signature.parameters)})")],
                hint="give each argument once, by its place or its name",
            ) from None
        given = bound.arguments
        for name, value in given.items():
            given[name] = value = _plain(value)
            if not _fits(value, hints[name]):
                raise _refusal(given.get("name", function.__name__), name, value, hints[name])
        return function(*bound.args, **bound.kwargs)

    return checked


def _plain(value: object) -> object:
    """A number of numpy as Python's, alone or in a list or a tuple."""
    if isinstance(value, np.generic):
        return cast("object", value.item())
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[object]", value)
        if any(isinstance(item, np.generic) for item in items):
            return tuple(map(_plain, items))
    return cast("object", value)


def _refusal(subject: object, name: str, value: object, hint: Any) -> ExprError:
    """The error for a value that does not fit."""
    kinds = [get_origin(each) or each for each in _alternatives(hint)]
    do = next((text for kind, text in _HINTS if kind in kinds), "see the operator's docstring")
    return ExprError(
        f"{name} is {_shown(value)}",
        subject=subject if isinstance(subject, str) else "",
        facts=[("allowed", _words(hint))],
        hint=do,
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """What a union is of; any other type alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(part for each in get_args(hint) for part in _alternatives(each))
    return (hint,)


def _fits(value: object, hint: Any) -> bool:
    """True when a value is of a type as a signature writes it."""
    return any(_fits_one(value, each) for each in _alternatives(hint))


def _fits_one(value: object, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:  # which words there are, the operator says
        return type(value) in {type(part) for part in parts}
    if (origin is tuple and len(parts) != 2) or (origin is tuple and parts[1] is not Ellipsis):
        items = cast("Sequence[object]", value) if _is_sequence(value) else ()
        return len(items) == len(parts) and all(map(_fits, items, parts))
    if origin is not None and issubclass(origin, Sequence):
        return _is_sequence(value) and all(
            _fits(item, parts[0]) for item in cast("Sequence[object]", value)
        )
    kind: Any = origin or hint
    if kind in (int, float):
        return not isinstance(value, bool) and isinstance(value, Integral if kind is int else Real)
    return isinstance(value, kind)


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _words(hint: Any) -> str:
    """A type in words."""
    found: list[str] = []
    for each in _alternatives(hint):
        origin, parts = get_origin(each), get_args(each)
        if origin is Literal:
            text = ", ".join(f'"{part}"' for part in parts)
        elif origin is tuple and parts[-1] is not Ellipsis:
            text = f"{len(parts)} of: {' ; '.join(_words(part) for part in parts)}"
        elif origin is not None and issubclass(origin, Sequence):
            text = f"several of: {_words(parts[0])}"
        else:
            text = _WORDS.get(origin or each, getattr(each, "__name__", str(each)))
        if text not in found:
            found.append(text)
    return ", or ".join(found)


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > 60:
        text = f"{text[:57]}..."
    return f"{text} ({type(value).__name__})"
