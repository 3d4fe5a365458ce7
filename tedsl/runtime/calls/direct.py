"""Calls like the last one as one function of Python that is written for them.

What a call does is known once one like it was made: which tensors it takes, what it allocates and
what it launches.  So the loops over arguments, results and kernels are unrolled into a text in
which only what differs from call to call is left.  Imports `forms`, `arrays` and
`backends.call_fragments`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from types import CodeType
from typing import Any

from tedsl.backends.call_fragments import Inlined
from tedsl.runtime.arrays.allocation import QuickCuda
from tedsl.runtime.calls.forms import Guard, guard_of

Direct = Callable[[tuple[Any, ...]], Any]
"""Runs a kernel on arguments like those it was written for and returns what it allocated, or None
where that is nothing; `MISS` of any other arguments, with which nothing has run."""

MISS: Any = object()
MAX_TENSORS = 24
MAX_APART = 8  # arguments of which every pair is compared

_MISSED = "    return MISS"


@dataclass(frozen=True, slots=True)
class TensorCall:
    """What the function of a call is written from.

    Attributes:
        guard: tells arguments like those of an earlier call.
        given: how many there are.
        outs: how many of them, at the end, are results.
        makers: what allocates the results, when they are not given.
        nbytes: of each input and output.
        launches: what is launched.
        noted: statements that keep what is known of the last call.
        names: in `noted`.
        places: which arguments are the inputs, in their order; None for all.
        listed: whether what is allocated is returned as a tuple also where it is one tensor.
    """

    guard: Guard
    given: int
    outs: int
    makers: tuple[Callable[[], Any], ...]
    nbytes: tuple[int, ...]
    launches: Inlined
    noted: tuple[str, ...]
    names: Mapping[str, Any]
    places: tuple[int, ...] | None = None
    listed: bool = False


def missed(arguments: tuple[Any, ...]) -> Any:
    """The function of a call for which none is written."""
    return MISS


def direct(call: TensorCall) -> Direct | None:
    """The function for such calls; None where it would be long."""
    if call.given + len(call.makers) > MAX_TENSORS or (call.outs and call.given > MAX_APART):
        return None
    text, names = direct_text(call)
    exec(_compiled(text), names)
    found: Direct = names.pop("call")  # else each would keep the other alive
    return found


@lru_cache(maxsize=256)
def _compiled(text: str) -> CodeType:
    return compile(text, "<a call of a tedsl.Kernel>", "exec")


def over_tensors(
    call: TensorCall,
    tensors: tuple[Any, ...],
    places: tuple[int, ...],
    orders: Sequence[Sequence[int]],
) -> Direct | None:
    """A function for calls with tensors that lie in memory as the arguments of `call` do, and may
    have their dimensions in another order.

    Args:
        call: without results that are given.
        tensors: PyTorch's, on the device.
        places: which of them are the inputs of the kernel.
        orders: of each result, the order of its dimensions.

    Returns:
        What takes such tensors as one tuple and returns the results as one; None where there is
        none.
    """
    guard, makers = guard_of(tensors), list(call.makers)
    for n, order in enumerate(orders):
        make = makers[n]
        if not isinstance(make, QuickCuda):
            return None
        shape, steps = ([each[d] for d in order] for each in (make.shape, make.steps))
        makers[n] = replace(make, shape=tuple(shape), steps=tuple(steps))
    if guard is None or len(makers) != len(orders):
        return None
    given = len(tensors)
    changed = replace(call, guard=guard, given=given, places=places, makers=tuple(makers))
    return direct(replace(changed, listed=True))


def direct_text(call: TensorCall) -> tuple[str, dict[str, Any]]:
    """The text of the function `call`, and the names in it."""
    names: dict[str, Any] = {"MISS": MISS, "alike": call.guard.check, **call.names}
    names.update(call.launches.names)
    given = [f"a{place}" for place in range(call.given)]
    made = [f"a{call.given + place}" for place in range(len(call.makers))]
    body = ["try:", f"    [{', '.join(given)}] = arguments", "except ValueError:", _MISSED]
    body += [f"if not alike(*arguments) or {call.launches.unready}:", _MISSED]
    if call.guard.weights:
        names["records"] = call.guard.records
        body += ["if records():", _MISSED]
    read = given if call.places is None else [given[place] for place in call.places]
    body += _addresses(read, 0, call.launches.alignment)
    for out in range(call.given - call.outs, call.given):
        body += _apart(out, call.nbytes, names)
    body += [
        f"{name} = {_allocation(place, make, names)}"
        for place, (name, make) in enumerate(zip(made, call.makers, strict=True), call.given)
    ]
    body += _addresses(made, len(read), call.launches.alignment)
    result = f"({', '.join(made)},)" if call.listed else ", ".join(made)
    body += [*call.noted, *call.launches.lines, f"return {result or None}"]
    return "\n".join(["def call(arguments):", *(f"    {line}" for line in body), ""]), names


def _addresses(tensors: list[str], first: int, alignment: int) -> list[str]:
    """Read the addresses of tensors, and leave where one is not aligned."""
    if not tensors:
        return []
    found = [f"p{first + place}" for place in range(len(tensors))]
    read = [f"{name} = {tensor}.data_ptr()" for name, tensor in zip(found, tensors, strict=True)]
    every = f"({' | '.join(found)})" if len(found) > 1 else found[0]
    return [*read, f"if {every} % {alignment}:", _MISSED]


def _apart(out: int, nbytes: tuple[int, ...], names: dict[str, Any]) -> list[str]:
    """Leave where a result shares a byte with an argument before it."""
    lines: list[str] = []
    for place in range(out + 1):
        names[f"bytes{place}"] = nbytes[place]
    for other in range(out):
        ends = f"p{out} + bytes{out}", f"p{other} + bytes{other}"
        lines += [f"if p{other} < {ends[0]} and p{out} < {ends[1]}:", _MISSED]
    return lines


def _allocation(place: int, make: Callable[[], Any], names: dict[str, Any]) -> str:
    """The call that makes a result on the device, which is the current one."""
    if not isinstance(make, QuickCuda):
        names[f"make{place}"] = make
        return f"make{place}()"
    names["empty"] = make.empty
    names[f"shape{place}"], names[f"steps{place}"] = make.shape, make.steps
    names[f"dtype{place}"] = make.dtype
    return f"empty(shape{place}, steps{place}, dtype{place})"
