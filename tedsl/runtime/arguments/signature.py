"""Checking the arguments of a call against the kernel's signature, and solving its symbolic sizes.

Runs once per combination of shapes, strides, dtypes and devices: `Kernel` keeps the resulting
`Binding`.  Every refusal names the argument, what was given, what is allowed and what to do.
Imports `expr`, `ir.nodes`, `runtime.arrays.views`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from tedsl import slips
from tedsl.dtypes import DType
from tedsl.errors import BackendError
from tedsl.expr.nodes import Expr, Var
from tedsl.expr.visit import variables
from tedsl.ir.nodes import Buffer, Module
from tedsl.ir.printer import print_expr
from tedsl.runtime.arguments.order import placed
from tedsl.runtime.arguments.sizes import Number, Values, bare_var, evaluate, evaluate_shape, fits
from tedsl.runtime.arrays.views import ArrayView, Device, view


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and element type of one array of a call."""

    shape: tuple[int, ...]
    dtype: DType

    @property
    def size(self) -> int:
        """Number of elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.dtype.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """What one combination of argument shapes means.

    `sizes` are in the order of the signature's; `device` is where the call runs; `framework` is
    that of the inputs.
    """

    sizes: tuple[Number, ...]
    values: Values
    inputs: tuple[ArraySpec, ...]
    outputs: tuple[ArraySpec, ...]
    workspaces: tuple[ArraySpec, ...]
    device: Device
    framework: str

    @property
    def empty(self) -> bool:
        """True when no output has an element, so that there is nothing to compute."""
        return all(spec.size == 0 for spec in self.outputs)


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """What a kernel takes: inputs by position, outputs, and `keywords`, the scalars that no input
    shape determines.  `assumptions` are conditions on the sizes that every call is checked against.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspaces: tuple[Buffer, ...]
    sizes: tuple[Var, ...]
    scalars: tuple[Var, ...]
    keywords: Mapping[str, Var]
    assumptions: tuple[Expr, ...] = ()

    @staticmethod
    def of(module: Module) -> Signature:
        """The signature of a lowered module.

        Raises:
            BackendError: two scalars that have to be given by name have the same one.
        """
        buffers = (*module.inputs, *module.outputs, *module.workspaces)
        used = [v for b in buffers for v in variables(*b.shape) if isinstance(v, Var)]
        solved = {bare_var(extent) for b in module.inputs for extent in b.shape}
        keywords: dict[str, Var] = {}
        scalars = tuple(dict.fromkeys((*module.sizes, *used)))
        for var in scalars:
            if var in solved:
                continue
            if var.name == "out":
                raise BackendError(
                    "a runtime scalar cannot be called 'out', the name of the output argument",
                    subject=module.name,
                    hint="give the te.var another name",
                )
            if var.name in keywords:
                raise BackendError(
                    f"two runtime scalars are called {var.name!r}",
                    subject=module.name,
                    hint="give each te.var that no input shape determines its own name",
                )
            keywords[var.name] = var
        return Signature(
            module.name,
            module.inputs,
            module.outputs,
            module.workspaces,
            module.sizes,
            scalars,
            keywords,
            module.assumptions,
        )

    def __str__(self) -> str:
        takes = [_buffer_text(b) for b in self.inputs]
        takes += [f"{name}: {var.dtype}" for name, var in self.keywords.items()]
        gives = ", ".join(_buffer_text(b) for b in self.outputs)
        return f"{self.name}({', '.join(takes)}) -> {gives}"

    def by_name(
        self, inputs: Sequence[object], keywords: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The inputs by position, where some are given by name, and the other keywords.

        Raises:
            BackendError: an input that is given twice, or not at all.
        """
        names = ["" if b.name in self.keywords else b.name for b in self.inputs]
        self._require_known(keywords, [*self.keywords, *names])
        return placed(self.name, names, inputs, keywords)

    def tell_copied(self, copied: Sequence[tuple[int, ArrayView]]) -> None:
        """Warn the caller of a kernel of inputs that were copied, given by place."""
        for place, array in copied:
            torch = array.framework == "torch"
            make = "x.contiguous()" if torch else "numpy.ascontiguousarray(x)"
            warnings.warn(
                f"{self.name}: {self.inputs[place].name} is not contiguous (strides "
                f"{list(array.strides)} in elements) and is copied at every call; pass {make} once,"
                " or define the computation over the layout that you have",
                RuntimeWarning,
                stacklevel=5,
            )

    def view_inputs(self, inputs: Sequence[object]) -> tuple[ArrayView, ...]:
        """The inputs as views.

        Raises:
            BackendError: too few, too many, or something that is no array.
        """
        if len(inputs) != len(self.inputs):
            raise BackendError(
                f"{len(inputs)} arrays given, {len(self.inputs)} expected",
                subject=self.name,
                facts=[("allowed", str(self))],
                hint="pass the inputs in this order; outputs go to out=, scalars by name",
            )
        return tuple(
            self._view(array, buffer, f"argument {i + 1} ({buffer.name})")
            for i, (array, buffer) in enumerate(zip(inputs, self.inputs, strict=True))
        )

    def view_outputs(self, out: object) -> tuple[ArrayView, ...]:
        """The arrays of `out=` as views: one array, or a tuple or list of them.

        Raises:
            BackendError: not as many as the kernel has outputs, or something that is no array.
        """
        several = isinstance(out, (tuple, list))
        given = cast(Sequence[object], out) if several else (out,)
        if len(given) != len(self.outputs):
            raise BackendError(
                f"{len(given)} arrays given, the kernel has {len(self.outputs)} outputs",
                subject=f"{self.name}: out=",
                facts=[("allowed", ", ".join(_buffer_text(b) for b in self.outputs))],
                hint="pass out=(array, ...) in this order, or leave it away",
            )
        return tuple(
            self._view(array, buffer, f"out= ({buffer.name})")
            for array, buffer in zip(given, self.outputs, strict=True)
        )

    def _view(self, array: object, buffer: Buffer, label: str) -> ArrayView:
        try:
            return view(array)
        except BackendError as error:
            facts = error.facts or (("allowed", _buffer_text(buffer)),)
            raise BackendError(
                error.reason, subject=f"{self.name}: {label}", facts=facts, hint=error.hint
            ) from error

    def bind(
        self, inputs: Sequence[ArrayView], scalars: Mapping[str, object], device: Device
    ) -> Binding:
        """Check inputs and scalars, and solve the sizes.

        Args:
            inputs: one view per input.
            scalars: the keyword arguments.
            device: where a call without inputs runs; inputs are on a device of this kind.

        Raises:
            BackendError: anything that does not fit.
        """
        for i, (array, buffer) in enumerate(zip(inputs, self.inputs, strict=True)):
            label = f"{self.name}: argument {i + 1} ({buffer.name})"
            _check_form(array, buffer, label, device.kind)
            _check_device(array, inputs[0], label)
        values = {**self._solve(inputs), **self._scalars(scalars)}
        for i, (array, buffer) in enumerate(zip(inputs, self.inputs, strict=True)):
            _check_shape(array, buffer, values, f"{self.name}: argument {i + 1} ({buffer.name})")
        self._check_assumptions(values)
        return Binding(
            sizes=tuple(values[var] for var in self.sizes),
            values=values,
            inputs=tuple(
                ArraySpec(array.shape, buffer.dtype)
                for array, buffer in zip(inputs, self.inputs, strict=True)
            ),
            outputs=self._output_specs(values),
            workspaces=self._workspace_specs(values),
            device=inputs[0].device if inputs else device,
            framework=_common_framework(inputs, device.kind),
        )

    def check_outputs(
        self, outputs: Sequence[ArrayView], inputs: Sequence[ArrayView], binding: Binding
    ) -> None:
        """Check the arrays of `out=`: form, shape, writable, and no overlap with an input or each
        other.

        Raises:
            BackendError: anything that does not fit.
        """
        for position, (array, buffer) in enumerate(zip(outputs, self.outputs, strict=True)):
            label = f"{self.name}: out= ({buffer.name})"
            _check_form(array, buffer, label, binding.device.kind)
            if array.device != binding.device:
                raise _refusal(
                    label, f"is on {array.device}", array, f"an array on {binding.device}"
                )
            _check_shape(array, buffer, binding.values, label)
            if not array.writable:
                raise _refusal(
                    label,
                    "is read-only",
                    array,
                    "a writable array",
                    "pass a fresh array, or leave out= away",
                )
            others = [
                *((f"input {b.name}", v) for b, v in zip(self.inputs, inputs, strict=True)),
                *((f"output {b.name}", v) for b, v in zip(self.outputs, outputs, strict=True)),
            ]
            del others[len(inputs) + position]
            for name, other in others:
                if array.overlaps(other):
                    raise _refusal(
                        label,
                        f"shares memory with {name}",
                        array,
                        "memory of its own (inputs are still read while outputs are written)",
                        "pass a separate array, or leave out= away",
                    )

    def _solve(self, inputs: Sequence[ArrayView]) -> dict[Var, Number]:
        """Values of the variables that stand alone in an input's dimension; the first such
        dimension defines.
        """
        values: dict[Var, Number] = {}
        for i, (array, buffer) in enumerate(zip(inputs, self.inputs, strict=True)):
            for extent, given in zip(buffer.shape, array.shape, strict=True):
                var = bare_var(extent)
                if var is None or var in values:
                    continue
                label = f"{self.name}: argument {i + 1} ({buffer.name})"
                _check_value(var, given, label, str(array))
                values[var] = given
        return values

    def _scalars(self, scalars: Mapping[str, object]) -> dict[Var, Number]:
        """Values of the scalars given by name."""
        self._require_known(scalars, list(self.keywords))
        missing = [name for name in self.keywords if name not in scalars]
        if missing:
            raise BackendError(
                f"scalar {missing[0]!r} is missing",
                subject=self.name,
                facts=self._given(scalars),
                hint=f"call with {missing[0]}=...",
            )
        values: dict[Var, Number] = {}
        for name, var in self.keywords.items():
            values[var] = _scalar(var, scalars[name], f"{self.name}: {name}=")
        return values

    def _given(self, keywords: Mapping[str, object]) -> list[tuple[str, str]]:
        allowed = ", ".join(f"{n}: {v.dtype}" for n, v in self.keywords.items()) or "none"
        return [("given", ", ".join(keywords) or "none"), ("allowed", allowed)]

    def _require_known(self, keywords: Mapping[str, object], names: Sequence[str]) -> None:
        for name in keywords:
            if name not in names:
                near = slips.near(name, [each for each in names if each])
                do = (
                    f"did you mean {' or '.join(near)}?" if near else "sizes follow from the inputs"
                )
                raise BackendError(
                    f"no scalar {name!r}", subject=self.name, facts=self._given(keywords), hint=do
                )

    def _check_assumptions(self, values: Values) -> None:
        """What the code was made to rely on holds for the sizes of this call."""
        for condition in self.assumptions:
            if not evaluate(condition, values):
                used = [v for v in variables(condition) if isinstance(v, Var)]
                raise BackendError(
                    f"the kernel assumes {print_expr(condition)}, which does not hold",
                    subject=self.name,
                    facts=[("given", ", ".join(f"{v.name} = {values[v]}" for v in used))],
                    hint="pass arrays of such sizes, or build the kernel without that assumption",
                )

    def _workspace_specs(self, values: Values) -> tuple[ArraySpec, ...]:
        """An extent below 0, of what loops read that do not run, is 0."""
        shapes = ((b, evaluate_shape(b.shape, values)) for b in self.workspaces)
        return tuple(ArraySpec(tuple(max(n, 0) for n in shape), b.dtype) for b, shape in shapes)

    def _output_specs(self, values: Values) -> tuple[ArraySpec, ...]:
        specs: list[ArraySpec] = []
        for buffer in self.outputs:
            shape = evaluate_shape(buffer.shape, values)
            if any(extent < 0 for extent in shape):
                raise BackendError(
                    f"output {buffer.name} would have the shape {list(shape)}",
                    subject=self.name,
                    facts=[("where", f"{_buffer_text(buffer)}, {_values_text(buffer, values)}")],
                    hint="give sizes that leave no extent negative",
                )
            specs.append(ArraySpec(shape, buffer.dtype))
        return tuple(specs)


def _buffer_text(buffer: Buffer) -> str:
    return f"{buffer.name}: {buffer.dtype}[{', '.join(map(print_expr, buffer.shape))}]"


def _values_text(buffer: Buffer, values: Values) -> str:
    used = [v for v in variables(*buffer.shape) if isinstance(v, Var)]
    return ", ".join(f"{v.name} = {values[v]}" for v in used)


def _refusal(
    label: str, reason: str, array: ArrayView, allowed: str, hint: str = ""
) -> BackendError:
    return BackendError(
        reason, subject=label, facts=[("given", str(array)), ("allowed", allowed)], hint=hint
    )


def _check_form(array: ArrayView, buffer: Buffer, label: str, device_kind: str) -> None:
    """Rank, dtype, device, layout and alignment of one argument."""
    fault = _form_fault(array, buffer, device_kind)
    if fault is not None:
        reason, allowed, hint = fault
        raise _refusal(label, reason, array, _buffer_text(buffer) + allowed, hint)


def _form_fault(array: ArrayView, buffer: Buffer, device_kind: str) -> tuple[str, str, str] | None:
    """What does not fit, what more is asked than dtype and shape, and what to do."""
    torch = array.framework == "torch"
    item = buffer.dtype.nbytes
    if len(array.shape) != len(buffer.shape):
        reason = f"has {len(array.shape)} dimensions, {len(buffer.shape)} expected"
        return reason, "", "reshape it"
    if array.dtype != buffer.dtype:
        how = f"x.to(torch.{buffer.dtype})" if torch else f"x.astype({buffer.dtype.value!r})"
        bits = {DType.uint8: buffer.dtype.is_float8, DType.uint16: buffer.dtype is DType.bfloat16}
        if isinstance(array.dtype, DType) and bits.get(array.dtype, False):
            kind = f"torch.{buffer.dtype}" if torch else f"ml_dtypes.{buffer.dtype}"
            how += f", or x.view({kind}) where these are its bits"
        return f"is {array.dtype}, {buffer.dtype} expected", "", f"convert it: {how}"
    if array.device.kind != device_kind:
        where = {"cpu": " in host memory", "cuda": " on the GPU"}[device_kind]
        moves = {"cpu": "pass x.cpu() or a NumPy array", "cuda": "pass x.cuda()"}
        reason = f"is on {array.device}, but the kernel runs on {device_kind}"
        return reason, where, moves[device_kind]
    if not array.contiguous:
        make = "x.contiguous()" if torch else "numpy.ascontiguousarray(x)"
        return (
            f"is not contiguous: strides {list(array.strides)} in elements",
            ", row-major without gaps",
            f"pass {make}, or define the computation over the layout that you have",
        )
    if array.pointer % item:
        full = {"cpu": 64, "cuda": 16}[device_kind]  # of a vector, of one access of a thread
        allowed = f" at a multiple of {item} bytes (of {full} for full speed)"
        return f"is not aligned: address {array.pointer:#x}", allowed, "pass a copy of it"
    return None


def _check_device(array: ArrayView, first: ArrayView, label: str) -> None:
    if array.device != first.device:
        reason = f"is on {array.device}, argument 1 is on {first.device}"
        raise _refusal(label, reason, array, "all arrays on one device", "move them together")


def _check_shape(array: ArrayView, buffer: Buffer, values: Values, label: str) -> None:
    """Every dimension has the extent that its expression gives."""
    for position, (extent, given) in enumerate(zip(buffer.shape, array.shape, strict=True)):
        expected = evaluate(extent, values)
        if given != expected:
            known = _values_text(buffer, values)
            text = print_expr(extent)
            why = f" ({text})" if text != str(expected) else ""
            raise _refusal(
                label,
                f"dimension {position} is {given}, {expected}{why} expected",
                array,
                _buffer_text(buffer) + (f" with {known}" if known else ""),
                "symbolic sizes are set by the first dimension that is just that size"
                if known
                else "the kernel was built for this size; use te.var for sizes that vary",
            )


def _scalar(var: Var, given: Any, label: str) -> Number:
    """One keyword scalar as a Python number of the variable's dtype."""
    is_numpy = isinstance(given, np.generic)
    value: object = cast(Any, given).item() if is_numpy else given
    kind = "float" if var.dtype.is_float else "bool" if var.dtype.is_bool else "int"
    taken = {"float": (int, float), "bool": (bool,), "int": (int,)}[kind]
    if not isinstance(value, taken) or (isinstance(value, bool) and kind != "bool"):
        raise BackendError(
            f"{type(given).__name__} given, {var.dtype} expected",
            subject=label,
            facts=[("given", repr(given))],
            hint=f"pass a Python {kind}",
        )
    _check_value(var, value, label, repr(given))
    return float(value) if kind == "float" else value


def _check_value(var: Var, value: Number, label: str, given: str) -> None:
    lower = var.lower if var.lower is not None else var.dtype.info.lowest
    if not fits(value, var.dtype) or (var.lower is not None and value < var.lower):
        raise BackendError(
            f"{var.name} = {value} is outside its range",
            subject=label,
            facts=[
                ("given", given),
                ("allowed", f"{lower} .. {var.dtype.info.highest} ({var.dtype})"),
            ],
            hint=f"declare te.var({var.name!r}) with a wider dtype, or give a value in the range",
        )


def _common_framework(inputs: Sequence[ArrayView], device_kind: str) -> str:
    """PyTorch when every input is a PyTorch tensor; on the GPU always."""
    if device_kind == "cuda":
        return "torch"
    torch = bool(inputs) and all(array.framework == "torch" for array in inputs)
    return "torch" if torch else "numpy"
