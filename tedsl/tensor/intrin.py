"""`decl_tensor_intrin`: instructions and micro kernels that the user declares.

An intrinsic is its meaning, a small tensor expression over placeholders, and what does it on each
target.  Imports `foreign` and `tensor.tensor`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tedsl.errors import ExprError
from tedsl.expr.naming import check_name
from tedsl.expr.nodes import Axis, Const, Expr, Reduce, TensorRead
from tedsl.expr.visit import reads, variables
from tedsl.slips import suggests
from tedsl.tensor import foreign
from tedsl.tensor.foreign import CFunction, TritonKernel
from tedsl.tensor.tensor import ComputeOp, Operation, PlaceholderOp, Tensor

_TOLD = {
    "buffers": "an implementation is passed pointers and strides; shapes are those of .inputs",
    "body": "write cpu=te.llvm_function(text) or gpu=te.triton_snippet(source)",
}
_DEFINITION = re.compile(r"^define\s[^@{]*@([\w.$-]+)\(([^)]*)\)", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class LlvmFunction:
    """The text of an LLVM function `name` that returns nothing, and of what it needs."""

    text: str
    name: str
    params: int

    @property
    def label(self) -> str:
        """The name of the function."""
        return self.name


@suggests(ExprError, _TOLD, "an intrinsic")
@dataclass(frozen=True, slots=True, eq=False)
class TensorIntrin:
    """What an intrinsic computes (`op`, over `inputs`) and what does it.

    `cpu` takes, for each input and then for the output, a pointer to the first element and, in
    elements, the stride of each dimension.  `gpu` takes the inputs as tiles, and the output so far
    if `op` is a reduction, and returns the output.  A reduction is folded into what the output
    holds: the first value is stored by ordinary loops.
    """

    name: str
    op: ComputeOp
    inputs: tuple[Tensor, ...]
    cpu: LlvmFunction | CFunction | None = None
    gpu: TritonKernel | None = None

    def __call__(self, *inputs: object, **options: object) -> NoReturn:
        """Refused: how a computation is carried out, a schedule says.

        Raises:
            ExprError: always.
        """
        raise ExprError(
            "an intrinsic is no part of a definition",
            subject=f"tensor intrin {self.name!r}",
            hint="write what it computes as te.compute, and s[T].tensorize(axis, intrin)",
        )

    @property
    def reduce_init(self) -> None:
        """None: how a reduction begins is no part of an intrinsic here."""

    reduce_update = reduce_init

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of `op`: data axes, then reduce axes."""
        return (*self.op.axes, *self.op.reduce_axes)

    @property
    def extents(self) -> tuple[int, ...]:
        """The extents of `axes`."""
        sizes = [axis.domain.extent for axis in self.axes if axis.domain is not None]
        return tuple(int(size.value) for size in sizes if isinstance(size, Const))

    @property
    def reads(self) -> tuple[TensorRead, ...]:
        """How `op` reads each input."""
        return _reads_of(self.op, self.inputs)

    @property
    def fingerprint(self) -> tuple[object, ...]:
        """What generated code depends on, beside the statement that it stands for."""
        texts = self.cpu.text if isinstance(self.cpu, LlvmFunction) else None
        return (self.name, texts, None if self.gpu is None else self.gpu.source)


_DECLARED: dict[str, TensorIntrin] = {}


def llvm_function(text: str, name: str | None = None) -> LlvmFunction:
    """An LLVM function for `te.decl_tensor_intrin(..., cpu=)`.

    Args:
        text: LLVM assembly with a `define void @name(ptr %a, i64 %a0, i64 %a1, ..., ptr %c, ...)`:
            for each input, then for the output, a pointer and one stride (in elements) for each
            dimension; and whatever it needs.  Without a target triple.
        name: which function of the text; by default its last one.
    """
    found = {m[1]: m[2] for m in _DEFINITION.finditer(text)}
    chosen = name if name is not None else next(reversed(found), None)
    if chosen is None or chosen not in found:
        raise ExprError(
            f"the text defines no LLVM function{'' if name is None else f' {name!r}'}",
            subject="llvm_function",
            facts=[("defined", ", ".join(found) or "none")],
            hint='give the text of one: "define void @f(ptr %a, i64 %a0, ...) { ... }"',
        )
    params = found[chosen].strip()
    return LlvmFunction(text, chosen, len(params.split(",")) if params else 0)


def triton_snippet(source: str, name: str | None = None) -> TritonKernel:
    """A Triton function over tiles for `te.decl_tensor_intrin(..., gpu=)`.

    Args:
        source: the text of a `@triton.jit` function that takes the inputs as tile values, and for a
            reduction the output so far, and returns the output.
        name: which function of the text; by default its last one.
    """
    return foreign.triton_kernel(source, (1,), name)


