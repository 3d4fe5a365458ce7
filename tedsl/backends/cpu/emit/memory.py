"""Loads and stores: addresses from index polynomials, and the vector access that fits the stride.

Stride 1 is a vector access, stride 0 a splat scalar, anything else a gather or scatter.  Masked
accesses to the machine's memory use masked instructions; local buffers have slack, so they are read
whole and blended, which lets LLVM keep them in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tedsl.backends.cpu.emit import arith
from tedsl.backends.cpu.emit.affine import Poly, add, const_poly, step_along
from tedsl.backends.cpu.emit.casts import pack, unpack
from tedsl.backends.cpu.emit.frame import Memory
from tedsl.backends.cpu.emit.llvm_text import I1, I32, I64, PTR, Type, Value, const, const_vector
from tedsl.backends.cpu.emit.llvm_values import Num, splat
from tedsl.backends.cpu.emit.types import is_short_float, register_type
from tedsl.backends.cpu.emit.values import Evaluator, Pos
from tedsl.dtypes import DType
from tedsl.expr.nodes import Axis, Binary, BinaryOp, Const, Expr, Var
from tedsl.ir.nodes import Buffer, Load
from tedsl.ir.printer import print_expr

_DEEP = 1 << 20
STREAM_BYTES = 64


@dataclass(frozen=True, slots=True)
class Access:
    """One access at the current point: how lanes step through memory.

    `stride` is 0, 1, -1 or None for anything else; `offset` is the offset of lane 0 when the access
    is affine.
    """

    memory: Memory
    buffer: Buffer
    offset: Poly
    stride: int | None
    step: Poly
    lanes: int
    spread: tuple[tuple[tuple[Expr, ...], int], ...] = ()


def _ascends(offset: Poly) -> bool:
    """True when no term of an offset is negative, so that no sum of some of them lies outside what
    the sum of all lies in."""
    return all(
        coefficient >= 0 and all(map(_counts, atoms)) for atoms, coefficient in offset.items()
    )


def _counts(atom: Expr) -> bool:
    """True of a loop's counter, of a size, and of remainders and quotients of these."""
    if isinstance(atom, Var):
        return atom.lower is not None and atom.lower >= 0
    if isinstance(atom, Binary) and atom.op in (BinaryOp.FLOORDIV, BinaryOp.FLOORMOD):
        by = atom.b
        return _counts(atom.a) and (int(by.value) > 0 if isinstance(by, Const) else _counts(by))
    return isinstance(atom, Axis)


