"""A PyTorch function as tensor expressions, and kernels that are called like it.

Imports the importer, `tracing` and `compiled`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tedsl.errors import BackendError
from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.slips import suggests
from tedsl.target import Target
from tedsl.tensor.computes import Computes
from tedsl.tensor.tensor import Tensor
from tedsl.torch.compiled import Compiled, Failed
from tedsl.torch.importer.graph import Imported, import_nodes
from tedsl.torch.lib import pytree, torch
from tedsl.torch.refusals import NotTaken
from tedsl.torch.tracing import Pullback, Traced, pullback


@suggests()
class Program(Computes):
    """A PyTorch function as tensor expressions, made by `trace`.  `te.create_schedule`,
    `te.schedule_for`, `te.autotune` and `te.build` take it as they take its outputs.

    Args:
        traced: the graph.
        function: what was traced.
        held: the tensors that follow the arguments.
        arguments, results: how PyTorch's pytrees hold the tensors.
        differentiable: the tensors that needed a gradient in the example.
        copies: results that are arguments as they were given are copied.

    Attributes:
        inputs: the placeholders, in the order of the arguments and named after them; then the
            parameters and buffers of a module, and tensors that the function holds.
        outputs: the results, to be scheduled.  A result that is an argument as it was given is not
            among them.
    """

    def __init__(
        self,
        traced: Traced,
        function: Callable[..., Any],
        held: Sequence[Any] = (),
        arguments: Any = None,
        results: Any = None,
        differentiable: Sequence[int] = (),
        copies: bool = False,
    ) -> None:
        self.traced = traced
        self.function = function
        self.arguments, self.results = arguments, results
        self.held = [*held, *map(traced.constant, traced.constants)]
        self.count = len(traced.fakes) - len(held)
        self._copies = copies
        self._differentiable = tuple(differentiable)
        self._pullbacks: dict[tuple[int, ...], _Backward | None] = {}

    @cached_property
    def imported(self) -> Imported:
        """The graph in the language.

        Raises:
            NotTaken: it computes nothing.
        """
        traced = self.traced
        constants = traced.constants
        computed = [traced.results[n] for n in traced.computed]
        if self._copies:
            computed = list(traced.results)
        if not computed:
            raise NotTaken("every result is an argument as it was given", subject="trace")
        return import_nodes(
            [*traced.placeholders, *constants],
            traced.called,
            computed,
            names=[*traced.names, *(str(each.name) for each in constants)],
        )

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The placeholders."""
        return tuple(each.tensor for each in self.imported.inputs)

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """What is computed: the results, and bools that say whether indices are inside."""
        return self.imported.tensors

    def __repr__(self) -> str:
        given = ", ".join(_told(tensor) for tensor in self.inputs)
        return f"<tedsl.torch.Program ({given}) -> {', '.join(map(_told, self.outputs))}>"

    @property
    def simple(self) -> bool:
        """True where arguments are tensors, and the result one or a tuple of them."""
        several = pytree.tree_structure((0,) * len(self.traced.results))
        returned = self.results in (None, several, pytree.tree_structure(0))
        return returned and _is_simple(self.arguments, self.count)

    @property
    def differentiable(self) -> tuple[int, ...]:
        """Of the tensors, those that `backward` differentiates by: what needed a gradient in the
        example, else all floats."""
        return self._differentiable or tuple(
            n for n, fake in enumerate(self.traced.fakes) if fake.is_floating_point()
        )

    @property
    def backward(self) -> Program:
        """The derivative, to be looked at and scheduled: from the inputs, the results and the
        derivatives by them to those by the `differentiable` inputs that the results depend on.

        Raises:
            NotTaken: an operator of PyTorch's derivative that tensor expressions do not say, or
                nothing to differentiate by.
        """
        found = self.backward_by(self.differentiable)
        if found is None:
            raise NotTaken("no result depends on a float argument", subject="backward")
        _ = found.program.imported
        return found.program

    def backward_by(self, asked: tuple[int, ...]) -> _Backward | None:
        """The derivative by some of the tensors, made once; None where there is none."""
        if asked not in self._pullbacks:
            try:
                made = pullback(self.traced, asked)
            except NotTaken:
                self._pullbacks[asked] = None
            else:
                self._pullbacks[asked] = _Backward(self, made)
        return self._pullbacks[asked]

    def build(
        self,
        schedule: Schedule | Kernel | None = None,
        target: str | Target | None = None,
        *,
        backward: Schedule | Kernel | None = None,
    ) -> BuiltProgram:
        """A kernel that is called like the function, and that has gradients.

        Args:
            schedule: of `outputs`, or the kernel that `te.autotune` found for them; the default
                rules write one where none is given.
            target: `"cpu"` or `"cuda"`; by default that of a kernel which is given, and without a
                schedule `"cpu"` where all tensors of the example are there.
            backward: the same for `self.backward.outputs`; the default rules write one at the
                first call of `backward()` where none is given.

        Raises:
            ScheduleError, LowerError, BackendError: as `te.build` does.
            BackendError: a schedule of something else.
            NotTaken: `backward` is given and there is no derivative.
        """
        given: Schedule | None = schedule.schedule if isinstance(schedule, Kernel) else schedule
        if isinstance(schedule, Kernel) and target is None:
            target = schedule.target
        if schedule is None and target is None:
            kinds = {fake.device.type for fake in self.traced.fakes}
            target = "cpu" if kinds == {"cpu"} else None
        if given is not None and set(given.definition) != set(self.outputs):
            raise BackendError(
                f"the schedule computes {', '.join(t.name for t in given.definition)}",
                subject="build",
                facts=[("the program", ", ".join(map(_told, self.outputs)))],
                hint="make it by te.create_schedule(program), te.schedule_for or te.autotune",
            )
        return BuiltProgram(self, given, target, backward)


