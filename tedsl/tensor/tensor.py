"""Operations and the tensors they produce: the nodes of a computation's graph."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeGuard

import numpy as np

from tedsl.dtypes import DType
from tedsl.errors import ExprError, InternalError
from tedsl.expr import build
from tedsl.expr.naming import check_name
from tedsl.expr.nodes import Axis, Expr, IfThenElse, TensorRead
from tedsl.expr.visit import reading, reads
from tedsl.once import Remembers, once
from tedsl.shown import InNotebook
from tedsl.slips import TENSOR, Incomplete, NoValues, Numbered, is_same, no_array, suggests
from tedsl.tensor.axis import NoAxes
from tedsl.tensor.computes import Computes

if TYPE_CHECKING:
    from tedsl.expr.promote import DTypeLike, Number
    from tedsl.tensor.foreign import CFunction, PythonFunction, TritonKernel

Index: TypeAlias = "Expr | Tensor | int | np.integer[Any]"
"""What stands for one dimension when a tensor is read."""

IndexLike: TypeAlias = "Index | tuple[Index, ...]"
"""What stands between the brackets of `A[...]`."""


_OF_OPERATION = ["attrs", "body", "input_tensors", "num_outputs", "output", "reduce_axis", "tag"]
_OF_TVM = {"value_index": "index"} | {name: f"op.{name}" for name in _OF_OPERATION}


@suggests(ExprError, TENSOR, "a tensor", _OF_TVM)
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Tensor(NoValues, InNotebook):
    """Output `index` of `op`.  Indexing it (`A[i, j]` or `A(i, j)`) builds a read.  Operators work
    by element, with numpy's broadcasting, and make one operation each; `==` is identity (tensors
    are keys; an only output equals its operation, as TVM's `op in s.outputs`)."""

    op: Operation
    index: int = 0
    __array__ = no_array

    @property
    def name(self) -> str:
        """The operation's name, with `.v<index>` when it has several outputs."""
        return self.op.name if self.op.num_outputs == 1 else f"{self.op.name}.v{self.index}"

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Extents, outermost first; constants are int32 `Const`."""
        return self.op.output_shapes[self.index]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def axis(self) -> tuple[Axis, ...]:
        """The data axes of the operation."""
        return self.op.axis

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.op.output_dtypes[self.index]

    def __getitem__(self, indices: IndexLike) -> Any:
        """`A[i, j]`, `A[i][j]`, `A[()]`: an `Expr` once all dimensions are given, else a
        `TensorSlice` that takes the rest.

        Raises:
            ExprError: more indices than dimensions, or an index that is no integer.
        """
        given = indices if isinstance(indices, tuple) else (indices,)
        return read_partly(self, given)

    def __call__(self, *indices: Index) -> Expr:
        """`A(i, j)`: one element.

        Raises:
            ExprError: not as many indices as dimensions, or an index that is no integer.
        """
        return read(self, indices)

    def __bool__(self) -> bool:
        if self.dtype is not DType.bool:
            return True
        raise ExprError(
            f"the elements of {self.name} have no truth while it is being defined",
            hint="write te.select(condition, a, b), or te.if_then_else of elements",
        )

    def __eq__(self, other: object) -> bool:
        if build.is_scalar(other):
            raise ExprError(
                f"== between the tensor {self.name} and a scalar compares nothing",
                hint=f"use te.equal({self.name}, x) for all elements, or index the tensor",
            )
        return self is other or (self.op is other and self.op.num_outputs == 1)

    __hash__: ClassVar = object.__hash__

    def as_scalar(self) -> Expr:
        """The one element of a tensor of rank 0.

        Raises:
            ExprError: a tensor of higher rank.
        """
        if self.ndim:
            raise ExprError(
                f"tensor {self.name} has {self.ndim} dimensions and stands where one element is "
                "expected",
                hint=f"index it: {self.name}[{', '.join('ijklmn'[: self.ndim])}]",
            )
        return TensorRead(self, ())

    def __add__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("add", self, other)

    def __radd__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("add", other, self)

    def __sub__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("sub", self, other)

    def __rsub__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("sub", other, self)

    def __mul__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("mul", self, other)

    def __rmul__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("mul", other, self)

    def __truediv__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("div", self, other)

    def __rtruediv__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("div", other, self)

    def __floordiv__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("floordiv", self, other)

    def __rfloordiv__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("floordiv", other, self)

    def __mod__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("floormod", self, other)

    def __rmod__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("floormod", other, self)

    def __pow__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("power", self, other)

    def __rpow__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("power", other, self)

    def __and__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("bitwise_and", self, other)

    def __rand__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("bitwise_and", other, self)

    def __or__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("bitwise_or", self, other)

    def __ror__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("bitwise_or", other, self)

    def __xor__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("bitwise_xor", self, other)

    def __rxor__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("bitwise_xor", other, self)

    def __lshift__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("left_shift", self, other)

    def __rlshift__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("left_shift", other, self)

    def __rshift__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("right_shift", self, other)

    def __rrshift__(self, other: Expr | Number) -> Tensor:
        return broadcast.binary_operator("right_shift", other, self)

    def __matmul__(self, other: Tensor) -> Tensor:
        """The matrix product, `te.nn.matmul`, with its errors; a vector is a row, or a column."""
        return _product(self, other)

    def __rmatmul__(self, other: object) -> Tensor:
        return _product(other, self)

    def __lt__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("lt", self, other)

    def __le__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("le", self, other)

    def __gt__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("gt", self, other)

    def __ge__(self, other: Tensor | Expr | Number) -> Tensor:
        return broadcast.binary_operator("ge", self, other)

    def __neg__(self) -> Tensor:
        return broadcast.unary_operator("neg", self)

    def __invert__(self) -> Tensor:
        return broadcast.unary_operator("invert", self)

    def __abs__(self) -> Tensor:
        return broadcast.unary_operator("abs", self)

    def astype(self, dtype: DTypeLike) -> Tensor:
        """Every element as `dtype`; the same tensor when it already is."""
        return broadcast.cast_tensor(self, dtype)

    def __repr__(self) -> str:
        text: str = importlib.import_module("tedsl.tensor.printer").print_tensor(self)
        return text


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorSlice(NoValues, Incomplete):
    """A tensor with its first dimensions indexed: `A[i]` of a matrix.  `A[i][j]` completes it."""

    tensor: Tensor
    indices: tuple[Expr, ...]

    def __getitem__(self, indices: IndexLike) -> Any:
        """The read, or a longer slice, with further indices appended."""
        given = indices if isinstance(indices, tuple) else (indices,)
        return read_partly(self.tensor, (*self.indices, *given))

    def as_scalar(self) -> Expr:
        """Refused: dimensions are missing."""
        return read(self.tensor, self.indices)

    def __repr__(self) -> str:
        return f"{self.tensor.name}[{', '.join(map(repr, self.indices))}, ...]"


def read(tensor: Tensor, indices: Sequence[Index]) -> Expr:
    """One element of `tensor`.

    Raises:
        ExprError: not as many indices as dimensions, or an index that is no integer.
    """
    if len(indices) != tensor.ndim:
        raise ExprError(
            f"{tensor.name} has {tensor.ndim} dimensions and is read with {len(indices)} indices",
            hint="give one index per dimension",
        )
    return TensorRead(tensor, tuple(_index(tensor, d, each) for d, each in enumerate(indices)))


def read_partly(tensor: Tensor, indices: Sequence[Index]) -> Expr | TensorSlice:
    """One element of `tensor`, or a `TensorSlice` while dimensions are missing."""
    if len(indices) >= tensor.ndim:
        return read(tensor, indices)
    return TensorSlice(tensor, tuple(_index(tensor, d, each) for d, each in enumerate(indices)))


def _is_index(value: object) -> TypeGuard[Index]:
    return isinstance(value, (Expr, Tensor, int, np.integer)) and not isinstance(value, bool)


def _index(tensor: Tensor, dimension: int, index: Index) -> Expr:
    """`index` as an integer expression."""
    wanted = "an integer expression for every dimension; ranges and masks are written as computes"
    if isinstance(index, Tensor) and index.ndim:
        wanted = f"read it: {index.name}[{', '.join('ijklmn'[: index.ndim])}]"
    elif _is_index(index):
        expr = build.as_expr(index)
        if expr.dtype.is_integer:
            return expr
        wanted = f"the index is {expr.dtype}; cast it, e.g. x.astype('int32')"
    raise ExprError(
        f"index {dimension} of {tensor.name} is {index!r}, not an integer",
        hint=wanted,
    )


@suggests(ExprError, owner="an operation")
class Operation(Computes, InNotebook, Remembers):
    """Base of `PlaceholderOp`, `ComputeOp`, `ScanOp` and `ExternOp`.  Outputs share one shape, but
    for those of a `ScanOp`, and of an `ExternOp`, whose `shape` is that of the first."""

    __slots__ = ("_moved",)
    same_as = is_same
    name: str
    shape: tuple[Expr, ...]

    @property
    def num_outputs(self) -> int:
        """How many tensors the operation makes."""
        return len(self.outputs)

    @property
    def output_dtypes(self) -> tuple[DType, ...]:
        """Element type of each output."""
        raise NotImplementedError

    @property
    def output_shapes(self) -> tuple[tuple[Expr, ...], ...]:
        """Shape of each output."""
        return (self.shape,) * self.num_outputs

    @property
    def extents(self) -> tuple[Expr, ...]:
        """The extents of all outputs, each shape once."""
        return self.shape

    def __repr__(self) -> str:
        text: str = importlib.import_module("tedsl.tensor.printer").print_operation(self)
        return text

    @property
    def axis(self) -> tuple[Axis, ...]:
        """The data axes; an input has none."""
        return ()

    @property
    def reduce_axis(self) -> tuple[Axis, ...]:
        """The reduce axes; an input has none."""
        return ()

    @property
    def attrs(self) -> Mapping[str, Any]:
        """What `attrs=` said where the operation was defined."""
        return noted(self)

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are read, each once."""
        return ()

    def output(self, index: int = 0) -> Tensor:
        """The tensor of output `index` (the same object each time)."""
        return Numbered(self.outputs)[index]


