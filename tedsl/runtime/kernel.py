"""A compiled kernel: callable, and open to inspection.

A call does the full argument check once per combination of shapes, strides, dtypes and devices;
what it found is kept, and later calls like it only read pointers.  A call like the last one is
told by a few comparisons, others by a look-up; on a GPU it becomes one function (`direct`).
Imports the other files of `runtime`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import methodcaller
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from tedsl import saving
from tedsl.backends.call_fragments import Inlined
from tedsl.counterparts import KERNEL
from tedsl.errors import BackendError
from tedsl.expr.nodes import Var
from tedsl.ir.nodes import Module
from tedsl.ir.printer import print_expr, print_module
from tedsl.runtime.arguments.index_ranges import SAFE_SIZE, check_ranges
from tedsl.runtime.arguments.order import ArgumentOrder
from tedsl.runtime.arguments.signature import ArraySpec, Binding, Signature
from tedsl.runtime.arguments.sizes import Number, launched
from tedsl.runtime.arrays.allocation import numpy_allocator, torch_allocator
from tedsl.runtime.arrays.views import (
    OPERATOR,
    ArrayView,
    Device,
    is_packable,
    numpy_pointer,
    packed,
)
from tedsl.runtime.calls.direct import MISS, Direct, TensorCall, direct, missed
from tedsl.runtime.calls.forms import TORCH, Addresses, addresses_like, form_of, guard_of
from tedsl.runtime.calls.graphed import GraphedKernel
from tedsl.runtime.like_module import LikeModule
from tedsl.shown import Viewable
from tedsl.slips import suggests
from tedsl.target import Target
from tedsl.tensor.signatures import explained_methods

if TYPE_CHECKING:
    from tedsl.explaining.data import Explanation

Launch = Callable[[list[int], Sequence[Any]], None]
_KEPT = 512  # bindings a kernel keeps before it forgets them all
_FEW = 8  # arrays of which every pair is compared
_MAX_ITEM = 8  # bytes of the widest element
_VECTOR = 16  # bytes that a GPU reads at once
_torch_pointer: Callable[[Any], int] = methodcaller("data_ptr")


_LIBRARIES = (".o", ".so", ".tar", ".ptx", ".cubin")


class Executor(Protocol):
    """Code for one target that can run, or says why it cannot."""

    @property
    def device(self) -> Device:
        """Where a call without inputs runs; arguments have to be on a device of this kind."""
        ...

    @property
    def source(self) -> str:
        """The generated program."""
        ...

    @property
    def asm(self) -> str:
        """What the target's compiler made of it."""
        ...

    @property
    def resources(self) -> Mapping[str, Any]:
        """Figures per kernel that are known without running, such as registers."""
        ...

    @property
    def code(self) -> str:
        """A digest that kernels share which run the same code in the same way."""
        ...

    @property
    def from_cache(self) -> bool:
        """True when the code was found on disk."""
        ...

    def check_runnable(self) -> None:
        """Refuse where the code cannot run here at all."""
        ...

    def adopt(self, array: Any) -> Any:
        """A checked argument in the form that `prepare`'s function takes, over the same memory."""
        ...

    def workspaces(self, binding: Binding) -> tuple[ArraySpec, ...]:
        """The workspaces that the caller allocates."""
        ...

    def prepare(self, binding: Binding) -> Launch:
        """A function that runs the kernels on (addresses, arrays): inputs, outputs, workspaces."""
        ...

    def inlined(self, binding: Binding) -> Inlined | None:
        """What that function launches as text, once it has been called with aligned addresses; None
        where it does more."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Prepared:
    """What one combination of argument forms needs at each call."""

    binding: Binding
    launch: Launch
    allocators: tuple[Callable[[], Any], ...]  # outputs, then workspaces
    workspaces: tuple[Callable[[], Any], ...]
    items: tuple[int, ...]  # bytes of one element of each input and output
    nbytes: tuple[int, ...]  # bytes of each input and output
    count: int  # outputs
    pointer_of: Callable[[Any], int]  # of an array made here
    versions: tuple[int, ...]  # places of the kernels that are versions and run

    def misaligned(self, pointers: Sequence[int]) -> bool:
        """True when an address is no multiple of its element size."""
        return any(p % item for p, item in zip(pointers, self.items, strict=False))

    def outputs_unfit(self, pointers: Sequence[int], outs: Sequence[Any]) -> bool:
        """True when an output is read-only, or shares a byte with another argument."""
        for array in outs:
            if type(array) is np.ndarray and not array.flags.writeable:
                return True
        first = len(pointers) - len(outs)
        nbytes = self.nbytes
        if len(pointers) <= _FEW:
            for place in range(first, len(pointers)):
                begin, size = pointers[place], nbytes[place]
                for other in range(place):
                    start = pointers[other]
                    if start < begin + size and begin < start + nbytes[other]:
                        return True
            return False
        # In the order of their addresses, each is compared with where all before it have ended.
        end = written = 0
        for begin, place in sorted(zip(pointers, range(len(pointers)), strict=True)):
            if nbytes[place] == 0:
                continue
            stop = begin + nbytes[place]
            if begin < written or (place >= first and begin < end):
                return True
            end = max(end, stop)
            if place >= first:
                written = max(written, stop)
        return False


@dataclass(slots=True, eq=False)
class _Like:
    """What tells arguments, the last `outs` of them results, that have the form of `known`; and
    once it was `sought` a function for calls with them, which takes inputs `alone` if no result is
    given."""

    addresses: Addresses
    known: _Prepared
    outs: int
    direct: Direct = missed
    alone: bool = False
    sought: bool = False
    call: TensorCall | None = None


@suggests(BackendError)
@dataclass(frozen=True, slots=True)
class Specialization:
    """One version of a kernel: which, for which calls, and how many calls it has served."""

    kernel: str
    condition: str
    hits: int

    def __str__(self) -> str:
        return f"{self.kernel} when {self.condition}: {self.hits} calls"


@suggests(BackendError, KERNEL, "the kernel")
@explained_methods(BackendError)
class Kernel(Viewable, LikeModule):
    """Compiled code with the signature of a computation.  Made by `te.build`; safe to call from
    several threads.

    Attributes:
        module: the lowered loop IR.
        target: what it was built for.
        schedule: the schedule it was built from.
        signature: names, dtypes and shapes of arguments and results.
        build_seconds: time of each phase of the build.
        order: the order of the arguments where the build was given one.
        tuning: what the search that made it learnt (`tedsl.autotune.TuneResult`): its report, its
            trials, its plot; None for a kernel that no search made.
    """

    def __init__(
        self,
        module: Module,
        target: Target,
        executor: Executor,
        *,
        schedule: Any = None,
        build_seconds: Mapping[str, float] | None = None,
        order: ArgumentOrder | None = None,
    ) -> None:
        self.module = module
        self.target = target
        self.schedule = schedule
        self.signature = Signature.of(module)
        self.build_seconds = dict(build_seconds or {})
        self.order = order
        self._executor = executor
        self._known: dict[tuple[object, ...], _Prepared] = {}
        self._likes: dict[_Prepared, _Like] = {}
        self._like: _Like | None = None  # that of the last call that was found in `_known`
        self._last: list[Binding | None] = [None]  # that of the last call
        self._hits = [0] * len(module.funcs)
        self.tuning: Any = None

    @property
    def name(self) -> str:
        """The module's name."""
        return self.module.name

    @property
    def source(self) -> str:
        """The generated program: Triton source, or LLVM IR on the CPU."""
        return self._executor.source

    @property
    def ir(self) -> str:
        """The loop IR it was generated from, as text."""
        return print_module(self.module)

    @property
    def asm(self) -> str:
        """Machine code as text: assembly, or PTX."""
        return self._executor.asm

    @property
    def resources(self) -> Mapping[str, Any]:
        """Per kernel: registers, spills and shared memory on a GPU target; on the CPU what the
        assembly of the program shows."""
        return self._executor.resources

    @property
    def code(self) -> str:
        """A digest that kernels share which run the same machine code in the same way."""
        return self._executor.code

    @property
    def from_cache(self) -> bool:
        """True when the machine code came from the on-disk cache."""
        return self._executor.from_cache

    @property
    def specializations(self) -> tuple[Specialization, ...]:
        """The versions of kernels that `Stage.specialize` asked for or the lowering found, in the
        order in which their conditions are tried; the last of each kernel serves all other calls.
        Empty when one version serves every call.
        """
        return tuple(
            Specialization(func.name, print_expr(func.when), hits)
            for func, hits in zip(self.module.funcs, self._hits, strict=True)
            if func.when is not None
        )

    def __repr__(self) -> str:
        return f"<tedsl.Kernel {self.signature} for {self.target}>"

    @property
    def last_sizes(self) -> Mapping[Var, Number]:
        """The values of the runtime scalars in the last call; none before the first."""
        (last,) = self._last
        return last.values if last is not None else {}

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the kernel to a file.

        Args:
            path: `.html` for its page (`view`), `.txt` for the generated program, `.asm` for what
                the target's compiler made of it; of its schedule, `.py` for the steps as Python and
                `.json` for the trace (`te.Trace.from_json`, `te.replay` and `te.build` make the
                kernel again); `.o`, `.so`, `.tar`, `.ptx` and `.cubin` are for `export_library`.

        Returns:
            The path.

        Raises:
            BackendError: another ending, a kernel without a schedule, or a file that cannot be
                written.
        """
        writers: dict[str, saving.Writer] = {
            ".html": lambda chosen: self.view(chosen),
            ".txt": saving.text(lambda: self.source),
            ".asm": saving.text(lambda: self.asm),
        }
        if self.schedule is not None:
            writers[".py"] = saving.text(self.schedule.as_python)
            writers[".json"] = saving.text(self.schedule.trace.to_json)
        writers.update(dict.fromkeys(_LIBRARIES, self.export_library))
        return saving.save(path, "a kernel", writers)

    def explain(self, **sizes: int) -> Explanation:
        """What is fused, the memory each kernel moves, what it waits for, and why the rest is not
        fused: `te.explain(kernel)`.

        Args:
            sizes: values of runtime scalars by name; those not given are as in the last call.

        Raises:
            BackendError: a scalar without a value.
        """
        for var in self.signature.scalars:
            if var.name not in sizes and var not in self.last_sizes:
                raise BackendError(
                    f"the value of {var.name!r} is not known",
                    subject=f"{self.name}: explain()",
                    hint=f"call explain({var.name}=...), or call the kernel first",
                )
        upper: Any = importlib.import_module("tedsl.explaining.explain")
        found: Explanation = upper.explain(self, sizes=sizes)
        return found

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, _: object) -> Kernel:
        """The kernel itself: it does not change."""
        return self

    def __reduce__(self) -> str:
        raise BackendError(
            "a kernel cannot be pickled: it is code in the memory of this process",
            subject=self.signature.name,
            hint="pickle kernel.schedule and call te.build where it is wanted: its code is in the "
            "cache on disk",
        )

    def __call__(self, /, *inputs: Any, out: Any = None, **scalars: Any) -> Any:
        """Run the kernel.

        Args:
            inputs: arrays in the order of the signature: NumPy, PyTorch, or anything with DLPack.
            out: array, or tuple of arrays, to write the results to; allocated when absent.
            scalars: runtime scalars that no input shape determines, by name; and inputs, from the
                first that is not given by position on: `kernel(x=a, w=b)`.

        An input that is not contiguous is copied, with a RuntimeWarning.  A kernel built with a
        list of arguments (`te.build(s, [A, B, C])`) takes all of these by position or name
        instead, results included.

        Returns:
            The output array, or a tuple of them when there are several: those of `out`, else
            PyTorch tensors for PyTorch inputs and on the GPU, and NumPy arrays otherwise.

        Raises:
            BackendError: an argument that does not fit; nothing has run.
        """
        like = self._like
        if like is not None and like.alone and out is None and not scalars:
            result = like.direct(inputs)
            if result is not MISS:
                return result
        outs: tuple[Any, ...] = ()
        if self.order is not None:
            inputs, outs, scalars = self.order.spread(self.name, inputs, out, scalars)
        else:
            if scalars:
                inputs, scalars = self.signature.by_name(inputs, scalars)
            if out is not None:
                outs = self._given(out)
        arguments = (*inputs, *outs) if outs else inputs
        if like is None or scalars or len(outs) != like.outs:
            return self._call(inputs, outs, scalars)
        if outs and like.direct(arguments) is not MISS:
            return outs[0] if like.outs == 1 else outs
        pointers = like.addresses(arguments)
        if pointers is None:
            return self._call(inputs, outs, scalars)
        low = 0
        for pointer in pointers:
            low |= pointer
        if low % _MAX_ITEM or (outs and like.known.outputs_unfit(pointers, outs)):
            return self._call(inputs, outs, scalars)
        result = self._run(like.known, arguments, outs, pointers)
        if not like.sought and not low % _VECTOR:
            self._seek(like, arguments)
        return result

    def graphed(self, *, copied: Sequence[str] | None = None) -> GraphedKernel:
        """The kernel as a CUDA graph: all its launches in one, which costs the host less.

        Args:
            copied: names of the inputs that each call copies to memory of the graph; None for all.
                The others are read where they are, and each combination of their addresses is a
                graph of its own: right for weights, wrong for what is allocated anew.

        Returns:
            What is called like the kernel, and captures when first called with such arguments.
            Its results are memory of the graph, and the next call like it overwrites them.

        Raises:
            BackendError: the target has no graphs or cannot run here, an extern calls a function
                of the host, or no input has such a name.
        """
        self._executor.check_runnable()
        return GraphedKernel(self.module, self.target, self.order, self._call, copied)

    def _call(
        self, inputs: tuple[Any, ...], outs: tuple[Any, ...], scalars: Mapping[str, Any]
    ) -> Any:
        """Run with inputs, results and scalars apart; checked once per form of arguments."""
        try:
            form, pointers, low = form_of(inputs, outs, scalars)
        except RuntimeError:  # a PyTorch tensor without strides or memory: the check says which
            return self._checked(inputs, outs, scalars, None)
        if form is None:
            return self._checked(inputs, outs, scalars, None)
        known = self._known.get(form)
        if (
            known is None
            or (low % _MAX_ITEM and known.misaligned(pointers))
            or (outs and known.outputs_unfit(pointers, outs))
        ):
            return self._checked(inputs, outs, scalars, form)
        arguments = (*inputs, *outs)
        if not scalars:
            like = self._likes.get(known)
            if like is None or (like is self._like and like.addresses(arguments) is None):
                like = self._likes[known] = _Like(addresses_like(arguments), known, len(outs))
            self._like = like
        return self._run(known, arguments, outs, pointers)

    def _seek(self, like: _Like, arguments: tuple[Any, ...]) -> None:
        """Write the function for calls like one that has just been made, with aligned addresses."""
        known = like.known
        launches = self._executor.inlined(known.binding)
        guard = guard_of(arguments) if launches is not None else None
        like.sought = True
        if guard is None or launches is None:
            return
        noted = ["last[0] = binding", *(f"hits[{place}] += 1" for place in known.versions)]
        call = TensorCall(
            guard=guard,
            given=len(arguments),
            outs=like.outs,
            makers=() if like.outs else known.allocators,
            nbytes=known.nbytes,
            launches=launches,
            noted=tuple(noted),
            names={"last": self._last, "binding": known.binding, "hits": self._hits},
        )
        found = direct(call)
        if found is not None:
            like.direct, like.alone, like.call = found, not like.outs, call

    @property
    def last_call(self) -> TensorCall | None:
        """What the function of calls like the last one is written from; None where there is none,
        or none yet."""
        like = self._like
        return like.call if like is not None and like.alone else None

    def _given(self, out: Any) -> tuple[Any, ...]:
        """The arrays of `out=`, at least one."""
        if not isinstance(out, (tuple, list)):
            return (out,)
        outs = tuple(cast(Sequence[Any], out))
        return outs or self.signature.view_outputs(outs)

    def _run(
        self,
        known: _Prepared,
        arrays: tuple[Any, ...],
        outs: tuple[Any, ...],
        pointers: list[int],
    ) -> Any:
        """Allocate what is missing and launch."""
        self._last[0] = known.binding
        for place in known.versions:
            self._hits[place] += 1
        pointer_of, count = known.pointer_of, known.count
        makers = known.workspaces if outs else known.allocators
        if len(makers) == 1 and not outs:
            (make,) = makers
            result = make()
            pointers.append(pointer_of(result))
            known.launch(pointers, (*arrays, result))
            return result
        made = [make() for make in makers]
        for array in made:
            pointers.append(pointer_of(array))
        known.launch(pointers, (*arrays, *made))
        if outs:
            return outs[0] if count == 1 else outs
        return made[0] if count == 1 else tuple(made[:count])

    def _checked(
        self,
        inputs: Sequence[Any],
        outs: tuple[Any, ...],
        scalars: Mapping[str, Any],
        form: tuple[object, ...] | None,
    ) -> Any:
        """The same with every check; keeps what it found under `form`."""
        self._executor.check_runnable()
        signature = self.signature
        views = signature.view_inputs(inputs)
        strided = [place for place, v in enumerate(views) if not v.contiguous and is_packable(v)]
        if strided:
            form = None  # looked at, and told of, at each call
            inputs = [packed(x) if n in strided else x for n, x in enumerate(inputs)]
            given, views = views, signature.view_inputs(inputs)
            binding = signature.bind(views, scalars, self._executor.device)
            signature.tell_copied([(place, given[place]) for place in strided])
        else:
            binding = signature.bind(views, scalars, self._executor.device)
        out_views: tuple[ArrayView, ...] = ()
        if outs:
            out_views = signature.view_outputs(outs)
            signature.check_outputs(out_views, views, binding)
        known = self._prepare(binding)
        if form is not None:
            if len(self._known) >= _KEPT:
                self._known.clear()
                self._likes.clear()
            self._known[form] = known
        TORCH.find()
        arrays = tuple(self._executor.adopt(array) for array in (*inputs, *outs))
        return self._run(known, arrays, outs, [v.pointer for v in (*views, *out_views)])

    def _prepare(self, binding: Binding) -> _Prepared:
        specs = (*binding.inputs, *binding.outputs, *binding.workspaces)
        if binding.values and max((spec.size for spec in specs), default=0) >= SAFE_SIZE:
            check_ranges(self.module, binding.values)
        device = binding.device
        torch = binding.framework == "torch"

        def allocators(specs: tuple[ArraySpec, ...]) -> tuple[Callable[[], Any], ...]:
            return tuple(torch_allocator(s, device) if torch else numpy_allocator(s) for s in specs)

        launch = _nothing if binding.empty else self._executor.prepare(binding)
        workspaces = allocators(self._executor.workspaces(binding))
        arguments = (*self.signature.inputs, *self.signature.outputs)
        return _Prepared(
            binding=binding,
            launch=launch,
            allocators=allocators(binding.outputs) + workspaces,
            workspaces=workspaces,
            items=tuple(buffer.dtype.nbytes for buffer in arguments),
            nbytes=tuple(spec.nbytes for spec in (*binding.inputs, *binding.outputs)),
            count=len(binding.outputs),
            pointer_of=_torch_pointer if torch else numpy_pointer,
            versions=tuple(
                place
                for place, func in enumerate(self.module.funcs)
                if func.when is not None and launched(func, binding.values)
            ),
        )


# `torch.compile` does not look into a call but makes it between two graphs, and says this where it
# is to make one only.
vars(Kernel.__call__).update(_torchdynamo_disable=True, _torchdynamo_disable_msg=OPERATOR)


def _nothing(pointers: Sequence[int], arrays: Sequence[Any]) -> None:
    """The launch of a call without output elements."""
