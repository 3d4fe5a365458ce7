"""Launch a program on an NVIDIA GPU, with PyTorch tensors as memory.

The first call for a combination of sizes and pointer alignment compiles through Triton's JIT and
prepares a plan (`launch_plan`): per kernel the grid, the compiled function and where its arguments
come from.  Later calls enter the C launcher directly (`c_launcher`), which costs a few microseconds
per kernel instead of the JIT's ten.  Whatever the installed Triton does not offer in the expected
form falls back to `CompiledKernel.run`, and `safe=True` to `kernel[grid](...)`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tedsl.backends.call_fragments import Inlined
from tedsl.backends.triton.compile.assembler import assembled
from tedsl.backends.triton.compile.offline import load_source
from tedsl.backends.triton.emit.program import (
    ALIGNMENT,
    KernelSpec,
    Param,
    ParamKind,
    TritonProgram,
    described,
    evaluate,
)
from tedsl.backends.triton.launch.c_launcher import entry
from tedsl.backends.triton.launch.launch_plan import (
    Described,
    Plan,
    Step,
    Workspace,
    inlined,
    packed,
    picker,
)
from tedsl.backends.triton.launch.semaphores import Counters
from tedsl.errors import BackendError, InternalError
from tedsl.expr.nodes import Var
from tedsl.ir.nodes import Buffer, HostCall
from tedsl.packages import install
from tedsl.tensor.foreign import PythonFunction, run_on_arrays

MAX_PLANS = 4096
Sizes = tuple[int | float, ...]
Shapes = list[tuple[tuple[int, ...], Any, int]]


class CudaProgram:
    """A program ready to be launched.  Nothing is imported or compiled before the first call.

    Args:
        program: made by `emit` for a "cuda" target.
    """

    def __init__(self, program: TritonProgram) -> None:
        self.program = program
        module = program.module
        spaces = (*module.workspaces, *module.counters)
        self._buffers: tuple[Buffer, ...] = (*module.inputs, *module.outputs, *spaces)
        self._count = len(module.inputs) + len(module.outputs)
        self._place = {buffer: place for place, buffer in enumerate(self._buffers)}
        self._described = {
            self._place[param.buffer]
            for spec in program.kernels
            for param in spec.params
            if param.kind is ParamKind.DESCRIPTOR and param.buffer is not None
        }
        self._plans: dict[tuple[Sizes, int, int], Plan] = {}
        self._torch: Any = None
        self._stream_of: Callable[[int], int] = _no_stream
        self._current: Callable[[], int] = _no_device

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
        device = tensors[0].get_device() if tensors else torch.cuda.current_device()
        if device < 0:
            raise BackendError(
                "a tensor is not on a GPU", hint='move it there with .cuda(), or use target="cpu"'
            )
        if safe:
            with torch.cuda.device(device):
                return self._run_safely(tensors, sizes, device)
        return self.bound(sizes, device)([tensor.data_ptr() for tensor in tensors], tensors)

    def bound(self, sizes: Sizes, device: int) -> Callable[[list[int], Sequence[Any]], None]:
        """A function of (addresses, tensors) that runs all kernels on the current stream of a
        device, with these sizes; addresses and tensors are those of the inputs, then the outputs.
        """
        if self._torch is None:
            self._start()
        current, stream_of = self._current, self._stream_of
        last: list[Plan | None] = [None]  # of a call with every address aligned

        def launch(addresses: list[int], tensors: Sequence[Any]) -> None:
            if current() != device:
                with self._torch.cuda.device(device):
                    return launch(addresses, tensors)
            low = 0
            for address in addresses:
                low |= address
            plan = last[0] if not low % ALIGNMENT else None
            if plan is None:
                plan = self._plan(tensors, addresses, sizes, device)
                if not low % ALIGNMENT:
                    last[0] = plan
                if plan.staged:
                    return self._run_staged(plan, tensors, sizes, device)
            return plan.run(stream_of(device), addresses, tensors)

        return launch

    def inlined(self, sizes: Sizes, device: int) -> Inlined | None:
        """What `bound` does as text, after a call with these sizes and every address aligned; None
        without such a call, and where it is more than entering the C launcher.
        """
        aligned = (1 << self._count) - 1
        plan = self._plans.get((sizes, aligned, device))
        found = inlined(plan, self._count) if plan is not None else None
        if found is None:
            return None
        lines, names = found
        names.update(current=self._current, stream_of=self._stream_of, device=device)
        return Inlined(
            "current() != device", ("stream = stream_of(device)", *lines), ALIGNMENT, names
        )

    def _plan(
        self, tensors: Sequence[Any], addresses: Sequence[int], sizes: Sizes, device: int
    ) -> Plan:
        """The plan for these sizes and the alignment of each address."""
        aligned = 0
        for address in addresses:
            aligned = aligned * 2 + (address % ALIGNMENT == 0)
        plan = self._plans.get((sizes, aligned, device))
        if plan is None:
            plan = self._prepare(tensors, sizes, device)
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            self._plans[sizes, aligned, device] = plan
        return plan

    def _start(self) -> Any:
        """Import PyTorch and see that there is a GPU."""
        try:
            torch = importlib.import_module("torch")
        except ImportError as error:
            raise BackendError(
                "running on a GPU needs PyTorch for memory and streams",
                hint=f'{install("torch")}, or use target="cpu"',
            ) from error
        if not torch.cuda.is_available():
            raise BackendError(
                "no CUDA device is available to PyTorch",
                hint='use target="cpu", or "cuda:sm_90" to compile only; check the driver with '
                "nvidia-smi",
            )
        raw = getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", None)
        self._stream_of = raw or (lambda device: torch.cuda.current_stream(device).cuda_stream)
        own = getattr(getattr(torch, "_C", None), "_cuda_getDevice", None)
        self._current = own or torch.cuda.current_device
        self._torch = torch
        return torch

    def _prepare(self, tensors: Sequence[Any], sizes: Sizes, device: int) -> Plan:
        """Compile every kernel for these sizes and alignments."""
        torch = self._torch
        values = self._values(sizes)
        module = self.program.module
        shapes = self._shapes(module.workspaces, values)
        counts = self._shapes(module.counters, values)
        staged = tuple(
            place
            for place, tensor in enumerate(tensors)
            if place in self._described and tensor.data_ptr() % ALIGNMENT
        )
        everything = [
            self._aligned_like(tensor, device) if place in staged else tensor
            for place, tensor in enumerate(tensors)
        ]
        spaces = [*shapes, *counts]
        everything += [torch.empty(shape, dtype=kind, device=device) for shape, kind, _ in spaces]
        source = load_source(self.program.source)
        groups: list[tuple[int, list[Step]]] = []
        for times, known, specs in self.program.launches(values):
            steps: list[Step] = []
            for spec in specs:
                if spec.call is not None:
                    steps.append(Step(_nothing, tuple, [], call=self._host(spec.call)))
                    continue
                grid = spec.grid_for(known)
                if 0 not in grid:
                    function = getattr(source, spec.name)
                    steps.append(self._step(function, spec, grid, everything, known))
            groups.append((times, steps))
        workspaces, nbytes = packed(shapes)

        def allocate() -> Any:
            return torch.empty(nbytes, dtype=torch.uint8, device=device)

        counters, count = self._counters(counts, device)
        return Plan(groups, workspaces, allocate, staged, counters, count)

    def _counters(
        self, shapes: Shapes, device: int
    ) -> tuple[tuple[Workspace, ...], Callable[[int], Any] | None]:
        """Where counters lie, and the memory they lie in on each stream."""
        torch = self._torch
        found, nbytes = packed(shapes)
        if not found:
            return (), None

        def cleared() -> Any:
            return torch.zeros(nbytes, dtype=torch.uint8, device=device)

        return found, Counters(cleared, torch.cuda.is_current_stream_capturing).on

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
    ) -> Step:
        """Compile one kernel and find the quickest way into it."""
        args = [self._argument(param, tensors, values) for param in spec.params]
        kernel, _ = _compiled(function, spec, grid, args)
        counters = {repeat.step for repeat in self.program.module.repeats}
        buffers = len(self._buffers)
        numbers = [  # what is neither an address nor the number of the repetition
            place
            for place, param in enumerate(spec.params)
            if param.buffer is None and (param.var is None or param.var not in counters)
        ]
        places: list[int] = []
        maps: list[Described] = []
        for place, param in enumerate(spec.params):
            if param.buffer is None:
                counted = place not in numbers
                places.append(buffers + (len(numbers) if counted else numbers.index(place)))
                continue
            source = self._place[param.buffer]
            places.append(source)
            if param.kind is not ParamKind.POINTER:
                make = partial(_descriptor, buffer=param.buffer, block=param.block)
                maps.append(Described(place, source, make))
        enter, encode, raw = entry(kernel, grid, bool(maps))
        constants = [args[place] for place in numbers]
        return Step(
            enter,
            picker(places),
            constants,
            tuple(maps),
            encode,
            raw=raw,
            places=tuple(places),
        )

    def _argument(
        self, param: Param, tensors: Sequence[Any], values: Mapping[Var, int | float]
    ) -> Any:
        if param.buffer is None:
            return values[param.var] if param.var is not None else None
        tensor = tensors[self._place[param.buffer]]
        if param.kind is ParamKind.POINTER:
            return tensor.view(self._torch.uint8) if param.as_bytes else tensor
        return _descriptor(tensor, param.buffer, param.block)

    def _values(self, sizes: Sizes) -> dict[Var, int | float]:
        return dict(zip(self.program.module.sizes, sizes, strict=True))

    def _shapes(self, buffers: Sequence[Buffer], values: Mapping[Var, int | float]) -> Shapes:
        """Of each buffer the shape, PyTorch's dtype, and the bytes of an element; an extent below
        0, of what a kernel reads that does not run, is 0."""
        return [
            (
                tuple(max(evaluate(extent, values), 0) for extent in buffer.shape),
                getattr(self._torch, buffer.dtype.value),
                buffer.dtype.nbytes,
            )
            for buffer in buffers
        ]

    def _aligned_like(self, tensor: Any, device: int) -> Any:
        return self._torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device=device)

    def _run_staged(self, plan: Plan, tensors: Sequence[Any], sizes: Sizes, device: int) -> None:
        """Copy tensors that descriptors need aligned to aligned memory, and results back."""
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
        everything, module = list(tensors), self.program.module
        for shape, dtype, _ in self._shapes(module.workspaces, values):
            everything.append(self._torch.empty(shape, dtype=dtype, device=device))
        for shape, dtype, _ in self._shapes(module.counters, values):
            everything.append(self._torch.zeros(shape, dtype=dtype, device=device))
        source = load_source(self.program.source)
        steps = {repeat.step for repeat in module.repeats}
        for times, known, specs in self.program.launches(values):
            for number in range(times):
                known = {var: number if var in steps else size for var, size in known.items()}
                for spec in specs:
                    if spec.call is not None:
                        self._host(spec.call)(everything)
                        continue
                    self._run_one(getattr(source, spec.name), spec, everything, known)

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
        _, options = _compiled(function, spec, grid, args)
        try:
            function[grid](*args, **options)
        except _errors() as error:
            raise _compile_error(spec, error) from error


def _nothing(stream: int, args: Sequence[Any]) -> None:
    """The launch of a step without a kernel."""


def _no_stream(device: int) -> int:
    raise InternalError(f"device {device} was not started")


def _no_device() -> int:
    raise InternalError("no device was started")


def _descriptor(tensor: Any, buffer: Buffer, block: tuple[int, ...]) -> Any:
    """A host tensor descriptor of what a contiguous tensor holds: not of the ends of its rows that
    are there to align them."""
    tools = importlib.import_module("triton.tools.tensor_descriptor")
    held = described(buffer) or list(tensor.shape)
    try:
        return tools.TensorDescriptor(tensor, held, _steps(tensor), list(block))
    except AssertionError as error:
        raise BackendError(
            f"no tensor descriptor of {buffer.name!r}: {error}",
            hint="pass a contiguous, 16-byte aligned tensor",
        ) from error


def _steps(tensor: Any) -> list[int]:
    """Strides in elements, of dimensions of one element too, for which tensors may have any."""
    steps = list(tensor.stride())
    for dim in reversed(range(len(steps))):
        if tensor.shape[dim] == 1:
            last = dim + 1 == len(steps)
            steps[dim] = 1 if last else steps[dim + 1] * tensor.shape[dim + 1]
    return steps


def _compiled(
    function: Any, spec: KernelSpec, grid: tuple[int, int, int], args: list[Any]
) -> tuple[Any, dict[str, Any]]:
    """The compiled kernel for these arguments, loaded on the device, and its options."""

    def compiled(options: dict[str, Any]) -> Any:
        kernel = function.warmup(*args, grid=grid, **options)
        return kernel.result() if hasattr(kernel, "result") else kernel

    try:
        kernel, options = assembled(compiled, spec.options())
        if kernel.run is None:
            raise RuntimeError("the kernel was not loaded")
    except _errors() as error:
        raise _compile_error(spec, error) from error
    return kernel, options


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
