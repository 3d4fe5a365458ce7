"""`operator`: what is given to an operator is of the types that its signature names, or is refused.

The signature is what a user reads, so it is what is checked: without that, a number in place of a
tensor is met somewhere inside by an AttributeError.  Values (ranks, dtypes, ranges) are checked by
the operators themselves.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast, get_type_hints

import numpy as np

from tedsl.tensor.signatures import fits, misnamed, refusal

P = ParamSpec("P")
R = TypeVar("R")


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
            raise misnamed(function.__name__, signature, kwargs, str(error)) from None
        given = bound.arguments
        for name, value in given.items():
            given[name] = value = _plain(value)
            if not fits(value, hints[name]):
                raise refusal(given.get("name", function.__name__), name, value, hints[name])
        return function(*bound.args, **bound.kwargs)

    return checked


def of_ranks(
    function: Callable[Concatenate[int, P], R], brief: str
) -> tuple[Callable[P, R], Callable[P, R], Callable[P, R]]:
    """The operators of one, two and three spatial dimensions, which are given to `function` before
    all else.  That of two has its docstring, the others say what they are in `brief` and see there;
    each has its own name for what `name` is if nothing is given."""
    as_2d = f"as `{function.__name__.lstrip('_')}2d`."
    return (
        operator(_of_rank(function, 1, f"{brief} of one dimension; {as_2d}")),
        operator(_of_rank(function, 2, inspect.getdoc(function) or "")),
        operator(_of_rank(function, 3, f"{brief} of three dimensions; {as_2d}")),
    )


def _of_rank(function: Callable[Concatenate[int, P], R], rank: int, doc: str) -> Callable[P, R]:
    own = f"{function.__name__.lstrip('_')}{rank}d"
    signature = inspect.signature(function)
    _, *rest = signature.parameters.values()
    rest = [each.replace(default=own) if each.name == "name" else each for each in rest]
    signature = signature.replace(parameters=rest)

    def ranked(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return function(rank, *bound.args, **bound.kwargs)

    functools.update_wrapper(ranked, function)
    ranked.__name__ = ranked.__qualname__ = own
    ranked.__doc__ = doc
    vars(ranked)["__signature__"] = signature
    return ranked


def _plain(value: object) -> object:
    """A number of numpy as Python's, alone or in a list or a tuple."""
    if isinstance(value, np.generic):
        return cast("object", value.item())
    if isinstance(value, (list, tuple)):
        items = cast("Sequence[object]", value)
        if any(isinstance(item, np.generic) for item in items):
            return tuple(map(_plain, items))
    return cast("object", value)
