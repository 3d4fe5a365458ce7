"""Operations and the tensors they produce: the nodes of a computation's graph."""

from __future__ import annotations

from dataclasses import dataclass, field

from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Expr


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """Output `index` of `op`.  Indexing it (`A[i, j]`) builds a read."""

    op: Operation
    index: int = 0

    @property
    def name(self) -> str:
        """The operation's name, with `.v<index>` when it has several outputs."""
        return self.op.name if self.op.num_outputs == 1 else f"{self.op.name}.v{self.index}"

    @property
    def shape(self) -> tuple[Expr, ...]:
        """Extents, outermost first; constants are int32 `Const`."""
        return self.op.shape

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.op.shape)

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.op.output_dtypes[self.index]


class Operation:
    """Base of `PlaceholderOp` and `ComputeOp`.  All outputs share one shape."""

    __slots__ = ()
    name: str
    shape: tuple[Expr, ...]

    @property
    def num_outputs(self) -> int:
        """How many tensors the operation makes."""
        return len(self.output_dtypes)

    @property
    def output_dtypes(self) -> tuple[DType, ...]:
        """Element type of each output."""
        raise NotImplementedError

    def output(self, index: int = 0) -> Tensor:
        """The tensor of output `index` (the same object each time)."""
        return self.outputs[index]

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """All tensors of the operation."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, eq=False)
class PlaceholderOp(Operation):
    """An input of the computation."""

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    outputs: tuple[Tensor, ...] = field(init=False)  # pyright: ignore[reportIncompatibleMethodOverride]

    def __post_init__(self) -> None:
        object.__setattr__(self, "outputs", (Tensor(self, 0),))

    @property
    def output_dtypes(self) -> tuple[DType, ...]:
        return (self.dtype,)


@dataclass(frozen=True, slots=True, eq=False)
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
        object.__setattr__(self, "outputs", tuple(Tensor(self, i) for i in range(len(self.bodies))))

    @property
    def axis(self) -> tuple[Axis, ...]:
        """TVM's name for `axes`."""
        return self.axes

    @property
    def reduce_axis(self) -> tuple[Axis, ...]:
        """TVM's name for `reduce_axes`."""
        return self.reduce_axes

    @property
    def output_dtypes(self) -> tuple[DType, ...]:
        return tuple(body.dtype for body in self.bodies)
