"""The growing text of one kernel: nested blocks, names in scope, and which values they hold.

A value is named once and found again by its number (see `values.Printer.info`); what does not
depend on a loop is written in the block outside of it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tedsl.backends.triton.emit import float8
from tedsl.backends.triton.emit.names import Names, shown
from tedsl.backends.triton.math import functions as math
from tedsl.backends.triton.math.accuracy import Accuracy
from tedsl.backends.triton.math.functions import Text
from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.nodes import Axis, Const, Expr, Var
from tedsl.index.facts import Facts
from tedsl.ir.nodes import Buffer
from tedsl.ir.thread_neighbours import Neighbours

INDENT = "    "
WIDTH = 100
CALL = re.compile(r"([\w, ]+ \+?= )?[\w.]+")


@dataclass(frozen=True, slots=True)
class Value:
    """Source of a block with one dimension per tile axis in `dims`, by place in the tile.

    `literal`: a bare Python number.  `core`: the text is `core * scale`, of which only the first is
    a block (so that it is broadcast as `core[:, None] * scale`).  `loose`: Triton may think wrongly
    of what divides that block (`claims`).
    """

    text: Text
    dims: tuple[int, ...]
    dtype: DType
    literal: bool = False
    core: Text | None = None
    scale: str = ""
    loose: bool = False


@dataclass(slots=True)
class Block:
    """One indented block: its lines so far and the numbers of the values named in it.

    `rare`: it is skipped where data say so, and what is for it alone is not computed outside of it.
    `written` and `read` is the memory that no barrier before the block has ordered yet.
    """

    lines: list[str] = field(default_factory=list[str])
    known: dict[int, str] = field(default_factory=dict[int, str])
    in_loop: bool = False
    rare: bool = False
    written: frozenset[Buffer] = frozenset()
    read: frozenset[Buffer] = frozenset()


@dataclass(slots=True)
class Local:
    """A LOCAL buffer as a variable.

    `version` counts assignments; `depth` is the block that the present value belongs to.
    `pending` is a constant that was stored and not yet written out.  `accumulates`: the buffer
    is updated in place somewhere.
    """

    name: str
    version: int = 0
    depth: int = 0
    defined: bool = False
    pending: Const | None = None
    accumulates: bool = False


def wrap(text: str, indent: str) -> list[str]:
    """The line, or its last call with one argument per line when it is too long."""
    if len(indent) + len(text) <= WIDTH or not text.endswith(")") or text.endswith("()"):
        return [indent + text]
    level, parts, end = 0, list[str](), len(text) - 1
    for place in range(len(text) - 1, -1, -1):
        char = text[place]
        level += (char in ")]") - (char in "([")
        if level == 0 and char == "(":
            parts.append(text[place + 1 : end].strip())
            if not CALL.fullmatch(text[:place]):
                return [indent + text]
            head = indent + text[: place + 1]
            rows = [f"{indent}{INDENT}{part}," for part in reversed(parts)]
            return [head, *rows, f"{indent})"]
        if level == 1 and char == ",":
            parts.append(text[place + 1 : end].strip())
            end = place
    return [indent + text]


def complete(lines: list[str], indent: str) -> list[str]:
    """The lines of a block, with a statement if there is none among them."""
    empty = all(not line.strip() or line.lstrip().startswith("#") for line in lines)
    return [*lines, f"{indent}pass"] if empty else lines


class Writer:
    """The state shared by all statements of one kernel.

    Args:
        names: those that are taken.
        facts: what is known of sizes.
        ranges: the same, and the ranges of axes.
    """

    def __init__(
        self, names: Names, facts: Facts = Facts.EMPTY, ranges: Facts | None = None
    ) -> None:
        self.names = names
        self.facts = facts
        self.ranges = facts.own() if ranges is None else ranges
        self.blocks: list[Block] = [Block()]
        self.symbols: dict[Axis | Var, str] = {}
        self.symbol_depth: dict[Axis | Var, int] = {}
        self.static: set[Axis] = set()
        self.pointers: dict[Buffer, str] = {}
        self.locals: dict[Buffer, Local] = {}
        self.stores: dict[Buffer, int] = {}
        self.helpers: dict[str, str] = {}
        self.spans: list[Expr] = []
        self.shared_memory: set[Buffer] = set()
        # Stores of one program that another loads, or the same one later: a count or a barrier
        # orders plain stores and loads, those of TMA not.
        self.passed_on: set[Buffer] = set()
        # Layouts of values made from products are chosen by a pass that in Triton 3.6 fails on a
        # reduction of one axis to a scalar.  A reduction of all axes begins with a reshape that may
        # move elements, behind which the pass does not look.
        self.has_tensor_memory = False
        # Where it has not, 8-bit floats are bytes.
        self.has_float8 = True
        # A pass over sums of loads along the last axis wants one update of a variable in a loop.
        self.updated_again: frozenset[Buffer] = frozenset()
        self.accuracy = Accuracy()
        self.threads = 32
        # Of blocks of which a thread is to have fewer neighbours than one access moves, how many.
        self.neighbours: Mapping[Neighbours, int] = {}
        self._written: set[Buffer] = set()
        self._read: set[Buffer] = set()
        self._numbers: dict[Hashable, int] = {}

    @property
    def depth(self) -> int:
        """Index of the innermost open block."""
        return len(self.blocks) - 1

    def type_of(self, dtype: DType) -> str:
        """The `tl` name of the type in which elements of `dtype` are held."""
        if dtype.is_float8 and not self.has_float8:
            return float8.BYTES
        return math.triton_type(dtype)

    def zero(self, dtype: DType) -> str:
        """0 of the type in which elements of `dtype` are held."""
        return "0.0" if dtype.is_float and (self.has_float8 or not dtype.is_float8) else "0"

    def full(self, shape: tuple[int, ...], value: bool | int | float, dtype: DType) -> str:
        """Source of a block that is one constant everywhere."""
        byte = float8.byte_of(value, dtype) if dtype.is_float8 else 0
        if not byte:
            zero = self.zero(dtype) if dtype.is_float8 else math.literal(value, dtype)
            return f"tl.full({shape}, {zero}, {self.type_of(dtype)})"
        text = f"tl.full({shape}, {byte}, {float8.BYTES})"
        return f"{text}.to({self.type_of(dtype)}, bitcast=True)" if self.has_float8 else text

    def cast(self, x: Text, source: DType, target: DType) -> Text:
        """`x` of `source` as `target`; float to integer truncates, to bool is `x != 0`."""
        if source is target:
            return x
        if source.is_float8:
            x, source = self._widened(x, source), DType.float32
        if not target.is_float8:
            return math.cast(x, source, target)
        x = math.cast(x, source, DType.float32)
        table, name = (float8.NATIVE, "to_") if self.has_float8 else (float8.PACK, "byte_of_")
        return Text(f"{self.helper(name + target.value, table[target])}({x.text})")

    def _widened(self, x: Text, dtype: DType) -> Text:
        """An 8-bit float as float32."""
        if not self.has_float8:
            x = Text(self.half(x.text, dtype))
        return math.cast(x, dtype, DType.float32)

    def half(self, text: str, dtype: DType) -> str:
        """The bytes of an 8-bit float as float16."""
        return f"{self.helper(f'half_of_{dtype.value}', float8.UNPACK[dtype])}({text})"

    def helper(self, name: str, source: str) -> str:
        """A function that the text calls, by name."""
        self.helpers[name] = source
        return name

    def number(self, key: Hashable) -> int:
        """The number of a value: equal keys, equal values."""
        return self._numbers.setdefault(key, len(self._numbers))

    def lookup(self, number: int) -> str | None:
        """The name that holds the value, if one is in scope."""
        for block in reversed(self.blocks):
            if number in block.known:
                return block.known[number]
        return None

    def line(self, text: str, depth: int | None = None) -> None:
        """Append a statement to the block at `depth` (the innermost by default)."""
        at = self.depth if depth is None else depth
        self.blocks[at].lines.extend(wrap(text, INDENT * (at + 1)) if text else [""])

    def comment(self, text: str) -> None:
        """A comment above the next statement, set off by a blank line."""
        lines = self.blocks[-1].lines
        if lines and not lines[-1].lstrip().startswith("#") and lines[-1]:
            self.line("")
        self._remark(text)

    def remark(self, name: str, what: str) -> None:
        """A comment on `name`, in place of the one that only names it."""
        lines = self.blocks[-1].lines
        if lines and lines[-1].strip() == f"# {shown(name)}".strip():
            lines.pop()
        self._remark(f"{name} {what}")

    def _remark(self, text: str) -> None:
        self.blocks[-1].lines.append(f"{INDENT * (self.depth + 1)}# {shown(text)}")

    def define(self, text: str, depth: int, number: int | None, *wishes: str) -> str:
        """Write `name = text` at `depth` and remember that the name holds the value `number`."""
        name = self.names.fresh(*wishes)
        self.line(f"{name} = {text}", depth)
        if number is not None:
            self.blocks[depth].known[number] = name
        return name

    def open(self, in_loop: bool, rare: bool = False) -> None:
        """Start an indented block; its header is written by `close`."""
        before = frozenset(self._written), frozenset(self._read)
        in_loop = in_loop or self.blocks[-1].in_loop
        self.blocks.append(Block(in_loop=in_loop, rare=rare, written=before[0], read=before[1]))

    def home(self, depth: int) -> int:
        """Where a value is written that could be in the block at `depth`: inside the rare blocks
        that follow, for leaving them alone would save nothing."""
        while depth < self.depth and self.blocks[depth + 1].rare:
            depth += 1
        return depth

    def close(self, header: str, *, runs: bool = False) -> None:
        """End the innermost block and put it, under `header`, into the one around it.

        Unless it surely `runs`, a barrier in it may not have been executed.
        """
        block = self.blocks.pop()
        if not runs:
            self._written |= block.written
            self._read |= block.read
        self.line(header)
        self.blocks[-1].lines.extend(complete(block.lines, INDENT * (self.depth + 2)))

    def local(self, buffer: Buffer) -> Local:
        """The variable of a LOCAL or SHARED buffer."""
        found = self.locals.get(buffer)
        if found is None:
            raise InternalError(f"buffer {buffer.name!r} is used outside its allocation")
        return found

    def assigned(self, buffers: Iterable[Buffer]) -> None:
        """Note that the variables of `buffers` hold new values from here on, in this block."""
        for buffer in buffers:
            if buffer in self.locals:
                local = self.locals[buffer]
                local.version += 1
                local.depth = self.depth
            else:
                self.stores[buffer] = self.stores.get(buffer, 0) + 1

    def before_load(self, buffer: Buffer) -> None:
        """Order a load of a buffer that this kernel also writes after the stores before it.

        The threads of a program run freely; only a barrier makes one see what another stored.
        """
        if buffer in self._written:
            self.barrier()
        if buffer in self.shared_memory:
            self._read.add(buffer)

    def before_store(self, buffer: Buffer) -> None:
        """Order a store after the loads of the same buffer before it."""
        if buffer in self._read:
            self.barrier()
        if buffer in self.shared_memory:
            self._written.add(buffer)

    def touched(self, written: Iterable[Buffer], read: Iterable[Buffer]) -> None:
        """Note that an earlier iteration may have written and read these buffers."""
        self._written |= self.shared_memory.intersection(written)
        self._read |= self.shared_memory.intersection(read)

    def settle(self, written: Iterable[Buffer], read: Iterable[Buffer]) -> None:
        """Order what a loop stores after the loads before it, once, where it reads none of it."""
        if self._read.intersection(written).difference(read):
            self.barrier()

    def barrier(self) -> None:
        """All threads of the program see all stores so far."""
        self.line("tl.debug_barrier()")
        self._written.clear()
        self._read.clear()


def union(*groups: Sequence[int]) -> tuple[int, ...]:
    """All dimensions of the groups, once each, in tile order."""
    return tuple(sorted({place for group in groups for place in group}))


def block_shape(buffer: Buffer) -> tuple[int, ...]:
    """The non-unit extents of a tile value."""
    extents = (extent.value for extent in buffer.shape if isinstance(extent, Const))
    return tuple(int(extent) for extent in extents if extent != 1)
