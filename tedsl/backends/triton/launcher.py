"""Launch a program on an NVIDIA GPU, with PyTorch tensors as memory.

The first call for a combination of sizes and pointer alignment compiles through Triton's JIT and
prepares a plan: per kernel the grid, the compiled function and its argument list with holes for
addresses.  Later calls fill the holes and enter the C launcher directly, which costs a few
microseconds per kernel instead of the JIT's ten.  Tensor maps of descriptors are encoded once per
address.  Whatever the installed Triton does not offer in the expected form falls back to
`CompiledKernel.run`, and `safe=True` to `kernel[grid](...)`.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tedsl.backends.triton.offline import load_source
from tedsl.backends.triton.program import (
    KernelSpec,
    Param,
    ParamKind,
    TritonProgram,
    evaluate,
)
from tedsl.dtypes import DType
from tedsl.errors import BackendError, InternalError
from tedsl.expr.foreign import PythonFunction, run_on_arrays
from tedsl.expr.nodes import Var
from tedsl.ir.nodes import Buffer, HostCall

ALIGNMENT = 16
MAX_PLANS = 4096
MAX_MAPS = 64
Sizes = tuple[int | float, ...]


@dataclass(slots=True)
class _Step:
    """One kernel of a plan.

    `args` has None where an address goes; `pointers` are (place in args, place in addresses);
    `descriptors` are (place in args, place in addresses, block).  `counter` is the place of the
    number of the repetition, if the kernel is repeated.  `enter` is what to call: with
    (stream, args) it launches.  A step with a `call` is no kernel: it calls a function of the host,
    on all tensors.
    """

    enter: Callable[[int, list[Any]], object]
    args: list[Any]
    pointers: tuple[tuple[int, int], ...]
    descriptors: tuple[tuple[int, int, tuple[int, ...]], ...]
    encode: Callable[[Any, int], list[Any]] | None
    counter: int | None = None
    call: Callable[[Sequence[Any]], None] | None = None
    maps: dict[tuple[int, int], list[Any]] = field(default_factory=dict[tuple[int, int], list[Any]])


@dataclass(slots=True)
class _Plan:
    """All launches of one call, in groups of (repetitions, kernels); `workspaces` are (shape, torch
    dtype), `staged` the tensors that descriptors need at an aligned address and do not have
    there."""

    groups: list[tuple[int, list[_Step]]]
    workspaces: list[tuple[tuple[int, ...], Any]]
    staged: tuple[int, ...]


class CudaProgram:
    """A program ready to be launched.  Nothing is imported or compiled before the first call.

    Args:
        program: made by `emit` for a "cuda" target.
    """

    def __init__(self, program: TritonProgram) -> None:
        self.program = program
        module = program.module
        self._buffers: tuple[Buffer, ...] = (*module.inputs, *module.outputs, *module.workspaces)
        self._count = len(module.inputs) + len(module.outputs)
        self._place = {buffer: place for place, buffer in enumerate(self._buffers)}
        self._described = {
            self._place[param.buffer]
            for spec in program.kernels
            for param in spec.params
            if param.kind is ParamKind.DESCRIPTOR and param.buffer is not None
        }
        self._plans: dict[tuple[Sizes, int, int], _Plan] = {}
        self._torch: Any = None
        self._stream_of: Callable[[int], int] = _no_stream

    def __call__(self, tensors: Sequence[Any], sizes: Sizes = (), safe: bool = False) -> None:
        """Run all kernels on the current stream of the tensors' device.

        Args:
            tensors: contiguous CUDA tensors: the module's inputs, then its outputs.
            sizes: values of the module's sizes, in order.
            safe: launch through `kernel[grid](...)`, slower by far.

        Raises:
            BackendError: no GPU, PyTorch or Triton; the kernel does not compile or fit.
        """
        torch = self._torch or self._start()
        addresses = [tensor.data_ptr() for tensor in tensors]
        aligned = 0
        for address in addresses:
            aligned = aligned * 2 + (address % ALIGNMENT == 0)
        device = tensors[0].get_device() if tensors else torch.cuda.current_device()
        if device < 0:
            raise BackendError(
                "a tensor is not on a GPU", hint='move it there with .cuda(), or use target="cpu"'
            )
        if device != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(tensors, sizes, safe)
        if safe:
            return self._run_safely(tensors, sizes, device)
        plan = self._plans.get((sizes, aligned, device))
        if plan is None:
            plan = self._prepare(tensors, sizes, device)
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[sizes, aligned, device] = plan
        if plan.staged:
            return self._run_staged(plan, tensors, sizes, device)
        return self._launch(plan, tensors, addresses, device)

    def _launch(
        self, plan: _Plan, tensors: Sequence[Any], addresses: list[int], device: int
    ) -> None:
        """Fill in addresses and enter the launcher, once per kernel."""
        held: list[Any] = []
        for shape, dtype in plan.workspaces:
            held.append(self._torch.empty(shape, dtype=dtype, device=device))
            addresses.append(held[-1].data_ptr())
        stream = self._stream_of(device)
        for times, steps in plan.groups:
            for number in range(times):
                for step in steps:
                    if step.call is not None:
                        step.call((*tensors, *held))
                        continue
                    args = step.args.copy()
                    for place, source in step.pointers:
                        args[place] = addresses[source]
                    if step.counter is not None:
                        args[step.counter] = number
                    try:
                        if step.descriptors:
                            args = self._with_maps(step, args, (*tensors, *held), addresses)
                        step.enter(stream, args)
                    except RuntimeError as error:
                        raise _launch_error(error) from error

    def _with_maps(
        self, step: _Step, args: list[Any], tensors: Sequence[Any], addresses: list[int]
    ) -> list[Any]:
        """`args` with each descriptor as its encoded map, or as an object for the slow entry."""
        starts = {place: (source, block) for place, source, block in step.descriptors}
        result: list[Any] = []
        for place, arg in enumerate(args):
            if place not in starts:
                result.append(arg)
                continue
            source, block = starts[place]
            key = (place, addresses[source])
            found = step.maps.get(key)
            if found is None:
                descriptor = _descriptor(tensors[source], self._buffers[source].name, block)
                found = [descriptor] if step.encode is None else step.encode(descriptor, place)
                if len(step.maps) >= MAX_MAPS:
                    step.maps.clear()
                step.maps[key] = found
            result.extend(found)
        return result

    def _start(self) -> Any:
        """Import PyTorch and see that there is a GPU."""
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            raise BackendError(
                "running on a GPU needs PyTorch for memory and streams",
                hint='pip install "tedsl[torch]", or use target="cpu"',
            ) from error
        if not torch.cuda.is_available():
            raise BackendError(
                "no CUDA device is available to PyTorch",
                hint='use target="cpu", or "cuda:sm_90" to compile only; check the driver with '
                "nvidia-smi",
            )
        raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
        self._stream_of = raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)
        self._torch = torch
        return torch

    def _prepare(self, tensors: Sequence[Any], sizes: Sizes, device: int) -> _Plan:
        """Compile every kernel for these sizes and alignments."""
        values = self._values(sizes)
        workspaces = self._workspace_shapes(values)
        staged = tuple(
            place
            for place, tensor in enumerate(tensors)
            if place in self._described and tensor.data_ptr() % ALIGNMENT
        )
        everything = [
            self._aligned_like(tensor, device) if place in staged else tensor
            for place, tensor in enumerate(tensors)
        ]
        for shape, dtype in workspaces:
            everything.append(self._torch.empty(shape, dtype=dtype, device=device))
        module = load_source(self.program.source)
        groups: list[tuple[int, list[_Step]]] = []
        for times, known, specs in self._launches(values):
            steps: list[_Step] = []
            for spec in specs:
                if spec.call is not None:
                    steps.append(_Step(_nothing, [], (), (), None, call=self._host(spec.call)))
                    continue
                grid = spec.grid_for(known)
                if 0 not in grid:
                    function = getattr(module, spec.name)
                    steps.append(self._step(function, spec, grid, everything, known))
            groups.append((times, steps))
        return _Plan(groups, workspaces, staged)

    def _launches(
        self, values: Mapping[Var, int | float]
    ) -> Iterator[tuple[int, dict[Var, int | float], list[KernelSpec]]]:
        """Repetitions, sizes with the last repetition's number, and kernels, in order."""
        for repeat, places in self.program.module.launches():
            specs = [self.program.kernels[place] for place in places]
            if repeat is None:
                yield 1, dict(values), specs
                continue
            times = int(evaluate(repeat.extent, values))
            if times > 0:
                yield times, {**values, repeat.step: times - 1}, specs

    def _host(self, call: HostCall) -> Callable[[Sequence[Any]], None]:
        """The call of a function of PyTorch tensors, which run at the current stream."""
        ins = [self._place[buffer] for buffer in call.inputs]
        outs = [self._place[buffer] for buffer in call.outputs]
        function, name = call.function, call.name
        if not isinstance(function, PythonFunction):
            raise InternalError(f"the extern {name} calls {function.label} on a GPU")

        def run(tensors: Sequence[Any]) -> None:
            given = tuple(tensors[place] for place in ins)
            run_on_arrays(function, name, given, tuple(tensors[place] for place in outs))

        return run

    def _step(
        self,
        function: Any,
        spec: KernelSpec,
        grid: tuple[int, int, int],
        tensors: Sequence[Any],
        values: Mapping[Var, int | float],
    ) -> _Step:
        """Compile one kernel and find the quickest way into it."""
        args = [self._argument(param, tensors, values) for param in spec.params]
        kernel = _compiled(function, spec, grid, args)
        holes: list[Any] = []
        pointers: list[tuple[int, int]] = []
        descriptors: list[tuple[int, int, tuple[int, ...]]] = []
        for place, (param, arg) in enumerate(zip(spec.params, args, strict=True)):
            if param.buffer is None:
                holes.append(arg)
                continue
            source = self._place[param.buffer]
            if param.kind is ParamKind.POINTER:
                pointers.append((place, source))
            else:
                descriptors.append((place, source, param.block))
            holes.append(None)
        enter, encode = entry(kernel, grid, bool(descriptors))
        steps = {repeat.step for repeat in self.program.module.repeats}
        counters = [n for n, p in enumerate(spec.params) if p.var is not None and p.var in steps]
        counter = counters[0] if counters else None
        return _Step(enter, holes, tuple(pointers), tuple(descriptors), encode, counter)

    def _argument(
        self, param: Param, tensors: Sequence[Any], values: Mapping[Var, int | float]
    ) -> Any:
        if param.buffer is None:
            return values[param.var] if param.var is not None else None
        tensor = tensors[self._place[param.buffer]]
        if param.kind is ParamKind.POINTER:
            return tensor
        return _descriptor(tensor, param.buffer.name, param.block)

    def _values(self, sizes: Sizes) -> dict[Var, int | float]:
        return dict(zip(self.program.module.sizes, sizes, strict=True))

    def _workspace_shapes(
        self, values: Mapping[Var, int | float]
    ) -> list[tuple[tuple[int, ...], Any]]:
        return [
            (tuple(evaluate(extent, values) for extent in buffer.shape), self._dtype(buffer.dtype))
            for buffer in self.program.module.workspaces
        ]

    def _dtype(self, dtype: DType) -> Any:
        return getattr(self._torch, dtype.value)

    def _aligned_like(self, tensor: Any, device: int) -> Any:
        return self._torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=device)

    def _run_staged(self, plan: _Plan, tensors: Sequence[Any], sizes: Sizes, device: int) -> None:
        """Copy what descriptors need aligned to aligned memory, and results back."""
        inputs = len(self.program.module.inputs)
        moved = list(tensors)
        for place in plan.staged:
            moved[place] = self._aligned_like(tensors[place], device)
            moved[place].copy_(tensors[place])
        self(moved, sizes)
        for place in plan.staged:
            if place >= inputs:
                tensors[place].copy_(moved[place])

    def _run_safely(self, tensors: Sequence[Any], sizes: Sizes, device: int) -> None:
        """Launch through Triton's documented interface."""
        values = self._values(sizes)
        everything = list(tensors)
        for shape, dtype in self._workspace_shapes(values):
            everything.append(self._torch.empty(shape, dtype=dtype, device=device))
        module = load_source(self.program.source)
        steps = {repeat.step for repeat in self.program.module.repeats}
        for times, known, specs in self._launches(values):
            for number in range(times):
                known = {var: number if var in steps else size for var, size in known.items()}
                for spec in specs:
                    if spec.call is not None:
                        self._host(spec.call)(everything)
                        continue
                    self._run_one(getattr(module, spec.name), spec, everything, known)

    def _run_one(
        self,
        function: Any,
        spec: KernelSpec,
        tensors: Sequence[Any],
        values: Mapping[Var, int | float],
    ) -> None:
        """One launch through Triton's documented interface."""
        grid = spec.grid_for(values)
        if 0 in grid:
            return
        args = [self._argument(param, tensors, values) for param in spec.params]
        try:
            function[grid](*args, **spec.options())
        except _errors() as error:
            raise _compile_error(spec, error) from error


