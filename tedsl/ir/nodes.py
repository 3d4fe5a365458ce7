"""Loop IR: buffers, loops and statements that a backend turns into code.

Third room of the pipeline; imports `expr`.  Nodes are frozen and compare by identity.  There are
two levels:

- NEST: loops of every kind; `tile` of every statement is empty, conditions are `Guard` statements
  (and the `where=` of a reduction, which is the mask of its `Accumulate`).
- TILE: no VECTORIZED loop; a statement carries the `tile` axes it runs over at once, `IfThenElse`
  and guards on tile axes have become masks.  An expression in it depends on a subset of the tile
  axes (those that occur in it): these are its dimensions, and it is broadcast only where it is
  combined with another.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tedsl.deep import deep
from tedsl.dtypes import DType
from tedsl.expr.index_arith import ZERO, sub
from tedsl.expr.nodes import Axis, BinaryOp, Expr, Reducer, Var
from tedsl.expr.visit import variables
from tedsl.late import late

if TYPE_CHECKING:
    from tedsl.tensor import foreign
    from tedsl.tensor.foreign import CFunction, Foreign, PythonFunction, TritonKernel
    from tedsl.tensor.intrin import TensorIntrin
else:
    foreign = late("tedsl.tensor.foreign")


class Scope(StrEnum):
    """Where a buffer lives: device memory, registers or stack of one program, or shared memory that
    TMA fills."""

    GLOBAL = "global"
    LOCAL = "local"
    SHARED = "shared"


class Evict(StrEnum):
    """L2 eviction priority of accesses: their cache lines are evicted first, as usual, or last."""

    FIRST = "first"
    NORMAL = "normal"
    LAST = "last"


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Row-major memory.  Contents are undefined (NaN in the interpreter) until stored.

    `held` are the extents of what has a meaning, where rows are longer than that to be aligned:
    idle lanes may read or overwrite the rest, and no result may depend on it.  `evict` is the L2
    eviction priority on a GPU, `evict_then` that of loads that read it again, for the last time.
    `private`: a GLOBAL buffer of which each program has a part of its own, for what it cannot hold
    in registers; idle lanes may read what nobody has stored there.  `part_of` is the stage whose
    reduction it accumulates, for messages.
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    scope: Scope = Scope.GLOBAL
    held: tuple[Expr, ...] | None = None
    evict: Evict = Evict.NORMAL
    evict_then: Evict | None = None
    private: bool = False
    part_of: str = ""

    @property
    def told(self) -> str:
        """What it is to a user, who knows stages."""
        return f"what {self.part_of} has added up so far" if self.part_of else self.name


@dataclass(frozen=True, slots=True, eq=False)
class Load(Expr):
    """One element of a buffer; 0 (and no access) where `mask` is false.  `evict` is the eviction
    priority of this load, where that is not the buffer's.  Requires: indices in bounds where the
    mask holds."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    mask: Expr | None = None
    evict: Evict | None = None
    dtype: DType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", self.buffer.dtype)

    def children(self) -> tuple[Expr, ...]:
        return self.indices if self.mask is None else (*self.indices, self.mask)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        n = len(self.indices)
        mask = children[n] if self.mask is not None else None
        return Load(self.buffer, tuple(children[:n]), mask, self.evict)


class LoopKind(StrEnum):
    """How a loop runs.  PROGRAM is a grid dimension on the GPU and a parallel loop on the CPU."""

    SERIAL = "serial"
    PARALLEL = "parallel"
    VECTORIZED = "vectorized"
    UNROLLED = "unrolled"
    PROGRAM = "program"


class PartPolicy(StrEnum):
    """Whether the iterations of a loop that need no guards run in a loop of their own."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"
    ENDS = "ends"


@dataclass(frozen=True, slots=True, eq=False)
class TileAxis:
    """A loop that became a dimension of a tile value: `axis` = 0 .. extent-1, all at once."""

    axis: Axis
    extent: int


class Stmt:
    """Base of statements; `walk_stmts` and `map_stmts` in `ir.visit` carry all traversals."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class Seq(Stmt):
    """The statements in order."""

    stmts: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class For(Stmt):
    """Run `body` for axis = start .. end-1.  Requires: both are integer expressions, invariant in
    the loop; only a SERIAL loop starts elsewhere than at 0, and never below.

    Iterations of PARALLEL, VECTORIZED and PROGRAM loops are independent of each other, except that
    a VECTORIZED loop may enclose an `Accumulate` into one place, and the others an atomic one.
    `program` is the grid dimension of a PROGRAM loop, whose programs start with the last iteration
    when it is `descending`; a SERIAL or UNROLLED loop that is runs from the last iteration to the
    first (at NEST level only).  `num_stages` > 0 asks for a software pipeline, `flatten` for one
    pipeline across this loop and the loop inside it.  `masks_decide`: an iteration in which the
    mask of every `Accumulate` fails changes nothing, whatever else stands in the body, and may be
    left out.
    `cuts` are positions, in ascending order, at which the loop is to run in parts, and `partition`
    says whether the part that needs no guards is to run by itself.
    """

    axis: Axis
    end: Expr
    kind: LoopKind
    body: Stmt
    program: int = 0
    num_stages: int = 0
    flatten: bool = False
    masks_decide: bool = False
    start: Expr = ZERO
    cuts: tuple[Expr, ...] = ()
    partition: PartPolicy = PartPolicy.AUTO
    descending: bool = False

    @property
    def extent(self) -> Expr:
        """How many iterations there are, when `start` is at most `end`."""
        return sub(self.end, self.start)


