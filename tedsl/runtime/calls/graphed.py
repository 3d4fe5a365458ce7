"""A kernel whose calls replay a CUDA graph, with PyTorch's memory and streams.

A graph is a recording of launches, addresses included.  So each call of one copies its inputs to
the addresses of the recording, or, for inputs that are not to be copied, there is a recording for
each combination of their addresses.  Imports `runtime.arguments.signature`, `runtime.calls.forms`,
`runtime.arguments.order`, `runtime.calls.recording`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from tedsl.errors import BackendError
from tedsl.ir.nodes import HostCall, Module
from tedsl.runtime.arguments.order import ArgumentOrder
from tedsl.runtime.calls.forms import TORCH, Addresses, addresses_like, form_of
from tedsl.runtime.calls.recording import recording
from tedsl.target import Target, TargetKind

Call = Callable[[tuple[Any, ...], tuple[Any, ...], Mapping[str, Any]], Any]
_KEPT = 32  # graphs that a kernel keeps before it forgets the oldest


@dataclass(frozen=True, slots=True)
class _Captured:
    """A recording, None of a call without elements; the inputs it reads, of which those at the
    places `copied` are its own; and its results."""

    graph: Any
    inputs: tuple[Any, ...]
    copied: tuple[int, ...]
    results: tuple[Any, ...]


class GraphedKernel:
    """A kernel as a CUDA graph, made by `Kernel.graphed`.

    The first call with arguments of some form (shapes, dtypes, device, scalars, and the addresses
    of inputs that are not copied) runs the kernel once, which checks and compiles, and captures it.
    Calls like it copy the inputs to the graph's memory and replay.  They run on PyTorch's current
    stream and use the same memory: calls from several threads or streams have to wait for each
    other.

    Args:
        module: the lowered kernel.
        target: what it was built for.
        order: the order of its arguments where the build was given one.
        call: runs it on (inputs, results, scalars).
        copied: names of the inputs to copy; None for all.

    Raises:
        BackendError: this kernel cannot be captured, or no input has such a name.
    """

    def __init__(
        self,
        module: Module,
        target: Target,
        order: ArgumentOrder | None,
        call: Call,
        copied: Sequence[str] | None,
    ) -> None:
        _require_capturable(module, target)
        self._name = module.name
        self._order = order
        self._call = call
        self._copied = _places(module, copied)
        self._read = tuple(n for n in range(len(module.inputs)) if n not in self._copied)
        self._graphs: dict[tuple[object, ...], _Captured] = {}
        # What tells inputs like those of the last call, places and addresses of those that are read
        # where they are, and the recording.
        self._like: tuple[Addresses, tuple[tuple[int, int], ...], _Captured] | None = None

    def __repr__(self) -> str:
        return f"<tedsl.GraphedKernel {self._name}, {len(self._graphs)} graphs>"

    def __call__(self, /, *inputs: Any, out: Any = None, **scalars: Any) -> Any:
        """Replay the kernel on these arguments; the first time, run and capture it.

        Args:
            inputs: PyTorch tensors on a GPU, in the order of the signature.
            out: tensor, or tuple of tensors, to which the results are copied.
            scalars: runtime scalars that no input shape determines, by name; a graph for each
                value.

        A kernel built with a list of arguments takes all of these by position instead.

        Returns:
            `out`, or without it the graph's own results: the next call like it overwrites them.

        Raises:
            BackendError: an argument that does not fit, or a device that cannot capture the call.
        """
        outs: tuple[Any, ...] = ()
        if self._order is not None:
            inputs, outs, scalars = self._order.spread(self._name, inputs, out, scalars)
        elif out is not None:
            outs = tuple(cast(Sequence[Any], out)) if isinstance(out, (tuple, list)) else (out,)
        found = self._found(inputs, scalars)
        for place in found.copied:
            source, held = inputs[place], found.inputs[place]
            if source is not held:
                held.copy_(source)
        if found.graph is not None:
            found.graph.replay()
        return self._results(found.results, outs)

    def _found(self, inputs: tuple[Any, ...], scalars: Mapping[str, Any]) -> _Captured:
        """The recording for such arguments; captured when there is none."""
        if self._like is not None and not scalars:
            like, read, captured = self._like
            known = like(inputs)
            if known is not None and all(known[place] == at for place, at in read):
                return captured
        TORCH.find()
        form, addresses, _ = form_of(inputs, (), scalars)
        if form is None or not all(isinstance(each, TORCH.types) for each in inputs):
            raise BackendError(
                "a graph takes plain PyTorch tensors",
                subject=f"{self._name}: graphed()",
                facts=[("given", ", ".join(type(each).__name__ for each in inputs))],
                hint="convert with torch.from_dlpack, detach tensors that require grad, or call "
                "the kernel itself",
            )
        read = tuple((place, addresses[place]) for place in self._read)
        key = (form, *read)
        found = self._graphs.get(key)
        if found is None:
            found = self._capture(inputs, scalars)
            if len(self._graphs) >= _KEPT:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[key] = found
        if not scalars:
            self._like = addresses_like(inputs), read, found
        return found

    def _results(self, results: tuple[Any, ...], outs: tuple[Any, ...]) -> Any:
        """The results, or `outs` with copies of them."""
        if not outs:
            return results[0] if len(results) == 1 else results
        if [_kind(each) for each in outs] != [_kind(each) for each in results]:
            raise BackendError(
                f"out= is {_described(outs)}",
                subject=f"{self._name}: graphed()",
                facts=[("allowed", _described(results))],
                hint="pass tensors like the results, or take what the call returns",
            )
        for given, result in zip(outs, results, strict=True):
            given.copy_(result)
        return outs[0] if len(outs) == 1 else outs

    def _capture(self, inputs: tuple[Any, ...], scalars: Mapping[str, Any]) -> _Captured:
        """Run once on a stream of its own, then record the same."""
        torch: Any = importlib.import_module("torch")
        if torch.cuda.is_current_stream_capturing():
            raise BackendError(
                "the current stream is being captured already",
                subject=f"{self._name}: graphed()",
                hint="call the kernel itself there: it is captured with what is around it",
            )
        held = tuple(
            each.clone() if place in self._copied else each for place, each in enumerate(inputs)
        )
        device = inputs[0].device if inputs else torch.device("cuda")
        with torch.cuda.device(device):
            here, aside = torch.cuda.current_stream(), torch.cuda.Stream()
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                results = self._call(held, (), scalars)
            here.wait_stream(aside)
            graph: Any = None
            if any(each.numel() for each in _tuple(results)):
                graph = torch.cuda.CUDAGraph()
                try:
                    torch.cuda.synchronize()
                    with torch.cuda.stream(aside), recording(torch, graph):
                        results = self._call(held, (), scalars)
                except RuntimeError as error:
                    raise BackendError(
                        f"the device cannot capture the call: {error}",
                        subject=f"{self._name}: graphed()",
                        hint="call the kernel itself",
                    ) from error
        return _Captured(graph, held, self._copied, _tuple(results))


def _tuple(results: Any) -> tuple[Any, ...]:
    return cast(tuple[Any, ...], results) if isinstance(results, tuple) else (results,)


def _kind(tensor: Any) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.device


def _described(tensors: Sequence[Any]) -> str:
    return ", ".join(f"{each.dtype}{list(each.shape)} on {each.device}" for each in tensors)


def _places(module: Module, copied: Sequence[str] | None) -> tuple[int, ...]:
    """The places of the inputs with these names."""
    names = [buffer.name for buffer in module.inputs]
    unknown = [name for name in copied or () if name not in names]
    if unknown:
        raise BackendError(
            f"no input is called {unknown[0]!r}",
            subject=f"{module.name}: graphed(copied=)",
            facts=[("allowed", ", ".join(names))],
            hint="name inputs, or leave copied= away to copy all of them",
        )
    return tuple(n for n, name in enumerate(names) if copied is None or name in copied)


def _require_capturable(module: Module, target: Target) -> None:
    """Refuse what no graph can hold.

    Raises:
        BackendError: another target than CUDA, or a function of the host among the kernels.
    """
    if target.kind is not TargetKind.CUDA:
        raise BackendError(
            f"target {target} has no graphs",
            subject=f"{module.name}: graphed()",
            hint='build with target="cuda", or call the kernel itself',
        )
    for run in module.runs():
        if isinstance(run, HostCall):
            raise BackendError(
                f"{run.name} is computed by a function of the host, which a graph would call once "
                "and not at each replay",
                subject=f"{module.name}: graphed()",
                hint="call the kernel itself, or write what the function does in the language",
            )