Outputs = Tensor | Computes | Sequence[Tensor | Computes]
"""What is to be computed: what computes some stands for its tensors."""


@once
def noted(op: Operation) -> Mapping[str, Any]:
    """Notes on an operation, which nothing follows."""
    return {}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PlaceholderOp(Operation):
    """An input of the computation."""

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    outputs: tuple[Tensor, ...] = field(init=False)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        check_name(self.name, "placeholder")
        object.__setattr__(self, "outputs", (Tensor(self, 0),))

    @property
    def output_dtypes(self) -> tuple[DType, ...]:
        return (self.dtype,)

    @property
    def tag(self) -> str:
        """Empty: inputs have no tags."""
        return ""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ComputeOp(Operation):
    """`outputs[o][axes] = bodies[o]` for every point of `axes`.

    Requires: axis domains start at 0 and have the extents of `shape`; bodies use only `axes`,
    `reduce_axes` and runtime scalars; either every body is a `Reduce` (at the top, equal but for
    `index`) or none contains one.
    """

    name: str
    axes: tuple[Axis, ...]
    bodies: tuple[Expr, ...]
    shape: tuple[Expr, ...]
    reduce_axes: tuple[Axis, ...] = ()
    tag: str = ""
    outputs: tuple[Tensor, ...] = field(init=False)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        check_name(self.name, "compute")
        object.__setattr__(self, "outputs", tuple(Tensor(self, i) for i in range(len(self.bodies))))

    def __getattr__(self, name: str) -> Any:
        """The bodies of an operation that `renamed` or `later` made, when first asked for."""
        moved = getattr(self, "_moved", None) if name == "bodies" else None
        if moved is None:
            missing: Any = Operation
            return missing.__getattr__(self, name)
        source, was, now, make = moved
        changes = {} if make else dict(zip(was, now, strict=True))
        bodies = make() if make else reading(source.bodies, changes)
        object.__setattr__(self, "bodies", bodies)
        return bodies

    def renamed(self, read: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> ComputeOp:
        """The operation reading what is `given` in place of what it has `read`, which is all of
        that, each in place of one of the same dtype.

        Its bodies are made when they are asked for: the next rewrite mostly makes others.
        """
        source, was, now, make = getattr(self, "_moved", (self, (), (), None))
        if source is self or make is not None:
            source, was, now = self, read, read
        if now is not read:
            changes = dict(zip(read, given, strict=True))
            given = tuple([changes.get(tensor, tensor) for tensor in now])
        return self._later(source, was, given, None)

    def later(self, make: Callable[[], tuple[Expr, ...]]) -> ComputeOp:
        """The operation with other bodies, of the same dtypes, made when they are asked for."""
        return self._later(self, (), (), make)

    def _later(
        self,
        source: ComputeOp,
        was: tuple[Tensor, ...],
        now: tuple[Tensor, ...],
        make: Callable[[], tuple[Expr, ...]] | None,
    ) -> ComputeOp:
        made, put = object.__new__(type(self)), object.__setattr__
        names, values = _kept(type(self))
        for name, value in zip(names, values(self), strict=True):
            put(made, name, value)
        put(made, "outputs", tuple([Tensor(made, each.index) for each in self.outputs]))
        put(made, "_moved", (source, was, now, make))
        return made

    @property
    def axis(self) -> tuple[Axis, ...]:
        """TVM's name for `axes`."""
        return Numbered(self.axes)

    @property
    def reduce_axis(self) -> tuple[Axis, ...]:
        """TVM's name for `reduce_axes`."""
        return Numbered(self.reduce_axes) if self.reduce_axes else NoAxes(self)

    @property
    def body(self) -> tuple[Expr, ...]:
        """TVM's name for `bodies`."""
        return Numbered(self.bodies)

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return Numbered(dict.fromkeys(read.tensor for read in reads(*self.bodies)))

    @property
    def output_dtypes(self) -> tuple[DType, ...]:
        source = getattr(self, "_moved", (self,))[0]
        return tuple(body.dtype for body in source.bodies)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ScanOp(ComputeOp):
    """`outputs[o][t, ...] = inits[o][t, ...]` for the first rows, then `updates[o][t, ...]`, one
    `t` after the other, where the updates read `states[o]`, the output so far.

    It is a `ComputeOp` that says so: axis 0 is ORDERED, and body `o` is
    `if_then_else(t < first, inits[o][axes], updates[o][axes])`, which every pass that follows reads
    can follow.  States of other shapes have axes of their own; `shape` is that of all axes.

    Requires: as many states as bodies, of that form; `te.scan` makes it.
    """

    states: tuple[Tensor, ...] = ()
    inputs: tuple[Tensor, ...] = ()

    @property
    def output_shapes(self) -> tuple[tuple[Expr, ...], ...]:
        return tuple(update.shape for update in self.updates)

    @property
    def scan_axis(self) -> Axis:
        """The axis of the steps."""
        return self.axes[0]

    @property
    def spatial_axis(self) -> tuple[Axis, ...]:
        """The axes within one step."""
        return self.axes[1:]

    @property
    def inits(self) -> tuple[Tensor, ...]:
        """What the first rows are, for each output."""
        return tuple(init.tensor for init, _ in self.rows())

    @property
    def updates(self) -> tuple[Tensor, ...]:
        """What the later rows are, for each output."""
        return tuple(update.tensor for _, update in self.rows())

    spatial_axis_, init, update = spatial_axis, inits, updates  # TVM's names
    state_placeholder = property(attrgetter("states"))

    @property
    def first(self) -> Expr:
        """The first step: the number of rows that are given."""
        return self.inits[0].shape[0]

    def rows(self) -> tuple[tuple[TensorRead, TensorRead], ...]:
        """How each output reads its init and its update, over the axes that are its own."""
        found: list[tuple[TensorRead, TensorRead]] = []
        for body in self.bodies:
            match body:
                case IfThenElse(a=TensorRead() as init, b=TensorRead() as update):
                    found.append((init, update))
                case _:
                    raise InternalError(f"the scan {self.name} is not of its form: {body}")
        return tuple(found)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExternOp(Operation):
    """Tensors that a function from outside computes of whole `inputs`; made by `te.extern`.

    `gpu` is what the GPU runs in place of `function`, which stays the meaning.
    """

    name: str
    inputs: tuple[Tensor, ...]
    shapes: tuple[tuple[Expr, ...], ...]
    dtypes: tuple[DType, ...]
    function: PythonFunction | CFunction
    gpu: PythonFunction | TritonKernel | None = None
    tag: str = ""
    outputs: tuple[Tensor, ...] = field(init=False)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        check_name(self.name, "extern")
        object.__setattr__(self, "outputs", tuple(Tensor(self, i) for i in range(len(self.dtypes))))

    @property
    def shape(self) -> tuple[Expr, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The shape of the first output."""
        return self.shapes[0]

    @property
    def output_dtypes(self) -> tuple[DType, ...]:
        return self.dtypes

    @property
    def output_shapes(self) -> tuple[tuple[Expr, ...], ...]:
        return self.shapes

    @property
    def extents(self) -> tuple[Expr, ...]:
        return tuple(extent for shape in self.shapes for extent in shape)

    @property
    def input_tensors(self) -> tuple[Tensor, ...]:
        return self.inputs

    def reading(self, tensors: Mapping[Tensor, Tensor]) -> ExternOp:
        """The operation with other inputs; itself when none of its inputs is a key."""
        if not any(tensor in tensors for tensor in self.inputs):
            return self
        return replace(self, inputs=tuple(tensors.get(each, each) for each in self.inputs))


def _product(a: object, b: object) -> Any:
    return importlib.import_module("tedsl.nn.matmul").product(a, b)


@cache
def _kept(kind: type[ComputeOp]) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]]]:
    """The fields that an operation with other bodies has in common with it, and what they are."""
    names = [each.name for each in fields(kind) if each.name not in ("bodies", "outputs")]
    return tuple(names), attrgetter(*names)


# At the end, because broadcasting makes operations and their tensors have its operators.
from tedsl.tensor import broadcast  # noqa: E402
