"""`trace`: a PyTorch function or module as a `Program`.  Imports `program`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from tedsl.torch.lib import load, pytree, torch
from tedsl.torch.program import Program
from tedsl.torch.refusals import NotTaken
from tedsl.torch.tracing import trace_flat

_fakes: Any = load("torch._subclasses.fake_tensor")

_OTHERWISE = (
    'torch.compile(f, backend="tedsl") leaves it to PyTorch and takes the rest; tt.op makes an '
    "operator of PyTorch's of what is written as te.compute"
)
_OF_VALUES: tuple[type[Exception], ...] = (
    _fakes.DataDependentOutputException,
    _fakes.DynamicOutputShapeException,
)


def trace(fn: Callable[..., Any], *arguments: Any) -> Program:
    """A function as tensor expressions, to be looked at and scheduled.

    Args:
        fn: a function of tensors, or a module; its parameters and buffers become inputs too, which
            the program fills in.
        arguments: an example: tensors, and lists, tuples and dictionaries of them.  Shapes, types
            and strides are those of the program.

    Raises:
        NotTaken: an operator that tensor expressions do not say; `te.torch.compile` leaves it to
            PyTorch.
    """
    leaves = list(pytree.tree_leaves(arguments))
    _check(fn, arguments, leaves)
    try:
        return _program(fn, arguments, leaves)
    except _OF_VALUES as found:
        raise NotTaken(
            f"what is computed, or its shape, depends on values ({found})",
            subject="trace",
            hint="write torch.where(condition, a, b) for `if`, masks for nonzero and unique",
        ) from found
    except NotTaken as refusal:
        if refusal.hint:
            raise
        raise NotTaken(
            refusal.reason, subject=refusal.subject, facts=refusal.facts, hint=_OTHERWISE
        ) from refusal


def _check(fn: Callable[..., Any], arguments: Sequence[Any], leaves: Sequence[Any]) -> None:
    """Refuse arguments that are no dense tensors, or not those of the function."""
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise NotTaken(
                f"an argument is no tensor: {leaf!r}",
                subject="trace",
                hint="bind it: lambda x: f(x, 2); arrays are torch.from_numpy(array)",
            )
        if leaf.layout is not torch.strided:
            raise NotTaken(
                f"an argument is {leaf.layout}", subject="trace", hint="pass x.to_dense()"
            )
    try:
        inspect.signature(fn).bind(*arguments)
    except ValueError:  # a builtin that does not say
        return
    except TypeError as wrong:
        raise NotTaken(
            f"{getattr(fn, '__name__', fn)} cannot be called with {len(arguments)} arguments: "
            f"{wrong}",
            subject="trace",
            hint="give an example of each argument after the function: tt.trace(f, x, w)",
        ) from wrong


def _program(fn: Callable[..., Any], arguments: Sequence[Any], leaves: list[Any]) -> Program:
    """The program of a function of such arguments."""
    held = _state(fn)
    spec = pytree.tree_structure(arguments)
    shapes: list[Any] = []

    def flat(*tensors: Any) -> list[Any]:
        given = pytree.tree_unflatten(list(tensors[: len(leaves)]), spec)
        state = dict(zip(held, tensors[len(leaves) :], strict=True))
        result = torch.func.functional_call(fn, state, given) if held else fn(*given)
        found, structure = pytree.tree_flatten(result)
        shapes[:] = [structure]
        return found

    tensors = [*leaves, *held.values()]
    traced = trace_flat(flat, tensors, _unique([*_names(fn, arguments), *held]))
    wanted = [n for n, tensor in enumerate(tensors) if tensor.requires_grad]
    program = Program(traced, fn, list(held.values()), spec, shapes[0], wanted)
    _ = program.imported  # what is not taken is said now
    return program


def _state(fn: Callable[..., Any]) -> dict[str, Any]:
    if not isinstance(fn, torch.nn.Module):
        return {}
    module: Any = fn
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _names(fn: Callable[..., Any], arguments: Sequence[Any]) -> list[str]:
    """The names of the function's arguments, one for each tensor in them."""
    function: Any = getattr(fn, "forward", fn)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for place, argument in enumerate(arguments):
        called = f"arg{place}"
        if (
            place < len(parameters)
            and parameters[place].kind is not inspect.Parameter.VAR_POSITIONAL
        ):
            called = parameters[place].name
        count = len(list(pytree.tree_leaves(argument)))
        single = isinstance(argument, torch.Tensor)
        names += [called] if single else [f"{called}_{n}" for n in range(count)]
    return names


def _unique(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        plain = re.sub(r"\W", "_", name)
        while plain in found:
            plain += "_"
        found.append(plain)
    return found
