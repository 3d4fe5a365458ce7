"""What a signature says of its arguments, and whether a value is of it.

Two users: operators ask before they run (`nn.operator`), everything else public asks when a
call has failed with one of Python's own errors (`explained`): an argument of another type than the
signature names is then what the caller is told of, and any other failure stays what it is.  So a
call that is right pays nothing.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, SupportsIndex, TypeVar, Union, cast, get_args, get_origin

import numpy as np

from tedsl.dtypes import DType
from tedsl.errors import ExprError, TedslError
from tedsl.expr import promote
from tedsl.expr.nodes import Axis, Expr
from tedsl.slips import no_keyword
from tedsl.tensor.computes import Computes
from tedsl.tensor.tensor import Tensor

Made = TypeVar("Made", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type[Any])
PLAIN = (TypeError, AttributeError, ValueError, LookupError, OverflowError)
"""What Python raises where a value is not of the kind that was expected."""

_WORDS: dict[object, str] = {
    Tensor: "a tensor",
    Computes: "an operation",
    Expr: "an expression",
    Axis: "an axis",
    int: "an int",
    SupportsIndex: "an int",
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
_AXIS = {"var": "axis"}
KEYWORDS: Mapping[str, Mapping[str, str]] = {
    "bind": {"ivar": "axis", "thread_ivar": "thread"},
    "compute_at": {"parent": "stage", "scope": "axis"},
    "vectorize": _AXIS,
    "unroll": _AXIS,
    "parallel": _AXIS,
    "pragma": _AXIS,
    "prefetch": _AXIS,
    "set_store_predicate": {"predicate": "condition"},
    "tensorize": {"var": "axis", "tensor_intrin": "intrin"},
    "thread_axis": {"tag": "thread_tag"},
    "transform_layout": {"mapping_function": "fn", "mapping": "fn"},
}
"""By function: TVM's name of an argument, which scripts give as a keyword, and ours."""


