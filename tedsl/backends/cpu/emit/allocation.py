"""Memory for buffers that live inside a kernel: the stack, scratch handed in by the caller, or the
heap."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from tedsl.backends.cpu.emit.frame import (
    ALIGNMENT,
    STACK_BYTES,
    Frame,
    Layout,
    constant_shape,
    place,
)
from tedsl.backends.cpu.emit.llvm_text import I32, I64, PTR, Function, Value, const
from tedsl.backends.cpu.emit.types import memory_elem
from tedsl.backends.cpu.emit.values import Evaluator
from tedsl.errors import BackendError
from tedsl.ir.nodes import Buffer


def allocate(frame: Frame, buffer: Buffer, inner: int | None = None) -> None:
    """Give a local buffer of constant shape its memory for the whole function.

    Small ones are on the stack, where LLVM turns register tiles into registers; large ones are
    scratch that the caller allocates once, not in every iteration.  Dimension `inner` (the last
    unless given) is contiguous.
    """
    shape = constant_shape(buffer.shape)
    if shape is None:
        raise BackendError(
            f"local buffer {buffer.name} has a size that is not constant",
            hint="attach its stage where the region is constant, or leave the stage at root",
        )
    layout = Layout.local(buffer, shape, len(shape) - 1 if inner is None else inner)
    size = layout.count * buffer.dtype.nbytes
    if size <= STACK_BYTES:
        align = ALIGNMENT if layout.count > 1 else 8
        ptr = frame.fn.alloca(memory_elem(buffer.dtype), layout.count, align)
    else:
        ptr = Value(frame.fn.name("scratch"), PTR)
        frame.scratch.append((ptr, size))
    frame.memory[buffer] = place(buffer, ptr, inner)


@contextmanager
def scratch(fn: Function, needs: Sequence[int]) -> Generator[list[Value]]:
    """Heap memory for a callee, freed after the body."""
    made = [heap(fn, const(size, I64)) for size in needs]
    yield made
    for ptr in made:
        release(fn, ptr)


def heap(fn: Function, size: Value) -> Value:
    """Aligned memory of `size` bytes."""
    slot = fn.slot(PTR)
    fn.do(f"store ptr null, ptr {slot.text}")
    fn.module.declare("posix_memalign", I32, [PTR, I64, I64], "nounwind")
    fn.call("posix_memalign", I32, [slot, const(ALIGNMENT, I64), size])
    return fn.op(f"load ptr, ptr {slot.text}", PTR)


def release(fn: Function, ptr: Value) -> None:
    """Give memory of `heap` back."""
    fn.module.declare("free", None, [PTR], "nounwind")
    fn.call("free", None, [ptr])


@contextmanager
def global_buffer(frame: Frame, buffer: Buffer) -> Generator[None]:
    """A GLOBAL buffer that a kernel allocates for itself, of any size."""
    evaluator = Evaluator(frame, ())
    total = const(buffer.dtype.nbytes, I64)
    for extent in buffer.shape:
        value = evaluator.index(extent)
        total = frame.fn.op(f"mul nsw i64 {total.text}, {value.text}", I64)
    total = frame.fn.op(f"add nsw i64 {total.text}, {ALIGNMENT}", I64)
    ptr = heap(frame.fn, total)
    frame.memory[buffer] = place(buffer, ptr)
    yield
    release(frame.fn, ptr)
