"""What an operator computes, from tensors of any shape: its definition, its derivative, and the
definition over a batch.

A definition gives tensor expressions for placeholders.  It comes from a function of tensors of the
language, whose derivative is `te.gradient`'s, or from a function of PyTorch's, whose derivative is
PyTorch's own graph.  Imports `tracing`, `program` and the importer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Expr
from tedsl.gradient.api import gradient
from tedsl.index.evaluate import evaluate_int
from tedsl.tensor import reduce
from tedsl.tensor.axis import reduce_axis
from tedsl.tensor.compute import compute, placeholder
from tedsl.tensor.printer import operations
from tedsl.tensor.tensor import ScanOp, Tensor, read
from tedsl.torch.elements.dtypes import dtype_of, torch_dtype
from tedsl.torch.elements.sizes import Sizes
from tedsl.torch.elements.value import numbers, whole
from tedsl.torch.lib import load, torch, undisturbed
from tedsl.torch.program import Program
from tedsl.torch.rebuilding import rebuilt
from tedsl.torch.refusals import NotTaken
from tedsl.torch.tracing import Traced, pullback, trace_flat

_fake_tensors: Any = load("torch._subclasses.fake_tensor")

Defined = tuple[list[Tensor], list[Tensor]]
"""Results, and bools that have to be true of indices."""
Form = tuple[Sequence[Any], Any]
"""Shape and type of a result, as PyTorch has them."""


class Definition:
    """From tensors to tensors.

    Attributes:
        names: of the arguments.
        eager: the same by PyTorch, where that is known.
    """

    names: tuple[str, ...] = ()
    eager: Callable[..., list[Any]] | None = None

    def defined(self, given: Sequence[Tensor]) -> Defined:
        """Tensor expressions of the results.

        Raises:
            ExprError, NotTaken: there are none for such tensors.
        """
        raise NotImplementedError

    def forms(self, fakes: Sequence[Any]) -> list[Form]:
        """Shapes and types of the results."""
        raise NotImplementedError

    def gradient(self, needed: Sequence[bool]) -> Definition:
        """From arguments, results and derivatives by the results that are floats to those by the
        arguments that are `needed`."""
        return Derivative(self, tuple(needed))

    def batched(self, mask: Sequence[bool]) -> Definition:
        """The same for each part of those arguments that have a dimension more, in front; of the
        results all have it."""
        return Batched(self, tuple(mask))


class Expressions(Definition):
    """A function of tensors of the language.

    Args:
        function: from placeholders to a tensor, or a tuple or list of them.
        names: of its arguments.
    """

    def __init__(self, function: Callable[..., Any], names: Sequence[str]) -> None:
        self.function, self.names = function, tuple(names)

    def defined(self, given: Sequence[Tensor]) -> Defined:
        """The function's results."""
        found = self.function(*given)
        several = isinstance(found, (tuple, list))
        results = list(cast("Sequence[object]", found)) if several else [found]
        if not results or not all(isinstance(each, Tensor) for each in results):
            kinds = ", ".join(type(each).__name__ for each in results) or "nothing"
            raise ExprError(
                f"the function returned {kinds}",
                subject="an operator",
                facts=[("allowed", "a tensor of te.compute, or a tuple of them")],
                hint="return the tensors that the operator is to give",
            )
        return cast("list[Tensor]", results), []

    def forms(self, fakes: Sequence[Any]) -> list[Form]:
        """From the definition over sizes that may be symbols; where that is refused, over their
        numbers, which PyTorch then guards."""
        try:
            return self._forms(fakes, [tuple(fake.shape) for fake in fakes])
        except ExprError:
            if all(isinstance(n, int) for fake in fakes for n in fake.shape):
                raise
        return self._forms(fakes, [tuple(map(int, fake.shape)) for fake in fakes])

    def _forms(self, fakes: Sequence[Any], shapes: Sequence[tuple[Any, ...]]) -> list[Form]:
        sizes = Sizes()
        given = [
            placeholder(sizes.shape(shape), dtype_of(fake.dtype), name=name)
            for fake, shape, name in zip(fakes, shapes, self.names, strict=True)
        ]
        symbols = {str(n.node.expr): n for shape in shapes for n in shape if not isinstance(n, int)}
        env: dict[Expr, int] = {
            var: symbols[name] for name, var in sizes.variables.items() if name in symbols
        }
        results, _ = self.defined(given)
        return [
            ([evaluate_int(n, env) for n in each.shape], torch_dtype(each.dtype))
            for each in results
        ]


