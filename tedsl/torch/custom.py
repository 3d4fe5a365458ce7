"""`op`: a program, or a function of tensors of the language, as an operator of PyTorch's own.

The operator is registered with `torch.library`: kernels for each form of arguments, a fake
implementation, a derivative that is an operator too, and a rule for `vmap`.  Imports
`definitions`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from tedsl.errors import BackendError
from tedsl.scheduling.handles.schedule import Schedule, create_schedule
from tedsl.scheduling.trace.replay import replay
from tedsl.tensor.compute import compute, placeholder
from tedsl.tensor.tensor import PlaceholderOp, Tensor, read
from tedsl.torch.compiled import Compiled, Failed
from tedsl.torch.definitions import Definition, Expressions, Graph
from tedsl.torch.elements.dtypes import dtype_of
from tedsl.torch.elements.layouts import Layout
from tedsl.torch.elements.sizes import Sizes
from tedsl.torch.importer.graph import Imported, Input, Output
from tedsl.torch.lib import load, torch
from tedsl.torch.program import Program
from tedsl.torch.refusals import NotTaken

_library: Any = load("torch.library")
Scheduled = Schedule | Callable[[Schedule], object] | None
Mask = tuple[bool, ...]


def op(
    name: str,
    definition: Program | Callable[..., Any],
    *,
    results: int = 1,
    schedule: Scheduled = None,
    backward: Scheduled = None,
) -> Any:
    """Register an operator of PyTorch's.

    It works in eager, in autograd, under `torch.compile` with any backend, in `torch.export` and
    under `torch.func.vmap`.  A kernel is built for each combination of shapes and types that it is
    called with.  Arguments that are not row-major are copied; results are row-major.

    Args:
        name: `"library::operator"`.
        definition: what `tt.trace` made of a function of tensors; or a function from tensors of the
            language to one, or a tuple of them.  Its arguments name those of the operator.
        results: how many tensors a function of the language returns.
        schedule: how the results are computed: a function that is given a schedule and calls its
            primitives; or, for a program, a schedule of `program.outputs`, whose steps are applied
            to other shapes too.  The default rules without one.
        backward: the same for the derivative; a program's is `program.backward.outputs`.

    Returns:
        The operator, to be called; also `torch.ops.library.operator`.

    Raises:
        ValueError: the name is of another form, or arguments of the function have no names.
        NotTaken: a program of a module, or of structures of tensors.

    The derivative of a program is PyTorch's graph of it, that of a function of the language is
    `te.gradient`'s; the operator may be differentiated again.  Under `vmap` everything that depends
    on what is batched has one axis more; a scan or an extern refuses that.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*::[A-Za-z_]\w*", name):
        raise ValueError(f'{name!r} is no name of an operator; write "library::operator"')
    found, count = _definition(definition, results)
    arguments = ", ".join(f"Tensor {each}" for each in found.names)
    returned = "Tensor" if count == 1 else f"({', '.join(['Tensor'] * count)})"
    made = _Operator(name, lambda _: found, 0, schedule)
    return _registered(made, f"({arguments}) -> {returned}", len(found.names), count == 1, backward)


def _registered(
    made: _Operator, schema: str, arguments: int, one: bool, backward: Scheduled
) -> Any:
    """The operator of one definition, from single tensors to `one` or a tuple of them."""
    derivative = made.derivative(arguments, backward)

    def run(*given: Any) -> Any:
        """The results."""
        return _one(made.run(given, ()), one)

    def fake(*given: Any) -> Any:
        """The results without their elements."""
        return _one(made.fake(given, ()), one)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        """What the derivative reads."""
        ctx.save_for_backward(*inputs, *((output,) if one else output))

    def pulled(ctx: Any, *heads: Any) -> Any:
        """The derivatives by the arguments."""
        saved = ctx.saved_tensors
        asked = zip(ctx.needs_input_grad[:arguments], saved[:arguments], strict=True)
        needed = [need and each.is_floating_point() for need, each in asked]
        grads = derivative([*saved, *_of_floats(heads, saved[arguments:])], needed)
        return tuple(_spread(grads, needed))

    def vmapped(_: Any, in_dims: Any, *given: Any) -> Any:
        """All parts of the batch in one call."""
        found = made.batch(given, in_dims, ())
        return (found[0], 0) if one else (tuple(found), (0,) * len(found))

    handle = _library.custom_op(made.name, run, mutates_args=(), schema=schema)
    handle.register_fake(fake)
    handle.register_autograd(pulled, setup_context=setup)
    handle.register_vmap(vmapped)
    return handle