def _nothing(stream: int, args: list[Any]) -> None:
    """The launch of a step without a kernel."""


def _no_stream(device: int) -> int:
    raise BackendError(f"device {device} was not started")


def _descriptor(tensor: Any, name: str, block: tuple[int, ...]) -> Any:
    """A host tensor descriptor of a contiguous tensor."""
    tools = importlib.import_module("triton.tools.tensor_descriptor")
    try:
        return tools.TensorDescriptor(
            tensor, list(tensor.shape), list(tensor.stride()), list(block)
        )
    except AssertionError as error:
        raise BackendError(
            f"no tensor descriptor of {name!r}: {error}",
            hint="pass a contiguous, 16-byte aligned tensor",
        ) from error


def _compiled(function: Any, spec: KernelSpec, grid: tuple[int, int, int], args: list[Any]) -> Any:
    """The compiled kernel for these arguments, loaded on the device."""
    try:
        kernel = function.warmup(*args, grid=grid, **spec.options())
        if hasattr(kernel, "result"):
            kernel = kernel.result()
        if kernel.run is None:
            raise RuntimeError("the kernel was not loaded")
    except _errors() as error:
        raise _compile_error(spec, error) from error
    return kernel


def _errors() -> tuple[type[Exception], ...]:
    """What Triton raises when a kernel cannot be compiled, loaded or launched."""
    compiler = importlib.import_module("triton.compiler.errors")
    runtime = importlib.import_module("triton.runtime.errors")
    names = ("OutOfResources", "PTXASError")
    found = [getattr(runtime, name) for name in names if hasattr(runtime, name)]
    found += [compiler.CompilationError, RuntimeError, ValueError, TypeError, AssertionError]
    return tuple(found)