@dataclass(frozen=True, slots=True, eq=False)
class Guard(Stmt):
    """Run `body` if `condition` holds."""

    condition: Expr
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Allocate(Stmt):
    """`buffer` exists within `body`.  Requires: constant shape, unless the scope is GLOBAL."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class TensorCall:
    """That an intrinsic carries out a statement: its axes are `axes`, and `operands` are the
    elements that stand for its inputs."""

    intrin: TensorIntrin
    axes: tuple[Axis, ...]
    operands: tuple[Expr, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Store(Stmt):
    """`buffer[indices] = value` at every point of `tile` where `mask` holds.

    Every value is read before any is written.  With a `call`, an intrinsic does what the statement
    says.  Requires: distinct points write distinct elements.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr
    mask: Expr | None = None
    tile: tuple[TileAxis, ...] = ()
    call: TensorCall | None = None


class Precision(StrEnum):
    """How a `Dot` of float32 operands multiplies: exactly, in TF32, or in three TF32 products."""

    IEEE = "ieee"
    TF32 = "tf32"
    TF32X3 = "tf32x3"


@dataclass(frozen=True, slots=True)
class Products:
    """How a sum of products is computed where it may become a `Dot`.

    `dot` False keeps it an ordinary reduction.  `finite` says that no operand is infinite or NaN,
    so that a masked product may be 0 times anything.
    """

    precision: Precision = Precision.IEEE
    dot: bool = True
    finite: bool = False


DEFAULT_PRODUCTS = Products()

# Atomic operations.
ATOMIC_OPERATORS = frozenset(
    (BinaryOp.ADD, BinaryOp.MIN, BinaryOp.MAX, BinaryOp.AND, BinaryOp.OR, BinaryOp.XOR)
)


@dataclass(frozen=True, slots=True, eq=False)
class Accumulate(Stmt):
    """`buffers[indices] = reducer(buffers[indices], values)` at every point of `tile` where `mask`
    holds.

    All buffers share the indices.  Tile axes that do not occur in the indices are reduced, in any
    order.
    With `along`, an axis of the tile, it is a running fold (prefix): each point takes the values of
    all points up to it along that axis, in order.  One where `mask` fails gives none to the others,
    and takes those before it.  TILE level only, made by the GPU legalisation: LOCAL buffers, and
    no axis is reduced.
    `products` is for a `Dot` it may become; with a `call`, an intrinsic does what the statement
    says.  An `atomic` one may update an element that others update at the same time: each is one
    indivisible step, in any order.
    Requires: as many buffers and values as the reducer's tuple; an atomic one has a single GLOBAL
    buffer, a reducer that is one of `ATOMIC_OPERATORS`, and no `call`.
    """

    buffers: tuple[Buffer, ...]
    indices: tuple[Expr, ...]
    reducer: Reducer
    values: tuple[Expr, ...]
    mask: Expr | None = None
    tile: tuple[TileAxis, ...] = ()
    products: Products = DEFAULT_PRODUCTS
    call: TensorCall | None = None
    atomic: bool = False
    along: Axis | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Dot(Stmt):
    """`buffer[indices] += sum over `contract` of lhs * rhs`, products and sums in the buffer's
    dtype.

    TILE level only, made by the GPU legalisation.  `lhs` has dimensions `batch + (row, contract)`,
    `rhs` `batch + (contract, column)`, in any order.  Masked elements of both are 0.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    lhs: Expr
    rhs: Expr
    batch: tuple[TileAxis, ...]
    row: TileAxis
    column: TileAxis
    contract: TileAxis
    precision: Precision = Precision.IEEE


@dataclass(frozen=True, slots=True, eq=False)
class Finish(Stmt):
    """Last-block reduction: run `body` in the last of `count` programs that arrive here for one
    element of `counter`.

    Each adds 1 to `counter[indices]`; the one that makes it `count` runs `body`, which sees all
    that the others stored before they arrived, and resets it to 0.  Which program that is changes
    from run to run, so `body` depends on no program axis that `indices` do not name.
    Requires: only loops of the grid around it, and guards on iterations of these; `counter` is one
    of the module's; `count` programs that arrive here have the same `indices`.
    """

    counter: Buffer
    indices: tuple[Expr, ...]
    count: Expr
    body: Stmt


@dataclass(frozen=True, slots=True, eq=False)
class Meet(Stmt):
    """Grid barrier: wait until `count` programs, this one among them, have arrived for one element
    of `counter`, each as often as this one.

    After it each of them sees all that the others stored before they arrived.  `meanwhile` runs
    between a program's arrival and its wait (a split barrier).
    Requires: all of them run at the same time; whether and how often a program arrives depends
    on no program axis that `indices` do not name; `counter` is one of the module's; `count`
    programs have the same `indices`; `meanwhile` stores into LOCAL buffers only and reads nothing
    that the kernel stores elsewhere.
    """

    counter: Buffer
    indices: tuple[Expr, ...]
    count: Expr
    meanwhile: Stmt | None = None


@dataclass(frozen=True, slots=True, eq=False)
class HostCall(Stmt):
    """An extern call, `outputs = meaning(inputs)` on whole buffers, between kernels.

    `function` is what the target runs for it: `meaning`, or `gpu`, where that is given.  Requires:
    it is the whole body of a `Func`; the buffers are GLOBAL; no output is an input.
    """

    name: str
    meaning: PythonFunction | CFunction
    gpu: PythonFunction | TritonKernel | None
    function: Foreign
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]

    @property
    def on_host(self) -> bool:
        """True when it is called, and not launched."""
        return not isinstance(self.function, foreign.TritonKernel)


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Launch options of one kernel; None leaves the backend's default."""

    num_warps: int | None = None
    num_stages: int | None = None
    num_ctas: int | None = None
    maxnreg: int | None = None

    @property
    def warps(self) -> int:
        """Warps per program: Triton's default where nothing is said."""
        return 4 if self.num_warps is None else self.num_warps


