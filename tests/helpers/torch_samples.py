"""PyTorch's own samples of its operators, through the importer, against eager."""

from __future__ import annotations

import importlib
import warnings
from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import tedsl.torch as tt
from tedsl.torch.backend.entry import tedsl as backend
from tedsl.torch.refusals import first_line

torch: Any = importlib.import_module("torch")
modes: Any = importlib.import_module("torch.utils._python_dispatch")
pytree: Any = importlib.import_module("torch.utils._pytree")
op_db: Any = importlib.import_module("torch.testing._internal.common_methods_invocations").op_db

OPERATORS: dict[str, Any] = {
    f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name: op for op in op_db
}


@dataclass
class Tally:
    """What became of the samples of one operator."""

    equal: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def bound(function: Any, arguments: Any, keywords: Any) -> tuple[Any, list[Any]]:
    """A function of the tensors among the arguments, and these."""
    leaves, spec = pytree.tree_flatten((arguments, keywords))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def call(*given: Any) -> Any:
        left = iter(given)
        filled = [next(left) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        found = [each for each in pytree.tree_leaves(function(*args, **kwargs))]
        return tuple(each for each in found if isinstance(each, torch.Tensor))

    return call, tensors


def compare(op: Any, dtype: Any, limit: int) -> Tally:
    """The first samples of an operator: equal to eager, refused, or wrong."""
    tally = Tally()
    torch.manual_seed(0)
    for n, sample in enumerate(op.sample_inputs("cpu", dtype, requires_grad=False)):
        if n >= limit:
            break
        call, tensors = bound(op.op, (sample.input, *sample.args), sample.kwargs)
        one(call, tensors, dtype, tally)
    return tally


def one(call: Any, tensors: list[Any], dtype: Any, tally: Tally) -> None:
    """Trace, build and compare one call."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = call(*[tensor.clone() for tensor in tensors])
        try:
            program = tt.trace(call, *tensors)
        except tt.NotTaken as refusal:
            tally.refused[refusal.reason] += 1
            return
        except (RuntimeError, TypeError, NotImplementedError) as error:
            tally.refused[f"PyTorch does not trace it: {first_line(error)[:60]}"] += 1
            return
    found = program.build(target="cpu")(*tensors)
    fault = difference(call, tensors, found, expected)
    if fault:
        tally.wrong.append(fault)
    else:
        tally.equal += 1


def difference(call: Any, tensors: list[Any], found: Any, expected: Any) -> str:
    """How results differ from eager ones beyond PyTorch's tolerances, or beyond four times what
    eager ones are off themselves: sums in another order, roundings of 16-bit floats elsewhere."""
    try:
        torch.testing.assert_close(found, expected, equal_nan=True)
    except AssertionError as error:
        text = " ".join(str(error).split())[:300]
    else:
        return ""
    exact = call(*[doubled(each) for each in tensors])
    for ours, theirs, right in zip(found, expected, exact, strict=True):
        if ours is None or theirs is None or right is None:
            continue
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            return text
        if torch.equal(ours, theirs) or not ours.numel():
            continue
        if not ours.is_floating_point():
            return text
        if not torch.equal(ours.isfinite(), theirs.isfinite()):
            return text
        off, own = ((each.double() - right).nan_to_num(0.0).abs().max() for each in (theirs, ours))
        if not own <= 4 * off + 1e-5:
            return text
    return ""


def doubled(tensor: Any) -> Any:
    """A tensor of floats in float64."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def run(name: str, dtype: Any = torch.float32, limit: int = 1000) -> Tally:
    """All samples of an operator by its name."""
    return compare(OPERATORS[name], dtype, limit)


def run_in(name: str, dtype: str, limit: int) -> Tally | None:
    """The first samples of an operator in a type by its name; None where PyTorch has none."""
    kind = getattr(torch, dtype)
    return run(name, kind, limit) if kind in OPERATORS[name].dtypes else None


UNDEFINED = ("empty", "new_empty", "jiterator", "as_strided.partial_views")
"""Operators whose results are left open, and those that have no samples on the CPU."""


def through_backend(name: str, limit: int, dtype: Any = torch.float32) -> list[str]:
    """What differs between eager and `torch.compile(backend="tedsl")` for the first samples of an
    operator, forward and backward; a call that eager refuses is not made."""
    op = OPERATORS[name]
    if dtype not in op.dtypes or name.startswith(UNDEFINED):
        return []
    differentiable = op.supports_autograd and dtype.is_floating_point
    torch.manual_seed(0)
    wrong: list[str] = []

    def run(call: Any, *tensors: Any) -> Any:
        return both_ways(call, list(tensors), differentiable)

    given = op.sample_inputs("cpu", dtype, requires_grad=differentiable)
    for sample, _ in zip(given, range(limit), strict=False):
        call, tensors = bound(op.op, (sample.input, *sample.args), sample.kwargs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                expected = run(call, *tensors)
            except (RuntimeError, TypeError, ValueError, NotImplementedError):
                continue
            torch._dynamo.reset()
            found = run(torch.compile(call, backend=backend), *tensors)
            fault = difference(partial(run, call), tensors, found, expected)
        wrong += [fault] if fault else []
    return wrong


def both_ways(call: Any, tensors: list[Any], differentiable: bool) -> Any:
    """The results of a call, and the gradients of its tensors."""
    torch.manual_seed(5)
    given = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors]
    results = call(*given)
    losses = [each for each in results if each.requires_grad and each.is_floating_point()]
    if differentiable and losses:
        weights = [torch.linspace(0.5, 1.5, each.numel()).reshape(each.shape) for each in losses]
        total: Any = sum((a * b).sum() for a, b in zip(losses, weights, strict=True))
        total.backward()
    return [*(each.detach() for each in results), *(each.grad for each in given)]


class _Recording(modes.TorchDispatchMode):
    """Notes the calls of some operators."""

    def __init__(self, targets: Container[Any]) -> None:
        super().__init__()
        self.targets = targets
        self.calls: list[tuple[Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.targets:
            given = pytree.tree_map(_copied, (args, kwargs or {}))
            self.calls.append((func, given))
        return func(*args, **(kwargs or {}))


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def recorded(targets: Container[Any], dtype: Any, limit: int) -> Iterator[tuple[Any, Any]]:
    """The calls of operators of ATen that eager makes for the first samples of all operators,
    forward and backward: each with its arguments and keywords."""
    for name, op in OPERATORS.items():
        if dtype not in op.dtypes or name.startswith(UNDEFINED):
            continue
        grad = op.supports_autograd
        for sample, _ in zip(op.sample_inputs("cpu", dtype, grad), range(limit), strict=False):
            call, tensors = bound(op.op, (sample.input, *sample.args), sample.kwargs)
            with warnings.catch_warnings(), _Recording(targets) as recording:
                warnings.simplefilter("ignore")
                try:
                    both_ways(call, tensors, grad)
                except (RuntimeError, TypeError, ValueError, NotImplementedError):
                    continue
            yield from recording.calls