def _compile_error(spec: KernelSpec, error: Exception) -> BackendError:
    required, limit = getattr(error, "required", None), getattr(error, "limit", None)
    if required is not None:
        resource = getattr(error, "name", "resources")
        return BackendError(
            f"kernel {spec.name} needs {required} of {resource}, the device has {limit}",
            facts=[("options", str(spec.options()))],
            hint="use smaller tiles or fewer pipeline stages",
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return BackendError(
        f"Triton cannot build kernel {spec.name}: {lines[-1] if lines else type(error).__name__}",
        facts=[("options", str(spec.options()))],
        hint="try smaller tiles, fewer stages or other num_warps; kernel.source shows the text",
    )


def _launch_error(error: RuntimeError) -> BackendError:
    return BackendError(
        f"the GPU refused the launch: {error}",
        hint="an earlier kernel may have failed: set CUDA_LAUNCH_BLOCKING=1 and run again; a "
        "device that met an illegal address needs a new process",
    )


Enter = Callable[[int, list[Any]], object]
Encode = Callable[[Any, int], list[Any]]


def entry(kernel: Any, grid: tuple[int, int, int], described: bool) -> tuple[Enter, Encode | None]:
    """How to launch a compiled kernel: (enter, encode of a descriptor).

    Without an `encode`, `enter` takes descriptor objects.
    """
    launcher, function, metadata = kernel.run, kernel.function, kernel.packed_metadata
    raw = getattr(launcher, "launch", None)
    encode: Encode | None = None
    if described and raw is not None:
        raw, encode = _unwrapped(raw, kernel)
    scratch = getattr(launcher, "global_scratch_size", 1) or getattr(
        launcher, "profile_scratch_size", 1
    )
    if raw is None or scratch or getattr(launcher, "gsan_enabled", False):
        return _slow_entry(launcher, grid, function, metadata), None
    head = (function, launcher.launch_cooperative_grid, launcher.launch_pdl)
    if hasattr(launcher, "arg_annotations") and hasattr(launcher, "kernel_signature"):
        tail = (metadata, None, None, None, None, None)
        notes, types = launcher.arg_annotations, launcher.kernel_signature

        def enter_list(stream: int, args: list[Any]) -> object:
            return raw(*grid, stream, *head, *tail, notes, types, args)

        return enter_list, encode
    if len(inspect.signature(type(launcher).__call__).parameters) == 7:
        tail = (None, None, metadata, None, None, None)

        def enter_flat(stream: int, args: list[Any]) -> object:
            return raw(*grid, stream, *head, *tail, *args)

        return enter_flat, encode
    return _slow_entry(launcher, grid, function, metadata), None


def _slow_entry(launcher: Any, grid: tuple[int, int, int], function: Any, metadata: Any) -> Enter:
    def enter(stream: int, args: list[Any]) -> object:
        return launcher(*grid, stream, function, metadata, None, None, None, *args)

    return enter


def _unwrapped(wrapped: Any, kernel: Any) -> tuple[Any, Encode | None]:
    """(C launcher inside the wrapper that encodes descriptors, encoder); (None, None) if unlike."""
    if not inspect.isfunction(wrapped):
        return None, None
    inner: Mapping[str, Any] = inspect.getclosurevars(wrapped).nonlocals
    metas = getattr(kernel.metadata, "tensordesc_meta", None)
    driver = importlib.import_module("triton.backends.nvidia.driver")
    make = getattr(driver, "make_tensordesc_arg", None)
    if "launcher" not in inner or not metas or make is None or None in list(metas):
        return None, None
    count = len(inspect.signature(make).parameters)
    places = [
        place
        for place, kind in enumerate(kernel.src.signature.values())
        if isinstance(kind, str) and kind.startswith("tensordesc")
    ]
    if len(places) != len(metas):
        return None, None
    by_place = dict(zip(places, metas, strict=True))

    def encode(descriptor: Any, place: int) -> list[Any]:
        extra = (None,) * (count - 2)
        return list(make(descriptor, by_place[place], *extra))

    return inner["launcher"], encode