class Accessor(Evaluator):
    """An evaluator that can also read and write memory.

    With `streaming`, whole aligned vectors are stored past the caches; the caller has checked that
    the buffer itself is aligned to a vector.
    """

    streaming = False
    partner: Axis | None = None  # the axis along which a block is loaded to be transposed

    def access(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Access:
        """Classify the access to `buffer[indices]` over the lanes."""
        memory = self.frame.memory[buffer]
        poly = self.frame.offset(buffer, indices)
        lanes = self.lanes
        if lanes is None or lanes.axis not in self.depends.poly(poly):
            return Access(memory, buffer, self.place_poly(poly), 0, {}, 0)
        step: Poly = {}
        spread: list[tuple[tuple[Expr, ...], int]] = []
        plain: Poly = {}
        for atoms, coefficient in poly.items():
            varying = [a for a in atoms if lanes.axis in self.depends(a)]
            if not varying:
                plain = add(plain, {atoms: coefficient})
            elif len(varying) == 1 and varying[0] is lanes.axis:
                rest = tuple(a for a in atoms if a is not lanes.axis)
                step = add(step, {rest: coefficient})
                plain = add(plain, {atoms: coefficient})
            else:
                spread.append((atoms, coefficient))
        stride = const_poly(self.place_poly(step))
        if spread or stride not in (1, -1, 0):
            stride = None
        offset = self.place_poly(plain)
        return Access(memory, buffer, offset, stride, step, lanes.width, tuple(spread))

    # --- addresses

    def _depth(self, atoms: tuple[Expr, ...]) -> int:
        """How deep in the loops a term changes."""
        deepest = 0
        stack = list(atoms)
        while stack:
            node = stack.pop()
            if isinstance(node, Axis) and node in self.at:
                inner = self.lanes is not None and node is self.lanes.axis
                deepest = max(deepest, _DEEP + (1 if inner else 0))
            deepest = max(deepest, self.frame.depth.get(node, 0))
            stack.extend(node.children())
        return deepest

    def address(self, memory: Memory, buffer: Buffer, offset: Poly, inbounds: bool = True) -> Value:
        """A pointer to element `offset`, built outermost term first so that loops can hoist it;
        `inbounds` where it is one of the buffer's, and so is every sum of some of the terms."""
        groups: dict[int, list[tuple[tuple[Expr, ...], int]]] = {}
        for atoms, coefficient in offset.items():
            if atoms:
                groups.setdefault(self._depth(atoms), []).append((atoms, coefficient))
        ptr = memory.ptr
        steps = len(groups) + (1 if offset.get((), 0) else 0)
        inside = inbounds and (steps < 2 or _ascends(offset))
        key: tuple[object, ...] = ("ptr", buffer, inside)
        gep = f"getelementptr {'inbounds ' if inside else ''}{memory.elem}"
        for depth in sorted(groups):
            deps = self.depends.poly({atoms: c for atoms, c in groups[depth]})
            terms = tuple(sorted((tuple(map(id, a)), c) for a, c in groups[depth]))
            key = (*key, terms, self.key(deps) if deps else ())
            known = self.memo.get(key)
            if known is None:
                total = self.sum_of(groups[depth])
                text = f"{gep}, ptr {ptr.text}, i64 {total.text}"
                known = self.memo.put(key, self.fn.op(text, PTR))
            ptr = known
        fixed = offset.get((), 0)
        if not fixed:
            return ptr
        key = (*key, fixed)
        known = self.memo.get(key)
        if known is None:
            known = self.memo.put(key, self.fn.op(f"{gep}, ptr {ptr.text}, i64 {fixed}", PTR))
        return known

    def sum_of(self, terms: list[tuple[tuple[Expr, ...], int]]) -> Value:
        """The i64 value of a sum of scalar terms."""
        total: Value | None = None
        for monomial, coefficient in terms:
            atoms = sorted(monomial, key=self._label)
            value = self.base_of(atoms[0])
            for atom in atoms[1:]:
                value = self.fn.op(f"mul nsw i64 {value.text}, {self.base_of(atom).text}", I64)
            if coefficient != 1:
                value = self.fn.op(f"mul nsw i64 {value.text}, {coefficient}", I64)
            if total is None:
                total = value
            else:
                total = self.fn.op(f"add nsw i64 {total.text}, {value.text}", I64)
        return total if total is not None else const(0, I64)

    def _label(self, atom: Expr) -> str:
        """A text that orders the factors of a product the same way in every process: by themselves
        they are in the order of their addresses."""
        known = isinstance(atom, (Axis, Var))
        return self.base_of(atom).text if known else print_expr(atom)

    def pointers(self, access: Access, inbounds: bool = False) -> Value:
        """One pointer per lane."""
        memory, width = access.memory, access.lanes
        base = self.address(memory, access.buffer, access.offset, inbounds)
        small = memory.room is not None and memory.room < 1 << 31
        elem = "i32" if small else "i64"
        to = Type(elem, width)
        step = self.place_poly(access.step)
        known = const_poly(step)
        if known is not None:
            index = const_vector([lane * known for lane in range(width)], elem)
        else:
            stride = self.sum_of([(a, c) for a, c in step.items() if a])
            if step.get(()):
                stride = self.fn.op(f"add nsw i64 {stride.text}, {step[()]}", I64)
            to = Type("i64", width)
            lanes = const_vector(list(range(width)), "i64")
            index = self.fn.op(f"mul nsw {splat(self.fn, stride, width)}, {lanes.text}", to)
        for atoms, coefficient in access.spread:
            term = self._spread_term(atoms, coefficient, to)
            index = self.fn.op(f"add nsw {to} {index.text}, {term.text}", to)
        text = f"getelementptr {memory.elem}, ptr {base.text}, {to} {index.text}"
        return self.fn.op(text, Type("ptr", width))

    def _spread_term(self, atoms: tuple[Expr, ...], coefficient: int, to: Type) -> Value:
        """A term of an index that is not affine in the SIMD axis, as a vector."""
        total = const(coefficient, to)
        for atom in atoms:
            value = self.eval(atom)
            if value.type.bits < to.bits:
                value = self.to_index(value, atom.dtype)
            elif value.type.bits > to.bits:
                value = self.fn.op(
                    f"trunc {value} to {value.type.of(to.elem)}", value.type.of(to.elem)
                )
            value = splat(self.fn, value, to.lanes)
            total = self.fn.op(f"mul nsw {to} {total.text}, {value.text}", to)
        return total

    # --- reading

    def load(self, expr: Load) -> Value:
        access = self.access(expr.buffer, expr.indices)
        if expr.mask is not None:
            return self.read(access, self.eval(expr.mask))
        row = self._transposed(expr, access) if self.partner is not None else None
        return self.read(access, None) if row is None else self.arrive(row, access.memory.dtype)

    def _transposed(self, expr: Load, access: Access) -> Value | None:
        """The lanes of a strided load out of a block that is loaded along the partner axis."""
        lanes, partner = self.lanes, self.partner
        if lanes is None or partner is None or access.stride is not None or access.spread:
            return None
        poly = self.frame.offset(expr.buffer, expr.indices)
        if lanes.live < lanes.width or step_along(self.depends, poly, partner) != 1:
            return None
        here, start = self.at[partner], self.at[lanes.axis]
        first = here.offset // lanes.width * lanes.width
        self.at[partner] = Pos(here.base, first)
        key = ("block", expr, *self.key(self.depends.poly(poly)))
        found = [self.memo.get((*key, n)) for n in range(lanes.width)]
        if found[0] is None:
            to, rows = Type(access.memory.elem, lanes.width), list[Value]()
            for n in range(lanes.width):
                self.at[lanes.axis] = Pos(start.base, start.offset + n)
                ptr = self.address(access.memory, expr.buffer, self.place_poly(poly))
                rows.append(self.fn.op(f"load {to}, ptr {ptr.text}, align {to.bits // 8}", to))
            self.at[lanes.axis] = start
            found = [self.memo.put((*key, n), v) for n, v in enumerate(self.transpose(rows))]
        self.at[partner] = here
        return found[here.offset - first]

    def transpose(self, rows: Sequence[Value]) -> list[Value]:
        """A square block of as many vectors as lanes, transposed by exchanging halves."""
        rows, width = list(rows), len(rows)
        distance = 1
        while distance < width:
            lanes = range(width)
            low = [n + width - distance if n & distance else n for n in lanes]
            high = [n + width if n & distance else n + distance for n in lanes]
            for r in range(width):
                if r & distance:
                    continue
                a, b = rows[r], rows[r + distance]
                for at, order in ((r, low), (r + distance, high)):
                    mask = const_vector(order, "i32")
                    rows[at] = self.fn.op(f"shufflevector {a}, {b}, {mask}", a.type)
            distance *= 2
        return rows

    def read(self, access: Access, mask: Value | None, blank: bool = True) -> Value:
        """The accessed elements in registers; 0, without an access, where `mask` is false.

        Lanes past the end of the tile are whatever is there, but nothing outside of the buffer is
        read for them.  Where the caller does not look at masked lanes (`blank` is false), nor are
        they made 0.
        """
        if not access.lanes:
            return self._read_scalar(access, mask)
        memory, lanes = access.memory, self.lanes
        tail = lanes.tail_mask() if lanes is not None else None
        mask = splat(self.fn, mask, access.lanes) if mask is not None else None
        to = Type(memory.elem, access.lanes)
        if access.stride is None:
            return self.arrive(self._gather(access, self.both(mask, tail), to), memory.dtype)
        live = lanes.live if lanes is not None else access.lanes
        first = access.offset if access.stride == 1 else add(access.offset, {(): 1 - live})
        whole = self._inside(memory, first, access.lanes, live if mask is None else None)
        if whole or (mask is None and tail is None):
            value = self.arrive(self._read_whole(access, first, live, to), memory.dtype)
            if mask is None or not blank:
                return value
            return arith.select(self.fn, mask, value, const(0, value.type))
        mask = self.both(mask, tail)
        if access.stride == -1:
            return self.arrive(self._gather(access, mask, to), memory.dtype)
        ptr = self.address(memory, access.buffer, access.offset, inbounds=False)
        args = [ptr, const(to.bits // 8, I32), mask or const(True, to.of("i1")), const(0, to)]
        return self.arrive(self._masked("load", to, args), memory.dtype)

    def _read_whole(self, access: Access, first: Poly, live: int, to: Type) -> Value:
        """A vector that begins at `first`; backwards, the `live` lanes that count come first."""
        ptr = self.address(access.memory, access.buffer, first)
        raw = self.fn.op(f"load {to}, ptr {ptr.text}, align {to.bits // 8}", to)
        if access.stride == 1:
            return raw
        order = const_vector([(live - 1 - lane) % to.lanes for lane in range(to.lanes)], "i32")
        return self.fn.op(f"shufflevector {raw}, {raw.type} poison, {order}", raw.type)

    def _masked(self, name: str, to: Type, args: list[Value], pointers: str = "p0") -> Value:
        """A masked read; alignment goes as an attribute or an operand, as LLVM wants it."""
        full = f"llvm.masked.{name}.{to.suffix}.{pointers}"
        self.fn.module.declare(full, to, [a.type for a in args])
        inner = ", ".join(map(str, args))
        return self.fn.op(f"call {to} @{full}({inner})", to)

    def _inside(self, memory: Memory, first: Poly, lanes: int, live: int | None) -> bool:
        """Whether all of a vector from `first` on is inside a local buffer, its slack included.

        Of `live` lanes it is known that they are elements: what follows them may be slack.
        """
        if not memory.local or memory.room is None:
            return False
        at = const_poly(first)
        if at is not None:
            return 0 <= at <= memory.room - lanes
        return live is not None and lanes - live <= memory.slack

    def _read_scalar(self, access: Access, mask: Value | None) -> Value:
        memory = access.memory
        ptr = self.address(memory, access.buffer, access.offset, mask is None)
        to = Type(memory.elem)
        some = Num(self.fn, mask).any().value if mask is not None else None
        if some is not None and self.frame.branching:
            raw = self._read_behind_branch(ptr, to, some)
        else:
            if some is not None:
                nothing = self.fn.module.constant("tedsl.zero", "[8 x i8] zeroinitializer, align 8")
                ptr = self.fn.op(f"select {some}, ptr {ptr.text}, ptr {nothing.text}", PTR)
            raw = self.fn.op(f"load {to}, ptr {ptr.text}, align {to.bits // 8}", to)
        value = self.arrive(raw, memory.dtype)
        if mask is not None and mask.type.lanes:
            value = self.wide(value)
            return arith.select(self.fn, mask, value, const(0, value.type))
        return value

    def _read_behind_branch(self, ptr: Value, to: Type, condition: Value) -> Value:
        """A scalar, or 0 where `condition` is false.

        To read from one of two addresses is shorter.  But where hundreds of such reads in one block
        share a condition, LLVM takes minutes: each integer instruction overwrites the flags that
        the condition is in, and its scheduler (`ScheduleDAGRRList`) tries an order, takes it back
        and tries the next.  A branch ends the block.
        """
        before, then, done = self.fn.block, self.fn.label("read"), self.fn.label("known")
        self.fn.branch(condition, then, done)
        self.fn.start(then)
        raw = self.fn.op(f"load {to}, ptr {ptr.text}, align {to.bits // 8}", to)
        self.fn.jump(done)
        self.fn.start(done)
        nothing = const(0, to).text
        return self.fn.op(f"phi {to} [ {raw.text}, %{then} ], [ {nothing}, %{before} ]", to)

    def _gather(self, access: Access, mask: Value | None, to: Type) -> Value:
        pointers = self.pointers(access, mask is None)
        condition = mask or const(True, to.of("i1"))
        args = [pointers, const(to.bits // 8, I32), condition, const(0, to)]
        return self._masked("gather", to, args, f"v{to.lanes}p0")

    def arrive(self, raw: Value, dtype: DType) -> Value:
        """Memory representation to registers."""
        x = Num(self.fn, raw)
        if is_short_float(dtype):
            return unpack(x, dtype).value
        return x.ne(0).value if dtype.is_bool else raw

    def depart(self, value: Value, dtype: DType) -> Value:
        """Registers to memory representation; short floats are already rounded."""
        x = Num(self.fn, value)
        if is_short_float(dtype):
            return pack(x, dtype).value
        return x.cast("zext", "i8").value if dtype.is_bool else value

    # --- writing

    def write(self, access: Access, value: Value, mask: Value | None, covers: bool = False) -> None:
        """Store `value` where `mask` holds and the lane counts.  `covers`: lanes past the end fall
        into padding."""
        memory = access.memory
        if not access.lanes:
            self._write_scalar(access, value, mask)
            return
        value = splat(self.fn, value, access.lanes)
        tail = self.lanes.tail_mask() if self.lanes is not None and not covers else None
        if mask is not None:
            mask = splat(self.fn, mask, access.lanes)
        mask = self.both(mask, tail)
        to = Type(memory.elem, access.lanes)
        if access.stride != 1:
            self._scatter(access, self.depart(value, memory.dtype), mask, to)
            return
        ptr = self.address(memory, access.buffer, access.offset, mask is None)
        if mask is not None and self._inside(memory, access.offset, access.lanes, None):
            old = self.fn.op(f"load {to}, ptr {ptr.text}, align {to.bits // 8}", to)
            value = arith.select(self.fn, mask, value, self.arrive(old, memory.dtype))
            mask = None
        raw = self.depart(value, memory.dtype)
        if mask is None:
            align, hint = to.bits // 8, ""
            if self.streaming and self._aligned(access):
                align, hint = STREAM_BYTES, f", !nontemporal {self.fn.module.streaming()}"
            self.fn.do(f"store {raw}, ptr {ptr.text}, align {align}{hint}")
            return
        self._masked_store("store", [raw, ptr, const(to.bits // 8, I32), mask], f"{to.suffix}.p0")

    def _aligned(self, access: Access) -> bool:
        """Whether a store fills whole cache lines of an aligned buffer."""
        size = access.memory.dtype.nbytes
        if self.lanes is None or access.lanes * size != STREAM_BYTES:
            return False
        for atoms, coefficient in access.offset.items():
            step = coefficient * size
            if (
                len(atoms) == 1 and atoms[0] is self.lanes.axis
            ):  # chunks start at multiples of their width
                step *= access.lanes
            if step % STREAM_BYTES:
                return False
        return True

    def _masked_store(self, name: str, args: list[Value], suffix: str) -> None:
        full = f"llvm.masked.{name}.{suffix}"
        self.fn.module.declare(full, None, [a.type for a in args])
        self.fn.do(f"call void @{full}({', '.join(map(str, args))})")

    def _write_scalar(self, access: Access, value: Value, mask: Value | None) -> None:
        ptr = self.address(access.memory, access.buffer, access.offset, mask is None)
        if value.type.lanes:
            scalar = value.type.scalar
            value = self.fn.op(f"extractelement {value}, i64 0", scalar)
        raw = self.depart(value, access.memory.dtype)
        text = f"store {raw}, ptr {ptr.text}, align {raw.type.bits // 8}"
        if mask is None:
            self.fn.do(text)
            return
        condition = mask
        if mask.type.lanes:
            condition = self.fn.op(f"extractelement {mask}, i64 0", I1)
        with self.fn.when(condition):
            self.fn.do(text)

    def _scatter(self, access: Access, raw: Value, mask: Value | None, to: Type) -> None:
        pointers = self.pointers(access, mask is None)
        condition = mask or const(True, to.of("i1"))
        args = [raw, pointers, const(to.bits // 8, I32), condition]
        self._masked_store("scatter", args, f"{to.suffix}.v{to.lanes}p0")


def register_bits(dtype: DType) -> int:
    """Bits of one lane where `dtype` is computed; conditions take what they are compared in."""
    return 8 if dtype.is_bool else 32 if is_short_float(dtype) else register_type(dtype).bits