@suggests()
class BuiltProgram:
    """A kernel called like the function that was traced.

    Tensors may lie in memory otherwise than those of the example; a copy is made then.  Where an
    index is outside its tensor the function itself is called, which says so.  The derivative is a
    kernel too, built when it is first asked for; where tensor expressions do not say it, it is
    PyTorch's derivative of the function.

    Attributes:
        kernel: of the results.
    """

    def __init__(
        self,
        program: Program,
        schedule: Schedule | None,
        target: str | Target | None,
        backward: Schedule | Kernel | None,
    ) -> None:
        self.program = program
        self.target = target
        self._compiled = Compiled(program.imported, schedule, target)
        self.kernel = self._compiled.kernel
        traced = program.traced
        self._forms = [(fake.shape, fake.dtype) for fake in traced.fakes]
        self._held = tuple(program.held)
        self._given = traced.placeholders
        self._straight = len(traced.computed) == len(traced.results)
        self._simple = _is_simple(program.arguments, program.count)
        self._one = program.results == pytree.tree_structure(0)
        self._scheduled: BuiltProgram | None = None
        if backward is not None:
            self._scheduled = program.backward.build(backward, target)
        self._pulls: dict[tuple[int, ...], Callable[..., list[Any]]] = {}

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The function, computed by the kernel.

        Raises:
            BackendError: a tensor of another shape or type than that of the example.
            TypeError: other arguments.
        """
        if keywords:
            bound = inspect.signature(self.program.function).bind(*arguments, **keywords)
            bound.apply_defaults()
            arguments = bound.args
        leaves: Any = arguments if self._simple else pytree.tree_leaves(arguments)
        if len(leaves) != self.program.count:
            raise TypeError(f"{len(leaves)} arguments given, {self.program.count} expected")
        tensors = (*leaves, *self._held)
        for place, (shape, dtype) in enumerate(self._forms):
            given = tensors[place]
            if getattr(given, "shape", None) != shape or given.dtype is not dtype:
                raise _misfit(self.program.traced, place, given)
        try:
            computed = self.flat(tensors)
        except Failed:
            return self.program.function(*arguments)
        results = computed if self._straight else self._with_arguments(computed, tensors)
        if self._one:
            return results[0]
        return pytree.tree_unflatten(results, self.program.results)

    def flat(self, tensors: tuple[Any, ...]) -> Sequence[Any]:
        """The computed results, with gradients where they are recorded.

        Raises:
            Failed: an index is outside its tensor.
        """
        if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
            return _Differentiable.apply(self, *tensors)
        return self.plain(tensors)

    def plain(self, tensors: Sequence[Any]) -> list[Any]:
        """The computed results alone."""
        return self._compiled(tensors, {})

    def _with_arguments(self, computed: Sequence[Any], tensors: Sequence[Any]) -> list[Any]:
        left = iter(computed)
        place = {node: n for n, node in enumerate(self._given)}
        results = self.program.traced.results
        return [tensors[place[node]] if node in place else next(left) for node in results]

    def pull(
        self,
        tensors: Sequence[Any],
        results: Sequence[Any],
        heads: Sequence[Any],
        needed: Sequence[bool],
    ) -> list[Any]:
        """Derivatives by the tensors that are `needed`; None by the others."""
        asked = tuple(n for n, each in enumerate(needed) if each and n < len(self._forms))
        found = self.program.backward_by(self._chosen(asked))
        every: list[Any] = [None] * len(tensors)
        if found is None:
            return every
        grads = self._pull_of(asked, found)(
            *tensors[: len(self._forms)], *results, *(heads[n] for n in found.pullback.heads)
        )
        for n, grad in zip(found.pullback.inputs, grads, strict=True):
            if needed[n]:
                every[n] = grad
        return every

    def _chosen(self, asked: tuple[int, ...]) -> tuple[int, ...]:
        """What to differentiate by: with a schedule by hand all of that, if it has what is asked
        for."""
        given = self.program.differentiable
        return given if self._scheduled is not None and set(asked) <= set(given) else asked

    def _pull_of(self, asked: tuple[int, ...], found: _Backward) -> Callable[..., list[Any]]:
        if asked not in self._pulls:
            scheduled = self._scheduled
            if scheduled is not None and scheduled.program is found.program:
                self._pulls[asked] = scheduled
            else:
                self._pulls[asked] = found.built(self.target)
        return self._pulls[asked]


class _Backward:
    """A derivative as a program, and what computes it."""

    def __init__(self, program: Program, made: Pullback) -> None:
        self.pullback = made
        spec = pytree.tree_structure([0] * len(made.inputs))
        flat = made.traced.flat
        self.program = Program(made.traced, flat, results=spec)

    def built(self, target: str | Target | None) -> Callable[..., list[Any]]:
        """The kernel; PyTorch's derivative where tensor expressions do not say it."""
        try:
            _ = self.program.imported
        except NotTaken:
            return self.pullback.traced.flat
        return self.program.build(target=target)


