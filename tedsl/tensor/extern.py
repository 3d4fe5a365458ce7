"""`extern`: tensors that a function from outside of the language computes.

Imports `foreign` (what may be called) and the checks of `compute`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tedsl.dtypes import DType
from tedsl.errors import ExprError
from tedsl.expr import build
from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.expr.promote import DTypeLike, as_dtype
from tedsl.expr.visit import variables
from tedsl.once import tell
from tedsl.tensor.bounds_check import check_complete
from tedsl.tensor.compute import Shape, as_shape
from tedsl.tensor.foreign import CFunction, PythonFunction, TritonKernel, as_foreign, torch_function
from tedsl.tensor.printer import operations
from tedsl.tensor.scan_body import within_scans
from tedsl.tensor.tags import current_tag
from tedsl.tensor.tensor import ExternOp, Tensor, noted


def extern(
    shape: Shape | Sequence[Shape],
    inputs: Sequence[Tensor],
    fcompute: Callable[[Sequence[Any], Sequence[Any]], Any] | PythonFunction | CFunction,
    name: str = "extern",
    dtype: DTypeLike | Sequence[DTypeLike] | None = None,
    in_buffers: object = None,
    out_buffers: object = None,
    tag: str = "",
    attrs: Mapping[str, Any] | None = None,
    gpu: Callable[[Sequence[Any], Sequence[Any]], Any] | TritonKernel | None = None,
) -> Tensor | list[Tensor]:
    """Tensors that a function computes of whole tensors: what the language cannot say.

    Args:
        shape: of the output, or a list of shapes, one for each output.
        inputs: the tensors it reads, whole.
        fcompute: what is called, when the kernel runs, with `(ins, outs)`.  A Python function takes
            two tuples of NumPy arrays over the kernel's own memory; it fills `outs` in place and
            returns nothing, or returns arrays of exactly their shapes and dtypes.  Inputs are
            read-only.  `te.torch_function(f)` takes PyTorch tensors instead, and
            `te.c_function(address)`, or a ctypes function, is called as
            `int32_t f(void **arrays, const int64_t *shape)`.  It is the meaning: `te.evaluate` and
            the CPU call it.
        name: what it prints as.
        dtype: of the output, or of each; by default that of the inputs, which then have one.
        in_buffers: accepted for the sake of TVM scripts; must be None: arrays are row-major.
        out_buffers: as `in_buffers`.
        tag: free text for whoever looks at operations.
        attrs: free notes by name, kept as `op.attrs`; nothing follows them.
        gpu: what the GPU runs: a function of PyTorch tensors, called between kernels at the current
            stream, or `te.triton_kernel(source, grid)`.  Not needed where `fcompute` is a
            `te.torch_function`.

    Returns:
        The tensor, or a list of them when several shapes were given.

    Raises:
        ExprError: an argument that is no tensor, shape or function, or that TVM's IR is needed for.
    """
    subject = f"extern {name!r}"
    _check_absent(subject, in_buffers, out_buffers)
    sources = _inputs(subject, inputs)
    shapes = _shapes(subject, shape)
    dtypes = _dtypes(subject, dtype, sources, len(shapes))
    before = operations(sources)
    steps = within_scans(before)
    check_complete(op for op in before if op not in steps)
    function = as_foreign(subject, fcompute)
    device = _on_gpu(subject, gpu)
    op = ExternOp(name, sources, shapes, dtypes, function, device, tag or current_tag())
    if isinstance(device, TritonKernel):
        op = _with_kernel(subject, op, device)
    tell(noted, op, dict(attrs or {}))
    return op.outputs[0] if len(shapes) == 1 else list(op.outputs)


def _check_absent(subject: str, in_buffers: object, out_buffers: object) -> None:
    for what, given in (("in_buffers", in_buffers), ("out_buffers", out_buffers)):
        if given is not None and not (isinstance(given, list) and not given):
            raise ExprError(
                f"{what} was given, and buffers are not declared here",
                subject=subject,
                hint=f"leave {what} away: the function gets row-major arrays of the shapes and "
                "dtypes of the tensors; for another layout, copy within it",
            )


def _inputs(subject: str, given: object) -> tuple[Tensor, ...]:
    items = cast("Sequence[object]", given if isinstance(given, (list, tuple)) else [given])
    found = [item for item in items if isinstance(item, Tensor)]
    if len(found) != len(items):
        raise ExprError(
            f"the inputs are {given!r}",
            subject=subject,
            facts=[("allowed", "a list of tensors")],
            hint="pass what te.placeholder or te.compute returned",
        )
    return tuple(found)


def _shapes(subject: str, shape: object) -> tuple[tuple[Expr, ...], ...]:
    items = cast("Sequence[Any]", shape)
    several = isinstance(shape, (list, tuple)) and any(isinstance(i, (list, tuple)) for i in items)
    given = items if several else [cast("Any", shape)]
    found = tuple(as_shape(each, subject) for each in given)
    if not found:
        raise ExprError("there are no outputs", subject=subject, hint="give at least one shape")
    for extent in (extent for each in found for extent in each):
        axes = [node for node in variables(extent) if isinstance(node, Axis)]
        if axes:
            raise ExprError(
                f"an extent depends on the axis {axes[0].name}",
                subject=subject,
                hint="use ints and te.var sizes",
            )
    return found


def _dtypes(subject: str, given: object, inputs: Sequence[Tensor], count: int) -> tuple[DType, ...]:
    if given is None:
        kinds = dict.fromkeys(tensor.dtype for tensor in inputs)
        if len(kinds) != 1:
            shown = ", ".join(f"{t.name}: {t.dtype}" for t in inputs) or "none"
            raise ExprError(
                "dtype is not given, and the inputs do not have one dtype",
                subject=subject,
                facts=[("inputs", shown)],
                hint='give dtype="float32", or a list of one for each output',
            )
        return tuple(kinds) * count
    many = isinstance(given, (list, tuple))
    items = cast("Sequence[DTypeLike]", given if many else [given] * count)
    if len(items) != count:
        raise ExprError(
            f"{len(items)} dtypes are given for {count} outputs",
            subject=subject,
            hint="give one dtype for all outputs, or one for each",
        )
    return tuple(map(as_dtype, items))


def _on_gpu(subject: str, gpu: object) -> PythonFunction | TritonKernel | None:
    if gpu is None or isinstance(gpu, TritonKernel):
        return gpu
    if isinstance(gpu, PythonFunction) and gpu.torch:
        return gpu
    if isinstance(gpu, (PythonFunction, CFunction)) or not callable(gpu):
        raise ExprError(
            f"gpu is {gpu!r}, which does not run on a GPU",
            subject=subject,
            facts=[("allowed", "a function of PyTorch tensors, or te.triton_kernel(source, grid)")],
            hint="leave gpu away for an extern that runs on the CPU only",
        )
    return torch_function(cast("Callable[[Sequence[Any], Sequence[Any]], Any]", gpu))


def _with_kernel(subject: str, op: ExternOp, kernel: TritonKernel) -> ExternOp:
    """The operation with its kernel's parameters checked and its grid as expressions."""
    tensors = (*op.inputs, *op.outputs)
    known = sizes_of(op)
    rest = kernel.params[len(tensors) :]
    unknown = [each for each in rest if each not in known]
    if len(kernel.params) < len(tensors) or unknown:
        what = f"the size {unknown[0]!r}" if unknown else f"{len(kernel.params)} parameters"
        raise ExprError(
            f"the kernel {kernel.name} takes {what}",
            subject=subject,
            facts=[
                ("given", ", ".join(kernel.params) or "nothing"),
                ("pointers", ", ".join(tensor.name for tensor in tensors)),
                ("sizes", ", ".join(known) or "none"),
            ],
            hint="its parameters are a pointer for each input, one for each output, then sizes by "
            "their names; others need a default",
        )
    grid = tuple(build.as_expr(extent) for extent in kernel.grid)
    for extent in grid:
        strange = [v for v in variables(extent) if known.get(v.name) is not v]
        if strange or not extent.dtype.is_integer:
            raise ExprError(
                f"the grid extent {extent} is not made of ints and sizes of the extern",
                subject=subject,
                facts=[("sizes", ", ".join(known) or "none")],
                hint="for example (n + 127) // 128 with n a te.var of the shapes",
            )
    return replace(op, gpu=replace(kernel, grid=grid))


def sizes_of(op: ExternOp) -> dict[str, Var]:
    """The runtime scalars in the shapes of inputs and outputs, by name."""
    extents = [extent for tensor in (*op.inputs, *op.outputs) for extent in tensor.shape]
    return {v.name: v for v in variables(*extents) if isinstance(v, Var)}
