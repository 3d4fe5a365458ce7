"""A graph in the language, and a kernel of it that is called with PyTorch's tensors.

Imports the importer and `build`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tedsl.build import build
from tedsl.dtypes import DType
from tedsl.runtime.arrays.views import dtype_of_numpy
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor
from tedsl.torch.elements.dtypes import torch_dtype
from tedsl.torch.elements.layouts import Layout
from tedsl.torch.importer.graph import Imported, Input
from tedsl.torch.lib import pytree, torch
from tedsl.torch.refusals import CompilerFault


class Failed(Exception):
    """An index of this call is outside its tensor: PyTorch says which."""


class Compiled:
    """A kernel of a graph.

    Args:
        imported: the graph.
        schedule: of its tensors; None for the default rules.
        target: what to build for; None for where the example was.
    """

    def __init__(
        self, imported: Imported, schedule: Schedule | None, target: str | Target | None
    ) -> None:
        self.kernel: Kernel = build(
            list(imported.tensors) if schedule is None else schedule, target
        )
        made: Any = self.kernel.schedule
        known = {each.tensor: each for each in imported.inputs}
        found = [made[buffer.name].op.outputs[0] for buffer in self.kernel.module.inputs]
        if any(tensor not in known for tensor in found):
            raise CompilerFault("the kernel reads a tensor that is no input of the graph")
        self._inputs: list[Input] = [known[tensor] for tensor in found]
        self._outputs = [
            (each.place, each.layout, None if None in map(_number, each.shape) else each.shape)
            for each in imported.outputs
        ]
        self._checks = imported.checks
        self._scalars = tuple(self.kernel.signature.keywords)
        self._quick = self._straight()

    def _straight(self) -> bool:
        """True when arguments and results are those of the kernel as they are."""
        places = [place for place, _, _ in self._outputs]
        plain = [each.layout.plain for each in self._inputs]
        plain += [layout.plain for _, layout, _ in self._outputs]
        return all(plain) and places == list(range(len(places))) and not self._scalars

    def __call__(self, arguments: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        """The results.

        Args:
            arguments: of the graph, tensors among them.
            sizes: values of its symbols.

        Raises:
            Failed: an index is outside its tensor.
            BackendError: an argument that does not fit.
        """
        given = [each.layout.array(_plain(arguments[each.place])) for each in self._inputs]
        scalars = {name: sizes[name] for name in self._scalars}
        made: Any = self.kernel(*given, **scalars)
        several = len(self.kernel.signature.outputs) > 1
        results = list(map(_as_torch, made if several else (made,)))
        if self._checks:
            for each in results[len(results) - self._checks :]:
                if not each.item():
                    raise Failed
            del results[len(results) - self._checks :]
        if self._quick:
            return results
        return [
            _laid(layout, results[place], shape, sizes) for place, layout, shape in self._outputs
        ]


def _number(size: Any) -> int | None:
    return size if isinstance(size, int) else None


def _plain(tensor: Any) -> Any:
    return tensor.detach() if tensor.requires_grad else tensor


def _as_torch(array: Any) -> Any:
    """What a kernel without an input returns on the CPU is NumPy's."""
    if isinstance(array, torch.Tensor):
        return array
    dtype = dtype_of_numpy(array)
    if dtype is DType.bfloat16 or dtype.is_float8:  # NumPy's of `ml_dtypes`, unknown to PyTorch
        bits = array.view(f"u{dtype.nbytes}")
        return torch.from_numpy(bits).view(torch_dtype(dtype))
    return torch.from_numpy(array)


def _laid(layout: Layout, array: Any, shape: Any, sizes: Mapping[str, int]) -> Any:
    if layout.plain:
        return array
    order = layout.order
    if shape is None and (order is None or len(order) < len(layout.shape)):
        raise CompilerFault(f"a result of a layout of open sizes: {dict(sizes)}")
    return layout.result(array, shape or ())


class Program:
    """A PyTorch function as tensor expressions, made by `trace`.

    Attributes:
        inputs: the placeholders, in the order of the arguments and named after them; then the
            parameters and buffers of a module.
        outputs: the results, to be scheduled.
    """

    def __init__(
        self,
        imported: Imported,
        constants: Mapping[int, Any],
        spec: Any,
        count: int,
        example: Callable[..., Any],
    ) -> None:
        self._imported = imported
        self._constants = dict(constants)
        self._spec = spec
        self._count = count
        self.function = example

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The placeholders."""
        return tuple(each.tensor for each in self._imported.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What is computed: the results, and bools that say whether indices are inside."""
        return self._imported.tensors

    def __repr__(self) -> str:
        given = ", ".join(_told(tensor) for tensor in self.inputs)
        return f"<tedsl.torch.Program ({given}) -> {', '.join(map(_told, self.outputs))}>"

    def build(
        self, schedule: Schedule | None = None, target: str | Target | None = None
    ) -> Callable[..., Any]:
        """A kernel that is called like the function.

        Args:
            schedule: of `outputs`; the default rules write one where none is given.
            target: `"cpu"` or `"cuda"`.

        Raises:
            ScheduleError, LowerError, BackendError: as `te.build` does.
        """
        compiled = Compiled(self._imported, schedule, target)

        def call(*arguments: Any) -> Any:
            """The function, computed by the kernel."""
            leaves = [each for each in pytree.tree_leaves(arguments)]
            if len(leaves) != self._count:
                raise TypeError(f"{len(leaves)} arguments given, {self._count} expected")
            places: dict[int, Any] = dict(enumerate(leaves))
            places.update(self._constants)
            with torch.no_grad():
                try:
                    results = compiled([places[n] for n in range(len(places))], {})
                except Failed:
                    return self.function(*arguments)
            return pytree.tree_unflatten(results, self._spec)

        call.kernel = compiled.kernel  # pyright: ignore[reportFunctionMemberAccess]
        return call


def _told(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
