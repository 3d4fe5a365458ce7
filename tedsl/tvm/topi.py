"""The operators of TVM's TOPI that are said in a line here; the others answer with what to write.

They have TOPI's names and arguments: `topi.sum(A, axis=1)`, `topi.nn.relu(x)`.  Its schedules,
`topi.cuda.schedule_injective(y)`, are the default rules of `te.schedule_for`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, MutableSequence, Sequence
from functools import reduce as fold
from types import FunctionType, ModuleType
from typing import Any

from tedsl.errors import ExprError
from tedsl.nn import activations, arguments, positions
from tedsl.nn.matmul import linear, matmul
from tedsl.nn.softmax import log_softmax, softmax
from tedsl.slips import no_attribute
from tedsl.tensor import math, reduce
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor
from tedsl.tvm import topi_tags, topi_utils

_OF_ELEMENTS = [
    name
    for name, value in vars(math).items()
    if isinstance(value, FunctionType) and not name.startswith("_")
]
_SPELT = {
    "mod": "floormod",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "floor_mod": "floormod",
    "floor_divide": "floordiv",
    "fast_exp": "exp",
    "fast_tanh": "tanh",
    "fast_erf": "erf",
}
_ADVICE = {
    "conv2d": 'te.nn.conv2d(x, weight, stride=, padding=, layout="channels_first")',
    "depthwise_conv2d_nchw": "te.nn.conv2d with groups= as many as channels",
    "pool2d": "te.nn.max_pool2d or te.nn.avg_pool2d",
    "global_pool": "te.nn.adaptive_avg_pool2d or te.nn.adaptive_max_pool2d",
    "batch_norm": "te.nn.batch_norm",
    "layer_norm": "te.nn.layer_norm",
    "reshape": "te.compute(shape, ...) with // and % of the axes",
    "concatenate": "te.compute(shape, ...) with te.if_then_else of the place",
}
_OTHERS = "write te.compute(shape, lambda ...), or one of te.nn: {}"
__path__: Sequence[str] = ()
Along = int | Sequence[int] | None


def _reduction(name: str) -> Callable[..., Tensor]:
    """`topi.<name>(data, axis=None, keepdims=False)`, of the dtype of `data`."""
    folds: Any = getattr(reduce, name)

    def reduced(data: Tensor, axis: Along = None, keepdims: bool = False) -> Tensor:
        along = set(arguments.dimensions(data, axis, f"topi.{name}"))
        folded = {n: reduce_axis((0, data.shape[n]), f"k{n}") for n in sorted(along)}
        kept = [n for n in range(data.ndim) if n not in along or keepdims]
        shape = [1 if n in along else data.shape[n] for n in kept]

        def element(*indices: Any) -> Any:
            at: dict[int, Any] = {**dict(zip(kept, indices, strict=True)), **folded}
            value = data[tuple(at[n] for n in range(data.ndim))]
            return math.cast(folds(value, axis=list(folded.values())), data.dtype)

        return compute(shape, element, name=f"{data.name}_red")

    return reduced


def transpose(a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """The dimensions in the order `axes`, by default reversed."""
    order = list(axes) if axes is not None else list(reversed(range(a.ndim)))
    if sorted(order) != list(range(a.ndim)):
        raise ExprError(
            f"{order} is no order of {a.ndim} dimensions",
            subject="topi.transpose",
            hint="name each dimension once",
        )
    place = [order.index(n) for n in range(a.ndim)]
    return compute(
        [a.shape[n] for n in order], lambda *i: a[tuple(i[p] for p in place)], name="T_transpose"
    )


def broadcast_to(data: Tensor, shape: Sequence[Any]) -> Tensor:
    """Dimensions of extent 1, and those in front, repeated."""
    ones = [getattr(extent, "value", None) == 1 for extent in data.shape]

    def element(*indices: Any) -> Any:
        own = indices[len(indices) - data.ndim :]
        return data[tuple(0 if one else i for one, i in zip(ones, own, strict=True))]

    return compute(tuple(shape), element, name="T_broadcast_to")


def pad(
    data: Tensor,
    pad_before: Sequence[int],
    pad_after: Sequence[int] | None = None,
    pad_value: float = 0.0,
    name: str = "PadInput",
) -> Tensor:
    """A constant around the elements: so many before and after, in each dimension."""
    after = pad_before if pad_after is None else pad_after
    shape = [a + n + b for a, n, b in zip(pad_before, data.shape, after, strict=True)]

    def element(*indices: Any) -> Any:
        at = [i - a for i, a in zip(indices, pad_before, strict=True)]
        inside = [
            condition
            for i, n, a, b in zip(at, data.shape, pad_before, after, strict=True)
            for condition in ((i >= 0,) if a else ()) + ((i < n,) if b else ())
        ]
        value = data[tuple(at)]
        return math.if_then_else(reduce.all(*inside), value, pad_value) if inside else value

    return compute(shape, element, name=name)


def elemwise_sum(xs: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return fold(math.add, xs)


def full(shape: Sequence[Any], dtype: Any, fill_value: Any) -> Tensor:
    """One value everywhere."""
    return compute(tuple(shape), lambda *_: math.cast(fill_value, dtype), name="T_full")


def dense(
    data: Tensor, weight: Tensor, bias: Tensor | None = None, out_dtype: Any = None
) -> Tensor:
    """`te.nn.linear`: data times the transpose of weight."""
    made = linear(data, weight, bias)
    return made if out_dtype is None else math.cast(made, out_dtype)


def leaky_relu(t: Tensor, alpha: float) -> Tensor:
    """`te.nn.leaky_relu`."""
    return activations.leaky_relu(t, alpha)


class _Names(ModuleType):
    """A module of TOPI: `nn`, or one of schedules for a target."""

    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __init__(self, name: str, target: str | None = None) -> None:
        super().__init__(f"tedsl.tvm.topi.{name}")
        self._name, self._target = name, target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("schedule_"):
            return self._schedule
        if self._name == "testing" and name.startswith("get_") and name.endswith("_schedule"):
            return _of_target
        return _named(f"topi.{self._name}", name)

    def _schedule(self, outs: Any, *_: Any) -> Any:
        return importlib.import_module("tedsl.build").schedule_for(outs, self._target)


def _of_target(target: Any) -> Callable[..., Any]:
    """TOPI's `get_elemwise_schedule(target)` and its like: the default rules of a target."""

    def scheduled(outs: Any) -> Any:
        return importlib.import_module("tedsl.build").schedule_for(outs, target)

    return scheduled