class _Differentiable(torch.autograd.Function):
    """A built program as a node of PyTorch's graph of derivatives."""

    @staticmethod
    def forward(ctx: Any, built: BuiltProgram, *tensors: Any) -> tuple[Any, ...]:
        """The results."""
        results = built.plain(tensors)
        ctx.built, ctx.count = built, len(tensors)
        ctx.save_for_backward(*tensors, *results)
        ctx.mark_non_differentiable(*(each for each in results if not each.is_floating_point()))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *heads: Any) -> tuple[Any, ...]:
        """The derivatives by the tensors."""
        saved = ctx.saved_tensors
        given, results = saved[: ctx.count], saved[ctx.count :]
        return (None, *ctx.built.pull(given, results, heads, ctx.needs_input_grad[1:]))


def _is_simple(spec: Any, count: int) -> bool:
    """True where the arguments are tensors and no structures of them."""
    return spec is None or spec == pytree.tree_structure((0,) * count)


def _misfit(traced: Traced, place: int, given: Any) -> BackendError:
    fake = traced.fakes[place]
    found = f"{type(given).__name__}"
    if isinstance(given, torch.Tensor):
        found = f"{given.dtype} {list(given.shape)}"
    return BackendError(
        f"{traced.names[place]} is {found}",
        subject="a traced function",
        facts=[("allowed", f"{fake.dtype} {list(fake.shape)}, as in the example")],
        hint="trace the function with an example of this shape and type",
    )


def _told(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"