def respelt(function: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments under the names that they have here."""
    known = KEYWORDS.get(function, {})
    return {known.get(name, name): value for name, value in given.items()}


def explained(function: Made, error: type[TedslError] = ExprError) -> Made:
    """A function whose failure for an argument of another type than its signature names is an
    `error` that says so."""

    @functools.wraps(function)
    def explained_call(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            kwargs = respelt(function.__name__, kwargs)
        try:
            return function(*args, **kwargs)
        except PLAIN as found:
            refusal = refused(function, args, kwargs, error)
            if refusal is None:
                raise
            raise refusal from found

    return cast("Made", explained_call)


def explained_methods(error: type[TedslError]) -> Callable[[Class], Class]:
    """The same of the public methods of a class."""

    def decorate(kind: Class) -> Class:
        for base in reversed(kind.__mro__[:-1]):
            for name, value in list(vars(base).items()):
                own = isinstance(value, types.FunctionType) and not name.startswith("_")
                if own and value.__code__.co_name != "primitive_call":  # which does this itself
                    setattr(kind, name, explained(getattr(kind, name), error))
        return kind

    return decorate


def refused(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: type[TedslError],
) -> TedslError | None:
    """The error for the first argument that is not what the signature names, if there is one."""
    signature = inspect.signature(function)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as wrong:
        return misnamed(function.__name__, signature, kwargs, str(wrong), error)
    for name, value in bound.arguments.items():
        parameter = bound.signature.parameters[name]
        hint = _resolved(function, parameter.annotation)
        several = {parameter.VAR_POSITIONAL: value, parameter.VAR_KEYWORD: None}
        for each in several.get(parameter.kind, (value,)) or ():
            if name != "self" and not fits(each, hint):
                return refusal(function.__name__, name, each, hint, error)
    return None


def misnamed(
    name: str,
    signature: inspect.Signature,
    kwargs: Mapping[str, Any],
    reason: str,
    error: type[TedslError] = ExprError,
) -> TedslError:
    """The error for arguments that no parameter of a function takes, or that it lacks."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    given = signature.parameters.values()
    known = [f"{stars.get(p.kind, '')}{p.name}" for p in given if p.name != "self"]
    return no_keyword(name, reason, kwargs, known, error)


def _resolved(function: Callable[..., Any], hint: Any) -> Any:
    """What an annotation means; Any where its names are not known when the program runs."""
    if hint is inspect.Parameter.empty:
        return Any
    inner = inspect.unwrap(function)
    public = vars(importlib.import_module("tedsl"))
    return meaning(hint, {**vars(promote), **public, **getattr(inner, "__globals__", {})})


def meaning(hint: Any, space: Mapping[str, Any]) -> Any:
    """An annotation, or the text of one, without what it says of parts that cannot be told."""
    if not isinstance(hint, str):
        return hint
    parts = _split(hint)
    if len(parts) > 1:
        return Union[tuple(meaning(part, space) for part in parts)]  # noqa: UP007
    whole, head = parts[0], parts[0].partition("[")[0]
    for text in (whole, head):
        try:
            return meaning(eval(text, dict(space)), space)
        except (NameError, AttributeError, TypeError):
            continue
    return Any


def _split(text: str) -> list[str]:
    """The members of a union, as they are written."""
    found, depth = [""], 0
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [part.strip() for part in found]


def refusal(
    subject: object,
    name: str,
    value: object,
    hint: Any,
    error: Callable[..., TedslError] = ExprError,
) -> TedslError:
    """The error for a value that does not fit."""
    kinds = [get_origin(each) or each for each in _alternatives(hint)]
    do = next((text for kind, text in _HINTS if kind in kinds), "see its docstring, by help()")
    if Tensor in kinds and Expr not in kinds and isinstance(value, Expr):
        do = "te.nn is for whole tensors: pass one"
        if hasattr(importlib.import_module("tedsl"), str(subject)):
            do = f"write te.{subject} for one element; te.nn is for whole tensors"
    return error(
        f"{name} is {_shown(value)}",
        subject=subject if isinstance(subject, str) else "",
        facts=[("allowed", words(hint))],
        hint=do,
    )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """What a union is of; any other type alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(part for each in get_args(hint) for part in _alternatives(each))
    return (hint,)


def fits(value: object, hint: Any) -> bool:
    """True when a value is of a type as a signature writes it."""
    return any(_fits_one(value, each) for each in _alternatives(hint))


def _fits_one(value: object, hint: Any) -> bool:
    origin, parts = get_origin(hint), get_args(hint)
    kind: Any = origin or hint
    if hint is Any or not isinstance(kind, type):
        return True if hint is Any or origin is not Literal else _is_word(value, parts)
    if issubclass(kind, tuple) and parts and (len(parts) != 2 or parts[1] is not Ellipsis):
        items = cast("Sequence[object]", value) if _is_sequence(value) else ()
        return len(items) == len(parts) and all(map(fits, items, parts))
    if parts and issubclass(kind, Sequence):
        return _is_sequence(value) and all(
            fits(item, parts[0]) for item in cast("Sequence[object]", value)
        )
    if kind in (int, float):
        return not isinstance(value, bool) and isinstance(value, Integral if kind is int else Real)
    if kind is SupportsIndex:
        return not isinstance(value, bool) and isinstance(value, Integral)
    if getattr(cast("Any", kind), "_is_protocol", False) and not issubclass(
        kind, (Iterable, Mapping)
    ):
        return True
    return isinstance(value, kind)


def _is_word(value: object, parts: tuple[Any, ...]) -> bool:
    """Which words there are, the function says."""
    return type(value) in {type(part) for part in parts}


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def words(hint: Any) -> str:
    """A type in words."""
    found: list[str] = []
    for each in _alternatives(hint):
        origin, parts = get_origin(each), get_args(each)
        if origin is Literal:
            text = ", ".join(f'"{part}"' for part in parts)
        elif origin is tuple and parts[-1] is not Ellipsis:
            text = f"{len(parts)} of: {' ; '.join(words(part) for part in parts)}"
        elif isinstance(origin, type) and parts and issubclass(origin, Sequence):
            text = f"several of: {words(parts[0])}"
        elif (origin or each) is Callable:
            text = "a function"
        else:
            kind = cast("Any", origin or each)
            text = _WORDS.get(kind, getattr(each, "__name__", str(each)))
        if text not in found:
            found.append(text)
    return ", or ".join(found)


def _shown(value: object) -> str:
    text = repr(value)
    if len(text) > 60:
        text = f"{text[:57]}..."
    return f"{text} ({type(value).__name__})"