def _named(where: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {where!r} has no attribute {name!r}")
    short = name.removeprefix("broadcast_")
    if short in _OF_ELEMENTS or short in _SPELT:
        return getattr(math, _SPELT.get(short, short))
    if name in ("sum", "max", "min", "prod", "all", "any"):
        return _reduction(name)
    if name in _KNOWN:
        return _KNOWN[name]
    if name in _ADVICE:
        raise no_attribute(where, name, tuple, {name: f"write {_ADVICE[name]}"})
    listed = [*_OF_ELEMENTS, *_SPELT, *_KNOWN]
    operators = importlib.import_module("tedsl.nn").__all__
    listed += [f"te.nn.{each}" for each in operators]
    others = _OTHERS.format(", ".join(operators))
    raise no_attribute(where, name, lambda: listed, otherwise=others)


_KNOWN: dict[str, Any] = {
    "argmax": positions.argmax,
    "argmin": positions.argmin,
    "broadcast_to": broadcast_to,
    "dense": dense,
    "elemwise_sum": elemwise_sum,
    "full": full,
    "leaky_relu": leaky_relu,
    "log_softmax": log_softmax,
    "matmul": matmul,
    "pad": pad,
    "relu": activations.relu,
    "softmax": softmax,
    "transpose": transpose,
    "tag": topi_tags,
    "util": topi_utils,
    "utils": topi_utils,
    "testing": _Names("testing"),
    "nn": _Names("nn"),
    "generic": _Names("generic"),
    "x86": _Names("x86", "cpu"),
    "cuda": _Names("cuda", "cuda"),
}


def __getattr__(name: str) -> Any:
    """An operator."""
    return _named("topi", name)