def decl_tensor_intrin(
    op: Operation | Tensor,
    fcompute: object = None,
    name: str = "tensor_intrin",
    binds: Mapping[Tensor, Any] | None = None,
    scalar_params: object = None,
    default_buffer_params: object = None,
    *,
    cpu: LlvmFunction | CFunction | Any = None,
    gpu: TritonKernel | None = None,
) -> TensorIntrin:
    """Declare an intrinsic for `s[C].tensorize(axis, intrin)`.

    Args:
        op: what it computes: a compute of one output over placeholders, of constant extents, that
            reads each placeholder at axes, e.g. a 4x4x4 multiply-accumulate.
        fcompute: accepted for the sake of TVM scripts, with a warning: it builds statements of
            TVM's, and is not called.  What runs is `cpu` and `gpu`, else the loops of `op`.
        name: what it prints as, and what traces call it: the intrinsic declared last under a name
            is the one that replays find.
        binds: as `fcompute`: strides are always passed.
        scalar_params: as `fcompute`.
        default_buffer_params: as `fcompute`.
        cpu: `te.llvm_function(text)`, or `te.c_function(address)`, or a ctypes function; see
            `TensorIntrin`.
        gpu: `te.triton_snippet(source)`.  A target without an implementation runs the loops.

    Returns:
        The intrinsic.

    Raises:
        ExprError: an `op` that is no such expression, or an implementation of another form.

    That an implementation does what `op` says is the user's word.  `te.evaluate`, the interpreter
    of the loop IR and with it `te.checked()` go by `op` and never run an implementation: compare
    the results of a kernel with those of `te.evaluate` to find a wrong one.
    """
    check_name(name, "tensor intrin")
    subject = f"tensor intrin {name!r}"
    given = (fcompute, binds, scalar_params, default_buffer_params)
    if any(each is not None for each in given):
        warnings.warn(
            f"{subject}: statements and buffers of TVM's are not used, the loops of "
            f"{op.name} run; give what is to run as text: cpu=te.llvm_function(...) or "
            "te.c_function(address), gpu=te.triton_snippet(...), which are given pointers and "
            "strides, or tiles",
            RuntimeWarning,
            stacklevel=3,
        )
    meaning = _meaning(subject, op.op if isinstance(op, Tensor) else op)
    inputs = tuple(dict.fromkeys(read.tensor for read in reads(*meaning.bodies)))
    _check_reads(subject, meaning, inputs)
    count = sum(1 + tensor.ndim for tensor in (*inputs, meaning.outputs[0]))
    code = _on_cpu(subject, cpu, count)
    _check_gpu(subject, gpu, len(inputs) + bool(meaning.reduce_axes))
    made = TensorIntrin(name, meaning, inputs, code, gpu)
    _DECLARED[name] = made
    return made


def declared(name: str) -> TensorIntrin | None:
    """The intrinsic declared last under `name`."""
    return _DECLARED.get(name)


def declared_names() -> tuple[str, ...]:
    """The names of all intrinsics."""
    return tuple(_DECLARED)


def _meaning(subject: str, op: object) -> ComputeOp:
    if type(op) is not ComputeOp or op.num_outputs != 1:
        raise _wrong(subject, "the meaning is no compute of one output")
    extents = [axis.domain for axis in (*op.axes, *op.reduce_axes)]
    if not extents or not all(
        d is not None
        and isinstance(d.extent, Const)
        and isinstance(d.min, Const)
        and not d.min.value
        for d in extents
    ):
        raise _wrong(subject, f"the axes of {op.name} are not constant from 0")
    body = op.bodies[0]
    if isinstance(body, Reduce) and (
        len(body.sources) > 1 or body.where is not None or body.init is not None
    ):
        raise _wrong(subject, f"the reduction of {op.name} has a where=, an init= or a tuple")
    return op


def _reads_of(op: ComputeOp, inputs: tuple[Tensor, ...]) -> tuple[TensorRead, ...]:
    found: dict[Tensor, TensorRead] = {}
    for read in reads(*op.bodies):
        found.setdefault(read.tensor, read)
    return tuple(found[tensor] for tensor in inputs)


def _check_reads(subject: str, op: ComputeOp, inputs: tuple[Tensor, ...]) -> None:
    if not inputs:
        raise _wrong(subject, f"{op.name} reads nothing")
    for tensor in inputs:
        mine = [read for read in reads(*op.bodies) if read.tensor is tensor]
        plain = all(isinstance(index, Axis) for read in mine for index in read.indices)
        if not isinstance(tensor.op, PlaceholderOp):
            raise _wrong(subject, f"{op.name} reads {tensor.name}, which is computed")
        if len(mine) > 1 or not plain or len(set(mine[0].indices)) != tensor.ndim:
            raise _wrong(subject, f"{op.name} reads {', '.join(map(str, mine))}")
    used = {node for node in variables(*op.bodies) if not isinstance(node, Axis)}
    if used or _axis_values(op):
        raise _wrong(subject, f"{op.name} uses an axis or a runtime scalar as a value")


def _axis_values(op: ComputeOp) -> bool:
    """True when an axis occurs elsewhere than as an index."""
    stack: list[Expr] = list(op.bodies)
    while stack:
        node = stack.pop()
        if isinstance(node, Axis):
            return True
        if not isinstance(node, TensorRead):
            stack.extend(node.children())
    return False


def _wrong(subject: str, reason: str) -> ExprError:
    return ExprError(
        reason,
        subject=subject,
        hint="give te.compute over placeholders of constant shapes, each read once and at distinct "
        "axes: te.compute((4, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k))",
    )


def _on_cpu(subject: str, given: Any, count: int) -> LlvmFunction | CFunction | None:
    if given is None or isinstance(given, CFunction):
        return given
    if not isinstance(given, LlvmFunction):
        return foreign.c_function(given)
    if given.params != count:
        raise ExprError(
            f"the LLVM function {given.name} has {given.params} parameters, not {count}",
            subject=subject,
            hint="for each input, then for the output: a ptr, and an i64 stride per dimension",
        )
    return given


def _check_gpu(subject: str, given: object, count: int) -> None:
    if given is None:
        return
    if not isinstance(given, TritonKernel):
        raise ExprError(
            f"gpu is {given!r}",
            subject=subject,
            facts=[("allowed", "te.triton_snippet(source)")],
            hint="give the text of a @triton.jit function over tiles",
        )
    if len(given.params) != count:
        raise ExprError(
            f"the Triton function {given.name} has {len(given.params)} parameters, not {count}",
            subject=subject,
            hint="the inputs as tiles, and for a reduction the output so far",
        )