DEFAULT_LAUNCH = Launch()


@dataclass(frozen=True, slots=True, eq=False)
class Func:
    """One kernel, or a `HostCall` between kernels.  `params` are the GLOBAL buffers it touches,
    `sizes` the runtime scalars it uses.

    `assumptions` are conditions on integer sizes that hold at every call: passes and backends rely
    on them, and the runtime refuses a call where one does not hold.  `when` is a condition on
    integer sizes: the kernel is launched at the calls where it holds, and is made for them alone.
    Where kernels are versions of one another, exactly one is launched.  `remarks` say what was
    asked for and is done otherwise on the target.
    """

    name: str
    params: tuple[Buffer, ...]
    sizes: tuple[Var, ...]
    body: Stmt
    launch: Launch = DEFAULT_LAUNCH
    assumptions: tuple[Expr, ...] = ()
    when: Expr | None = None
    remarks: tuple[str, ...] = ()

    @property
    def host_call(self) -> HostCall | None:
        """The call that this is, if it is no kernel of loops."""
        return self.body if isinstance(self.body, HostCall) else None

    @deep
    def __str__(self) -> str:
        text: str = importlib.import_module("tedsl.ir.printer").print_func(self)
        return text


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """The kernels `begin .. end` of a module run in order for step = 0 .. extent-1.

    `step` is among their sizes and none of the module's; `extent` is over sizes of the module.
    """

    step: Var
    extent: Expr
    begin: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """Kernels in launch order.  `workspaces` are GLOBAL buffers that live only during a call.

    `counters` are GLOBAL int32 buffers of `Finish` and `Meet` statements, 0 before and after each
    kernel.
    `repeats` are groups of kernels that are launched again and again, in order; none overlap.
    `promises` are conditions on `sizes` that hold at every call, needed by a kernel or not.
    """

    name: str
    inputs: tuple[Buffer, ...]
    outputs: tuple[Buffer, ...]
    workspaces: tuple[Buffer, ...]
    sizes: tuple[Var, ...]
    funcs: tuple[Func, ...]
    repeats: tuple[Repeat, ...] = ()
    promises: tuple[Expr, ...] = ()
    counters: tuple[Buffer, ...] = ()

    @property
    def assumptions(self) -> tuple[Expr, ...]:
        """The promises and the conditions of all kernels on the sizes of the module, each once."""
        steps = {repeat.step for repeat in self.repeats}
        found = dict.fromkeys(c for func in self.funcs for c in func.assumptions)
        own = (c for c in found if steps.isdisjoint(variables(c)))
        return tuple(dict.fromkeys((*self.promises, *own)))

    def launches(self) -> Iterator[tuple[Repeat | None, tuple[int, ...]]]:
        """The kernels by their places, in order: each group that is repeated, and each other kernel
        by itself."""
        starts = {repeat.begin: repeat for repeat in self.repeats}
        place = 0
        while place < len(self.funcs):
            repeat = starts.get(place)
            end = place + 1 if repeat is None else repeat.end
            yield repeat, tuple(range(place, end))
            place = end

    def runs(self) -> tuple[tuple[int, ...] | HostCall, ...]:
        """The kernels by their places, in runs without a call of the host between them, and those
        calls, in order."""
        found: list[tuple[int, ...] | HostCall] = []
        for place, func in enumerate(self.funcs):
            call = func.host_call
            if call is not None and call.on_host:
                found.append(call)
            elif found and isinstance(found[-1], tuple):
                found[-1] = (*found[-1], place)
            else:
                found.append((place,))
        return tuple(found)

    @deep
    def __str__(self) -> str:
        text: str = importlib.import_module("tedsl.ir.printer").print_module(self)
        return text


class Level(StrEnum):
    """Which rules `verify` checks."""

    NEST = "nest"
    TILE = "tile"