class _Operator:
    """Kernels of a family of definitions, and the operators that follow from it.

    Args:
        name: of the operator; others get it with an ending.
        family: the definition for each choice of flags.
        width: how many flags there are.
        schedule: what the user gave.
    """

    def __init__(
        self,
        name: str,
        family: Callable[[Mask], Definition],
        width: int,
        schedule: Scheduled = None,
    ) -> None:
        self.name, self.family, self.width, self.schedule = name, family, width, schedule
        self._definitions: dict[Mask, Definition] = {}
        self._kernels: dict[Any, Callable[[Sequence[Any]], list[Any]]] = {}
        self._batched: dict[int, Any] = {}

    def definition(self, which: Mask) -> Definition:
        """One of the family."""
        if which not in self._definitions:
            self._definitions[which] = self.family(which)
        return self._definitions[which]

    def run(self, given: Sequence[Any], which: Mask) -> list[Any]:
        """The results, by a kernel."""
        key = (which, *((each.shape, each.dtype, each.device) for each in given))
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._built(given, which)
        return kernel(given)

    def fake(self, given: Sequence[Any], which: Mask) -> list[Any]:
        """The results without their elements."""
        forms = self.definition(which).forms(given)
        (first, *_) = given
        return [torch.empty(shape, dtype=dtype, device=first.device) for shape, dtype in forms]

    def batch(self, given: Sequence[Any], in_dims: Any, which: Mask) -> list[Any]:
        """The results for each part of a batch."""
        mask = [d is not None for d in in_dims]
        lead = [
            each if d is None else each.movedim(d, 0)
            for each, d in zip(given, in_dims, strict=True)
        ]
        count = len(lead)
        if count not in self._batched:

            def family(flags: Mask) -> Definition:
                return self.definition(flags[count:]).batched(flags[:count])

            made = _Operator(f"{self.name}_vmap", family, count + self.width)
            self._batched[count] = made.registered()
        return self._batched[count](lead, [*mask, *which])

    def derivative(self, count: int, schedule: Scheduled = None) -> Callable[..., list[Any]]:
        """The operator of the derivatives by those of `count` arguments that flags say."""

        def family(flags: Mask) -> Definition:
            return self.definition(flags[count:]).gradient(flags[:count])

        width = count + self.width
        return _Operator(f"{self.name}_backward", family, width, schedule).registered()

    def registered(self) -> Any:
        """An operator of a list of tensors and flags, which returns a list."""
        again: dict[int, Any] = {}

        def run(given: Any, which: Any) -> list[Any]:
            return self.run(given, tuple(which))

        def fake(given: Any, which: Any) -> list[Any]:
            return self.fake(given, tuple(which))

        def setup(ctx: Any, inputs: Any, output: Any) -> None:
            given, ctx.which = inputs
            ctx.count = len(given)
            ctx.save_for_backward(*given, *output)

        def pulled(ctx: Any, heads: Any) -> Any:
            saved, count = ctx.saved_tensors, ctx.count
            if count not in again:
                again[count] = self.derivative(count)
            asked = [each.is_floating_point() for each in saved[:count]]
            used = _of_floats(heads, saved[count:])
            return _spread(again[count]([*saved, *used], [*asked, *ctx.which]), asked), None

        def vmapped(_: Any, in_dims: Any, given: Any, which: Any) -> Any:
            found = self.batch(given, in_dims[0], tuple(which))
            return found, [0] * len(found)

        schema = "(Tensor[] given, bool[] which) -> Tensor[]"
        handle = _library.custom_op(self.name, run, mutates_args=(), schema=schema)
        handle.register_fake(fake)
        handle.register_autograd(pulled, setup_context=setup)
        handle.register_vmap(vmapped)
        return handle

    def _built(self, given: Sequence[Any], which: Mask) -> Callable[[Sequence[Any]], list[Any]]:
        definition = self.definition(which)
        devices = {each.device.type for each in given}
        if len(devices) != 1:
            raise BackendError(
                f"tensors on {' and '.join(sorted(devices)) or 'no device'}",
                subject=self.name,
                hint="call the operator with tensors on one device",
            )
        try:
            imported = _imported(definition, given)
        except NotTaken:
            if definition.eager is None:
                raise
            return _contiguous(definition.eager)
        made = Compiled(imported, _schedule_of(imported, self.schedule), devices.pop())

        def call(tensors: Sequence[Any]) -> list[Any]:
            try:
                return made(tensors, {})
            except Failed:
                if definition.eager is None:
                    raise
                return _contiguous(definition.eager)(tensors)

        return call