class Graph(Definition):
    """A function of PyTorch's.

    Args:
        flat: from tensors to a list of tensors.
        names: of its arguments.
        program: one that was traced already.
    """

    def __init__(
        self, flat: Callable[..., list[Any]], names: Sequence[str], program: Program | None = None
    ) -> None:
        self.names, self.eager = tuple(names), flat
        self.flat = flat
        self.program = program

    def traced(self, fakes: Sequence[Any]) -> Traced:
        """The graph for such tensors."""
        known = self.program
        if known is not None and all(map(_alike, known.traced.fakes, fakes)):
            return known.traced
        return trace_flat(self.flat, fakes, self.names)

    def defined(self, given: Sequence[Tensor]) -> Defined:
        """The graph's results."""
        traced = self.traced(_examples(given))
        return _substituted(Program(traced, self.flat, copies=True), given)

    def forms(self, fakes: Sequence[Any]) -> list[Form]:
        """As PyTorch computes them."""
        return [(tuple(each.shape), each.dtype) for each in self.flat(*fakes)]

    def gradient(self, needed: Sequence[bool]) -> Definition:
        """PyTorch's own."""
        return GraphDerivative(self, tuple(needed))


class _OfArguments(Definition):
    """Derivatives: the results have the forms of arguments."""

    def __init__(self, base: Definition, needed: tuple[bool, ...]) -> None:
        self.base, self.needed = base, needed
        self.asked = [n for n, each in enumerate(needed) if each]

    def forms(self, fakes: Sequence[Any]) -> list[Form]:
        """Those of the arguments."""
        return [(tuple(fakes[n].shape), fakes[n].dtype) for n in self.asked]


