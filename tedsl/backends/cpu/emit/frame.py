"""What is known while one LLVM function is being written: variables, memory, remembered values."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tedsl.backends.cpu.emit.affine import Poly, flatten, multiply, polynomial
from tedsl.backends.cpu.emit.llvm_text import Function, Value
from tedsl.backends.cpu.emit.types import memory_elem, register_type
from tedsl.dtypes import DType
from tedsl.expr.nodes import Const, Expr
from tedsl.ir.layout import collapse
from tedsl.ir.nodes import Buffer, Scope
from tedsl.processor import machine

STACK_BYTES = 16384  # larger local buffers come from the heap, once per thread
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a buffer is.  `strides` are polynomials; `room` counts the elements that may be read,
    if known.

    Local rows are padded to whole vectors (`row`), and a vector of slack follows the last one:
    `slack` elements, which `room` counts.
    """

    ptr: Value
    dtype: DType
    strides: tuple[Poly, ...]
    local: bool
    room: int | None
    row: int
    inner: int = -1  # the dimension that is contiguous
    slack: int = 0

    @property
    def elem(self) -> str:
        """The LLVM element in memory."""
        return memory_elem(self.dtype)


def constant_shape(shape: Sequence[Expr]) -> tuple[int, ...] | None:
    """The shape as integers, if it is constant."""
    values = [int(e.value) for e in shape if isinstance(e, Const)]
    return tuple(values) if len(values) == len(shape) else None


def _padded(extent: int, lanes: int) -> int:
    if extent >= lanes:
        return -(-extent // lanes) * lanes
    return 1 << (extent - 1).bit_length() if extent > 1 else extent


@dataclass(frozen=True, slots=True)
class Layout:
    """Extents in memory of a local buffer and how many elements it takes with slack."""

    extents: tuple[int, ...]
    count: int
    slack: int

    @staticmethod
    def local(buffer: Buffer, shape: tuple[int, ...], inner: int) -> Layout:
        """Rows (along `inner`) padded to whole vectors, one vector of slack."""
        lanes = machine().lanes(register_type(buffer.dtype).bits)
        extents = list(shape)
        if len(extents) > 1:
            extents[inner] = _padded(extents[inner], lanes)
        count = 1
        for extent in extents:
            count *= max(extent, 1)
        slack = lanes if count > 1 else 0
        return Layout(tuple(extents), count + slack, slack)


def place(buffer: Buffer, ptr: Value, inner: int | None = None) -> Memory:
    """The memory of `buffer` at `ptr`; a local buffer may have any dimension innermost."""
    shape = constant_shape(buffer.shape)
    local = buffer.scope is not Scope.GLOBAL
    rank = len(buffer.shape)
    inner = rank - 1 if inner is None else inner
    extents: list[Poly] = [polynomial(e) for e in buffer.shape]
    room, slack = None, 0
    if shape is not None and local:
        layout = Layout.local(buffer, shape, inner)
        extents = [{(): e} if e else {} for e in layout.extents]
        room, slack = layout.count, layout.slack
    elif shape is not None:
        room = 1
        for extent in shape:
            room *= extent
    row = extents[inner].get((), 0) if extents else 1
    return Memory(ptr, buffer.dtype, strides_of(extents, inner), local, room, row, inner, slack)


def parameter(buffer: Buffer, ptr: Value) -> str:
    """A buffer as a parameter in the header of a function.

    It is aligned to its elements and to nothing more: callers pass slices and views, which begin
    anywhere.  An unaligned vector access costs nothing where the address happens to be aligned.
    """
    return f"ptr noalias align {buffer.dtype.nbytes} {ptr.text}"


def strides_of(extents: Sequence[Poly], inner: int | None = None) -> tuple[Poly, ...]:
    """Elements between neighbours along each dimension: row-major, but for `inner`, which is
    contiguous where it is given."""
    strides: list[Poly] = [{(): 1}] * len(extents)
    step: Poly = {(): 1}
    for d in sorted(range(len(extents)), key=lambda d: (d == inner, d), reverse=True):
        strides[d] = step
        step = multiply(step, extents[d])
    return tuple(strides)


class Memo:
    """Values already computed, by key; what is computed inside a loop or branch is forgotten on
    leaving it."""

    def __init__(self) -> None:
        self._scopes: list[dict[tuple[object, ...], Value]] = [{}]

    def get(self, key: tuple[object, ...]) -> Value | None:
        """The value of `key` that dominates this place."""
        for scope in reversed(self._scopes):
            found = scope.get(key)
            if found is not None:
                return found
        return None

    def put(self, key: tuple[object, ...], value: Value) -> Value:
        """Remember `value` for the current scope."""
        self._scopes[-1][key] = value
        return value

    @contextmanager
    def scope(self) -> Generator[None]:
        """A region whose values do not dominate what follows."""
        self._scopes.append({})
        yield
        self._scopes.pop()


@dataclass(slots=True)
class Frame:
    """The state of one LLVM function.

    `env` maps loop axes to i64 and runtime scalars to their registers.  `register_tiles` are local
    buffers that loops accumulate into, `streamed` outputs too large for the caches that nothing
    reads again.  Where `branching`, scalars under a condition are read behind a branch.
    """

    fn: Function
    memory: dict[Buffer, Memory] = field(default_factory=dict[Buffer, Memory])
    env: dict[Expr, Value] = field(default_factory=dict[Expr, Value])
    depth: dict[Expr, int] = field(default_factory=dict[Expr, int])
    register_tiles: set[Buffer] = field(default_factory=set[Buffer])
    streamed: frozenset[Buffer] = frozenset()
    branching: bool = False
    scratch: list[tuple[Value, int]] = field(default_factory=list[tuple[Value, int]])
    polys: dict[tuple[Buffer, tuple[Expr, ...]], Poly] = field(
        default_factory=dict[tuple[Buffer, tuple[Expr, ...]], Poly]
    )

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Poly:
        """The flat element offset, remembered."""
        key = (buffer, indices)
        known = self.polys.get(key)
        if known is None:
            steps, where = self.memory[buffer].strides, indices
            if buffer.scope is Scope.GLOBAL:
                shape, where = collapse(buffer.shape, indices)
                steps = strides_of([polynomial(extent) for extent in shape])
            known = self.polys[key] = flatten(where, steps)
        return known