def _definition(given: Program | Callable[..., Any], results: int) -> tuple[Definition, int]:
    if isinstance(given, Program):
        if given.held or not given.simple:
            raise NotTaken(
                "the program holds tensors of its own"
                if given.held
                else "the program takes or returns structures of tensors",
                subject="an operator",
                hint="trace a function that takes each tensor as an argument, and returns tensors",
            )
        traced = given.traced
        return Graph(traced.flat, traced.names, given), len(traced.results)
    kinds = inspect.Parameter
    names = [
        each.name
        for each in inspect.signature(given).parameters.values()
        if each.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
    ]
    if not names or len(names) != len(inspect.signature(given).parameters):
        raise ValueError("the function of an operator takes named arguments, each one tensor")
    return Expressions(given, names), results


def _imported(definition: Definition, given: Sequence[Any]) -> Imported:
    """The definition for tensors like these, all row-major."""
    names = [*definition.names, *(f"given{n}" for n in range(len(given)))][: len(given)]
    inputs: list[Input] = []
    for place, (name, tensor) in enumerate(zip(names, given, strict=True)):
        layout = _row_major(tuple(tensor.shape))
        made = placeholder(layout.shape, dtype_of(tensor.dtype), name=name)
        inputs.append(Input(place, layout, made))
    found, checks = definition.defined([each.tensor for each in inputs])
    written: list[Tensor] = []
    for each in found:
        own = isinstance(each.op, PlaceholderOp) or each in written
        written.append(_copied(each) if own else each)
    forms = [_row_major(tuple(each.shape)) for each in written]
    outputs = tuple(Output(n, form, form.shape) for n, form in enumerate(forms))
    return Imported(tuple(inputs), outputs, (*written, *checks), len(checks), Sizes())


def _row_major(shape: tuple[Any, ...]) -> Layout:
    return Layout(shape, tuple(range(len(shape))), ())


def _copied(tensor: Tensor) -> Tensor:
    return compute(tensor.shape, lambda *i: read(tensor, i), name=f"{tensor.name}.out")


def _schedule_of(imported: Imported, given: Scheduled) -> Schedule | None:
    if given is None:
        return None
    outputs = list(imported.tensors)
    if isinstance(given, Schedule):
        return replay(outputs, given.trace)
    made = create_schedule(outputs)
    given(made)
    return made


def _contiguous(eager: Callable[..., list[Any]]) -> Callable[[Sequence[Any]], list[Any]]:
    """What PyTorch computes, as an operator has to return it: in memory of its own."""
    return lambda given: [
        each.contiguous() if each.is_contiguous() is False else each.clone()
        for each in eager(*given)
    ]


def _one(found: list[Any], one: bool) -> Any:
    return found[0] if one else tuple(found)


def _of_floats(heads: Sequence[Any], results: Sequence[Any]) -> list[Any]:
    """The derivatives by results that are floats."""
    return [h for h, each in zip(heads, results, strict=True) if each.is_floating_point()]


def _spread(grads: Sequence[Any], needed: Sequence[bool]) -> Any:
    """A derivative for each argument, None where it was not asked for."""
    left = iter(grads)
    return [next(left) if need else None for need in needed]
