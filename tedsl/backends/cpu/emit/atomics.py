"""Atomic updates: `buffer[indices] = reducer(buffer[indices], value)` as one indivisible step.

Lanes go one after another, alike or not, each with one instruction where LLVM has it and else in a
loop that tries again when another thread was faster.  The threads need no order among their
updates: the pool orders the whole loop before what follows it.
"""

from __future__ import annotations

from collections.abc import Callable

from tedsl.backends.cpu.emit.llvm_text import I1, Type, Value
from tedsl.backends.cpu.emit.memory import Accessor
from tedsl.expr.nodes import BinaryOp, Expr, Reducer
from tedsl.ir.nodes import Accumulate

Combine = Callable[[Value, Value], Value]

_INTEGER = {
    BinaryOp.ADD: ("add", "add"),
    BinaryOp.AND: ("and", "and"),
    BinaryOp.OR: ("or", "or"),
    BinaryOp.XOR: ("xor", "xor"),
    BinaryOp.MAX: ("max", "umax"),
    BinaryOp.MIN: ("min", "umin"),
}


def update(accessor: Accessor, stmt: Accumulate, mask: Value | None) -> None:
    """One point (or the lanes of one) of an atomic `Accumulate`, where `mask` holds."""
    access = accessor.access(stmt.buffers[0], stmt.indices)
    value = accessor.eval(stmt.values[0])
    if accessor.lanes is None:
        _one(accessor, stmt, accessor.address(access.memory, access.buffer, access.offset), value)
        return
    pointers = accessor.pointers(access) if access.lanes else None
    whole = None
    if pointers is None:
        whole = accessor.address(access.memory, access.buffer, access.offset)
    for lane in range(accessor.lanes.live):
        place = whole or _lane(accessor, pointers, lane)
        one = _lane(accessor, value, lane)
        if mask is None:
            _one(accessor, stmt, place, one)
            continue
        with accessor.fn.when(_lane(accessor, mask, lane)), accessor.memo.scope():
            _one(accessor, stmt, place, one)


def _lane(accessor: Accessor, value: Value | None, lane: int) -> Value:
    if value is None or not value.type.lanes:
        return value if value is not None else Value("poison", I1)
    scalar = value.type.scalar
    return accessor.fn.op(f"extractelement {value}, i64 {lane}", scalar)


def _one(accessor: Accessor, stmt: Accumulate, place: Value, value: Value) -> None:
    """The update of one element."""
    fn, reducer, dtype = accessor.fn, stmt.reducer, stmt.buffers[0].dtype
    name = instruction(reducer, stmt.values[0])
    raw = accessor.depart(value, dtype)
    if name is not None:
        fn.op(f"atomicrmw {name} ptr {place.text}, {raw} monotonic", raw.type)
        return

    def combined(old: Value) -> Value:
        bound: dict[Expr, Value] = {reducer.lhs[0]: accessor.arrive(old, dtype)}
        bound[reducer.rhs[0]] = value
        return accessor.depart(accessor.with_bound(bound, reducer.combine[0], ""), dtype)

    _retried(accessor, place, raw.type, combined)


def instruction(reducer: Reducer, value: Expr) -> str | None:
    """What LLVM calls the update, if it has it; its minima and maxima of floats lose NaN."""
    op, dtype = reducer.operator, value.dtype
    if op is None:
        return None
    if dtype.is_float:
        return "fadd" if op is BinaryOp.ADD else None
    signed, unsigned = _INTEGER[op]
    return signed if dtype.info.lowest < 0 else unsigned


def _retried(
    accessor: Accessor, place: Value, type: Type, combined: Callable[[Value], Value]
) -> None:
    """Read, combine, and write if nothing has changed since; otherwise combine with what has."""
    fn, bits = accessor.fn, type.as_int
    slot = fn.slot(bits)
    first = fn.op(f"load atomic {bits}, ptr {place.text} monotonic, align {type.bits // 8}", bits)
    fn.do(f"store {first}, ptr {slot.text}")
    again, done = fn.label("again"), fn.label("combined")
    fn.jump(again)
    fn.start(again)
    with accessor.memo.scope():
        seen = fn.op(f"load {bits}, ptr {slot.text}", bits)
        new = combined(fn.op(f"bitcast {seen} to {type}", type))
        word = fn.op(f"bitcast {new} to {bits}", bits)
        pair = f"{{ {bits}, i1 }}"
        found = fn.op(
            f"cmpxchg weak ptr {place.text}, {seen}, {word} monotonic monotonic", Type("i1")
        )
        now = fn.op(f"extractvalue {pair} {found.text}, 0", bits)
        fn.do(f"store {now}, ptr {slot.text}")
        won = fn.op(f"extractvalue {pair} {found.text}, 1", I1)
        fn.branch(won, done, again)
    fn.start(done)