class Derivative(_OfArguments):
    """The derivative of a definition in the language."""

    @property
    def names(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Those of the arguments; the rest follows."""
        return self.base.names

    def defined(self, given: Sequence[Tensor]) -> Defined:
        """By `te.gradient`; results that it reads are those that are there."""
        count = len(self.needed)
        arguments = list(given[:count])
        outs, _ = self.base.defined(arguments)
        results = given[count : count + len(outs)]
        heads = dict(zip(_floats(outs), given[count + len(outs) :], strict=True))
        grads = [self._by(arguments[n], outs, heads) for n in self.asked]
        if any(isinstance(op, ScanOp) for op in operations(tuple(grads))):
            return grads, []
        known = {
            out: result for out, result in zip(outs, results, strict=True) if out not in arguments
        }
        return rebuilt(grads, known), []

    def _by(self, argument: Tensor, outs: Sequence[Tensor], heads: dict[int, Tensor]) -> Tensor:
        total: Tensor | None = None
        for n, head in heads.items():
            under = {tensor for op in operations((outs[n],)) for tensor in op.outputs}
            if argument in under:
                (grad,) = gradient(outs[n], [argument], head=head)
                total = grad if total is None else cast("Tensor", total + grad)
        return _zeros(argument) if total is None else total


class GraphDerivative(_OfArguments):
    """The derivative of a function of PyTorch's."""

    def __init__(self, base: Graph, needed: tuple[bool, ...]) -> None:
        super().__init__(base, needed)
        self.graph = base
        self.names = base.names
        self.eager = self._eager

    def _eager(self, *given: Any) -> list[Any]:
        tensors = given[: len(self.needed)]
        with undisturbed():
            pairs = zip(tensors, self.needed, strict=True)
            leaves = [each.detach().requires_grad_(need) for each, need in pairs]
            outs = self.graph.flat(*leaves)
            floats = [n for n, out in enumerate(outs) if out.is_floating_point()]
            heads = zip(floats, given[len(tensors) + len(outs) :], strict=True)
            live = [(outs[n], head) for n, head in heads if outs[n].requires_grad]
        grads = torch.autograd.grad(
            [out for out, _ in live],
            [leaves[n] for n in self.asked],
            [head for _, head in live],
            allow_unused=True,
            materialize_grads=True,
        )
        return list(grads)

    def defined(self, given: Sequence[Tensor]) -> Defined:
        """PyTorch's graph of derivatives; zeros by what it does not reach."""
        count = len(self.needed)
        fakes = _examples(given)
        traced = self.graph.traced(fakes[:count])
        made = pullback(traced, self.asked)
        computed = traced.computed
        results = given[count : count + len(traced.results)]
        heads = given[count + len(results) :]
        metas = [node.meta["val"] for node in traced.results]
        floats = [n for n, meta in enumerate(metas) if meta.is_floating_point()]
        if len(computed) < len(traced.results):
            raise NotTaken("a result is an argument as it was given")
        read_by = [*given[:count], *results, *(heads[floats.index(n)] for n in made.heads)]
        found, checks = _substituted(Program(made.traced, made.traced.flat, copies=True), read_by)
        by_place = dict(zip(made.inputs, found, strict=True))
        return [by_place[n] if n in by_place else _zeros(given[n]) for n in self.asked], checks

    def gradient(self, needed: Sequence[bool]) -> Definition:
        """By `te.gradient` of PyTorch's derivative."""
        return Derivative(self, tuple(needed))


class Batched(Definition):
    """A definition for each part of a batch."""

    def __init__(self, base: Definition, mask: tuple[bool, ...]) -> None:
        self.base, self.mask = base, mask
        self.names = base.names

    def defined(self, given: Sequence[Tensor]) -> Defined:
        """The base's, with one axis more."""
        inner = [
            placeholder(each.shape[1:], each.dtype, name=each.name) if part else each
            for each, part in zip(given, self.mask, strict=True)
        ]
        moved = {a: b for a, b in zip(inner, given, strict=True) if a is not b}
        (extent, *_) = [each.shape[0] for each, part in zip(given, self.mask, strict=True) if part]
        results, checks = self.base.defined(inner)
        made = rebuilt([*results, *checks], moved, extent)
        made = [
            _repeated(new, extent) if new is old else new
            for old, new in zip([*results, *checks], made, strict=True)
        ]
        return made[: len(results)], [_every(each) for each in made[len(results) :]]

    def forms(self, fakes: Sequence[Any]) -> list[Form]:
        """The base's, with the batch in front."""
        inner = [f.select(0, 0) if part else f for f, part in zip(fakes, self.mask, strict=True)]
        (extent, *_) = [f.shape[0] for f, part in zip(fakes, self.mask, strict=True) if part]
        return [((extent, *shape), dtype) for shape, dtype in self.base.forms(inner)]


def _examples(given: Sequence[Tensor]) -> list[Any]:
    """Tensors without memory, of the shapes and types of placeholders."""
    mode: Any = _fake_tensors.FakeTensorMode()
    found: list[Any] = []
    for each in given:
        shape = numbers(whole(each).shape)
        if shape is None:
            raise NotTaken("a size that is known at the call only", subject=each.name)
        with mode:
            found.append(torch.empty(shape, dtype=torch_dtype(each.dtype)))
    return found


def _alike(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype is b.dtype and a.stride() == b.stride()


def _substituted(program: Program, given: Sequence[Tensor]) -> Defined:
    """The results of a program with placeholders of others' in the place of its own."""
    imported = program.imported
    if len(imported.inputs) > len(given):
        raise NotTaken("the function holds a tensor of its own", subject="an operator")
    known = {each.tensor: given[each.place] for each in imported.inputs}
    made = rebuilt(imported.tensors, known)
    count = len(made) - imported.checks
    return [made[each.place] for each in imported.outputs], made[count:]


def _floats(tensors: Sequence[Tensor]) -> list[int]:
    return [n for n, each in enumerate(tensors) if each.dtype.is_float]


def _zeros(like: Tensor) -> Tensor:
    zero = build.cast(build.as_expr(0.0), like.dtype)
    return compute(like.shape, lambda *_: zero, name=f"d_{like.name}")


def _repeated(tensor: Tensor, extent: Any) -> Tensor:
    return compute((extent, *tensor.shape), lambda *i: read(tensor, i[1:]), name=tensor.name)


def _every(check: Tensor) -> Tensor:
    axis = reduce_axis((0, check.shape[0]), "k")
    return compute((), lambda: reduce.all(read(check, (axis,)), axis=axis))
