"""The operators of TVM's TOPI; those that are not here answer with what to write.

- `transform`, `places`: operators that move elements, and that choose them by where they are
- `convolutions`, `networks`: those of networks
- `testing`: what TOPI's tests compare with
- `tag`, `shapes`: what its schedules look at

They have TOPI's names and arguments: `topi.sum(A, axis=1)`, `topi.nn.relu(x)`.  Its schedules,
`topi.cuda.schedule_injective(y)`, are the default rules of `te.schedule_for`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, MutableSequence, Sequence
from functools import reduce as fold
from types import FunctionType, ModuleType
from typing import Any

from tedsl.nn import arguments, positions
from tedsl.slips import no_attribute
from tedsl.tensor import math, reduce
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute
from tedsl.tensor.tensor import Tensor
from tedsl.tvm.topi import convolutions, networks, places, shapes, tag, testing, transform

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
    "logical_xor": "not_equal",
    "fast_exp": "exp",
    "fast_tanh": "tanh",
    "fast_erf": "erf",
}
_EXPORTED = {
    name: module
    for module in (convolutions, networks, places, transform)
    for name in module.__all__
}
_TARGETS = {
    **dict.fromkeys(("arm_cpu", "bifrost", "generic", "hls", "intel_graphics", "mali", "rocm")),
    **dict.fromkeys(("cuda", "gpu"), "cuda"),
    "x86": "cpu",
}
"""The modules of schedules for targets, and where each runs; the others where the default is."""
_CALLED = "call NumPy's or PyTorch's by te.extern(shape, inputs, function)"
_FOLDED = "write te.sum(updates[k], axis=k, where=indices[k] == i); s[T].scatter runs it by points"
_RESIZED = "write te.compute over computed indices; topi.nn.upsampling takes the nearest"
_RAGGED = "write te.sum over te.reduce_axis((indptr[i], indptr[i + 1])) of the values"
_ELSEWHERE = {
    **dict.fromkeys(("argsort", "argwhere", "sort", "topk", "unique", "vision"), _CALLED),
    **dict.fromkeys(("searchsorted",), "write te.sum over the bounds, where=bounds[k] < x[i]"),
    **dict.fromkeys(("scatter", "scatter_add", "scatter_elements", "scatter_nd"), _FOLDED),
    **dict.fromkeys(("image", "resize", "resize2d"), _RESIZED),
    **dict.fromkeys(("sparse", "sparse_dense"), _RAGGED),
    "cumprod": "write te.scan, as te.nn.cumsum is one of sums",
    "pool_grad": "write te.gradient of what topi.nn.pool2d gives",
    "cpp": "write topi.<name>: all operators are Python here",
}
"""Operators that are left out, with what to write instead."""
_OTHERS = "write te.compute(shape, lambda ...), or one of te.nn: {}"
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
            own = {"dtype": data.dtype} if name in ("sum", "prod") else {}
            return folds(value, axis=list(folded.values()), **own)

        return compute(shape, element, name=f"{data.name}_red")

    return reduced


def elemwise_sum(xs: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    return fold(math.add, xs[1:], transform.identity(xs[0]))


def _position(search: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`topi.argmax` or `topi.argmin`, of int32."""

    def position(data: Tensor, axis: Along = None, keepdims: bool = False, **_: object) -> Tensor:
        along = axis[0] if isinstance(axis, (tuple, list)) and len(axis) == 1 else axis
        return math.cast(search(data, along, keepdims), "int32")

    return position


def matmul(a: Tensor, b: Tensor, transp_a: bool = False, transp_b: bool = False) -> Tensor:
    """The product of matrices, each transposed before if asked."""
    return networks.matmul_of(a, b, None, transp_a, transp_b)


def tensordot(a: Tensor, b: Tensor, axes: Any = 2) -> Tensor:
    """The sum over the last dimensions of one and the first of another, or over those named."""
    if isinstance(axes, int):
        axes = (range(a.ndim - axes, a.ndim), range(axes))
    left, right = ([each] if isinstance(each, int) else list(each) for each in axes)
    folded = [reduce_axis((0, a.shape[n]), f"k{n}") for n in left]
    kept = [n for n in range(a.ndim) if n not in left], [n for n in range(b.ndim) if n not in right]

    def element(*i: Any) -> Any:
        at = dict(zip(kept[0], i, strict=False)) | dict(zip(left, folded, strict=True))
        to = dict(zip(kept[1], i[len(kept[0]) :], strict=True))
        to |= dict(zip(right, folded, strict=True))
        value = a(*(at[n] for n in range(a.ndim))) * b(*(to[n] for n in range(b.ndim)))
        return reduce.sum(value, axis=folded)

    shape = [*(a.shape[n] for n in kept[0]), *(b.shape[n] for n in kept[1])]
    return compute(shape, element, name="T_tensordot", tag="matmul")


class _Names(ModuleType):
    """A module of TOPI: `nn`, or one of schedules for a target."""

    __path__: MutableSequence[str] = []  # noqa: RUF012

    def __init__(self, name: str, target: str | None = None) -> None:
        super().__init__(f"tedsl.tvm.topi.{name}")
        self._name, self._target = name, target

    def __getattr__(self, name: str) -> Any:
        if name.startswith("schedule_"):
            return self._schedule
        if self._name == "nn" and name in _OF_LAYERS:
            return _OF_LAYERS[name]
        if self._name in _TARGETS:  # an operator for a target is that operator
            parts = name.split("_")
            names = ["_".join(parts[:n]) for n in range(len(parts), 0, -1)]
            name = next((each for each in names if each in _EXPORTED), name)
        return _named(f"topi.{self._name}", name)

    def _schedule(self, outs: Any, *_: Any) -> Any:
        return importlib.import_module("tedsl.build").schedule_for(outs, self._target)


def _named(where: str, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {where!r} has no attribute {name!r}")
    short = name.removeprefix("broadcast_")
    if short not in _EXPORTED and (short in _OF_ELEMENTS or short in _SPELT):
        return getattr(math, _SPELT.get(short, short))
    if name in ("sum", "max", "min", "prod", "all", "any"):
        return _reduction(name)
    if name in _KNOWN:
        return _KNOWN[name]
    if name in _EXPORTED:
        return getattr(_EXPORTED[name], name)
    listed = [*_OF_ELEMENTS, *_SPELT, *_KNOWN, *_EXPORTED]
    operators = importlib.import_module("tedsl.nn").__all__
    listed += [f"te.nn.{each}" for each in operators]
    others = _OTHERS.format(", ".join(operators))
    raise no_attribute(where, name, lambda: listed, _ELSEWHERE, otherwise=others)


_KNOWN: dict[str, Any] = {
    "argmax": _position(positions.argmax),
    "argmin": _position(positions.argmin),
    "elemwise_sum": elemwise_sum,
    "matmul": matmul,
    "softmax": networks.softmax_of,
    "tensordot": tensordot,
    "tag": tag,
    "util": shapes,
    "utils": shapes,
    "testing": testing,
    "nn": _Names("nn"),
    **{name: _Names(name, target) for name, target in _TARGETS.items()},
}
_OF_LAYERS: dict[str, Any] = {
    "matmul": networks.matmul_of_layers,
    "pooling": networks,
    "get_pad_tuple": shapes.get_pad_tuple,
    "simplify": shapes.simplify,
}
"""What `topi.nn` has beside operators, or otherwise than `topi`."""


def __getattr__(name: str) -> Any:
    """An operator."""
    return _named("topi", name)
