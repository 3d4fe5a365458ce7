"""A kernel of a graph, called with PyTorch's tensors.

Imports the importer and `build`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tedsl.build import build
from tedsl.dtypes import DType
from tedsl.runtime.arrays.views import dtype_of_numpy
from tedsl.runtime.calls.direct import MISS, Direct, missed, over_tensors
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.torch import kept
from tedsl.torch.elements.dtypes import torch_dtype
from tedsl.torch.elements.layouts import Layout, symbolic
from tedsl.torch.importer.graph import Imported
from tedsl.torch.lib import torch
from tedsl.torch.refusals import CompilerFault

TRIES = 8
"""Calls in which a function for calls like them is looked for."""


class Failed(Exception):
    """An index of this call is outside its tensor: PyTorch says which."""


class Compiled:
    """A kernel of a graph.

    Args:
        imported: the graph.
        schedule: of its tensors; None for the default rules.
        target: what to build for; None for where the example was.
        text: what the kernel follows from, where it is to be kept on disk and found there.

    Attributes:
        key: under what it is kept on disk, None without `text`.
    """

    def __init__(
        self,
        imported: Imported,
        schedule: Schedule | None,
        target: str | Target | None,
        text: str | None = None,
    ) -> None:
        self.key = key = None if text is None else kept.key_of(text, str(target))
        self._target = target
        self._sizes = tuple(imported.sizes.variables)
        found = None if key is None else kept.find(key, self._sizes, str(target))
        if found is None:
            kernel = build(list(imported.tensors) if schedule is None else schedule, target)
            places = _places(imported, kernel)
            if key is not None:
                kept.keep(key, imported, kernel, places)
            found = kernel, places
        self.kernel: Kernel = found[0]
        taken = [imported.inputs[n] for n in found[1]]
        plain = [each.layout.plain for each in taken]
        self._takes = [
            (each.place, None if flat else each.layout)
            for each, flat in zip(taken, plain, strict=True)
        ]
        self._several = len(self.kernel.signature.outputs) > 1
        self._outputs = [
            (each.place, each.layout, () if each.layout.plain else tuple(map(symbolic, each.shape)))
            for each in imported.outputs
        ]
        self._checks, self._indices = imported.checks, imported.indices
        self._scalars = tuple(self.kernel.signature.keywords)
        places = [place for place, _, _ in self._outputs]
        plain += [layout.plain for _, layout, _ in self._outputs]
        self._quick = all(plain) and places == list(range(len(places))) and not self._scalars
        # Where results lie otherwise than the kernel writes them or there are sizes, no function is
        # written for calls like the last one.
        orders = [layout.places for _, layout, _ in self._outputs]
        same = places == list(range(len(places))) and not self._scalars and not self._sizes
        known = [each for each in orders if each is not None]
        self._orders = known if same and len(known) == len(orders) else None
        self._direct: Direct = missed
        self._left = TRIES

    def __getstate__(self) -> dict[str, Any]:
        """All but the kernel, which is kept by itself, and code."""
        kept = {name: value for name, value in vars(self).items() if name != "kernel"}
        return {**kept, "_direct": missed, "_left": TRIES}

    def found(self) -> bool:
        """Whether a copy has its kernel, from disk where it had none."""
        if not hasattr(self, "kernel") and self.key is not None:
            found = kept.find(self.key, self._sizes, str(self._target))
            if found is not None:
                self.kernel = found[0]
        return hasattr(self, "kernel")

    def __call__(self, arguments: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        """The results.

        Args:
            arguments: of the graph, tensors among them.
            sizes: values of its symbols.

        Raises:
            Failed: an index is outside its tensor.
            BackendError: an argument that does not fit.
        """
        if not sizes:
            made = self._direct(tuple(arguments))
            if made is not MISS:
                return self._checked(list(made))
        records = torch.is_grad_enabled()
        given: list[Any] = []
        for place, layout in self._takes:
            tensor = arguments[place]
            if records and tensor.requires_grad:
                tensor = tensor.detach()
            if layout is not None:
                tensor = layout.array(tensor)
            elif not tensor.is_contiguous():
                tensor = tensor.contiguous()
            given.append(tensor)
        if self._scalars:
            made = self.kernel(*given, **{name: sizes[name] for name in self._scalars})
        else:
            made = self.kernel(*given)
        if self._left and self._orders is not None:
            self._seek(tuple(arguments), given)
        results = self._checked(list(map(_as_torch, made)) if self._several else [_as_torch(made)])
        if self._quick:
            return results
        return [
            _laid(layout, results[place], shape, sizes) for place, layout, shape in self._outputs
        ]

    def _seek(self, arguments: tuple[Any, ...], given: Sequence[Any]) -> None:
        """Write the function for calls like this one, once the kernel has one of its own: it takes
        the arguments as they are, where their memory is what the kernel reads."""
        assert self._orders is not None
        places = tuple(place for place, _ in self._takes)
        tensors = all(isinstance(each, torch.Tensor) for each in arguments)
        same = tensors and all(
            arguments[place].data_ptr() == array.data_ptr()
            for place, array in zip(places, given, strict=True)
        )
        call = self.kernel.last_call
        self._left -= 1
        if same and call is not None:
            checks = [()] * self._checks
            found = over_tensors(call, arguments, places, [*self._orders, *checks])
            self._left = 0
            self._direct = missed if found is None else found

    def _checked(self, results: list[Any]) -> list[Any]:
        """The results without the checks, which are true."""
        if self._checks:
            self._check(results[len(results) - self._checks :])
            del results[len(results) - self._checks :]
        return results

    def _check(self, checks: Sequence[Any]) -> None:
        """Raise `Failed` where one is false.  Of indices on a GPU nobody waits for the answer: the
        device raises, as it does in PyTorch's own kernels."""
        for number, each in enumerate(checks, self._indices - len(checks)):
            if each.is_cuda and number >= 0:
                torch._assert_async(each, "an index is outside its tensor")
            elif not each.item():
                raise Failed


def _places(imported: Imported, kernel: Kernel) -> list[int]:
    """Which inputs of the graph a kernel takes."""
    made: Any = kernel.schedule
    known = {each.tensor: n for n, each in enumerate(imported.inputs)}
    found = [made[buffer.name].op.outputs[0] for buffer in kernel.module.inputs]
    if any(tensor not in known for tensor in found):
        raise CompilerFault("the kernel reads a tensor that is no input of the graph")
    return [known[tensor] for tensor in found]


def _number(size: Any, sizes: Mapping[str, int]) -> int:
    """What a size is in a call."""
    if isinstance(size, int):
        return size
    return int(size.subs({each: sizes[str(each)] for each in size.free_symbols}))


def _as_torch(array: Any) -> Any:
    """What a kernel without an input returns on the CPU is NumPy's."""
    if isinstance(array, torch.Tensor):
        return array
    dtype = dtype_of_numpy(array)
    if dtype is DType.bfloat16 or dtype.is_float8:  # NumPy's of `ml_dtypes`, unknown to PyTorch
        bits = array.view(f"u{dtype.nbytes}")
        return torch.from_numpy(bits).view(torch_dtype(dtype))
    return torch.from_numpy(array)


def _laid(layout: Layout, array: Any, shape: Sequence[Any], sizes: Mapping[str, int]) -> Any:
    if layout.plain:
        return array
    repeats = layout.order is None or len(layout.order) < len(shape)
    return layout.result(array, [_number(each, sizes) for each in shape] if repeats else ())
