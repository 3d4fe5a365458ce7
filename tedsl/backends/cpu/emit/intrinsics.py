"""Calls of the user's intrinsics: pointers and strides, to LLVM text or a C function.

The text becomes part of the module, where LLVM may inline it.  A C function is an external symbol,
whose address is told to the linker when the machine code is loaded: the code itself, which is kept
on disk, holds no address.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tedsl.backends.cpu.emit.affine import Poly, add, flatten
from tedsl.backends.cpu.emit.frame import Frame
from tedsl.backends.cpu.emit.llvm_text import I64, PTR, Module, Type, Value, const, symbol
from tedsl.backends.cpu.emit.memory import Accessor
from tedsl.backends.cpu.emit.values import Pos
from tedsl.errors import BackendError, InternalError
from tedsl.expr.nodes import Axis, Expr
from tedsl.ir import nodes as ir
from tedsl.ir.visit import walk_stmts
from tedsl.processor import binding
from tedsl.tensor.foreign import CFunction
from tedsl.tensor.intrin import LlvmFunction, TensorIntrin


def emit_call(
    frame: Frame,
    call: ir.TensorCall,
    buffer: ir.Buffer,
    indices: tuple[Expr, ...],
    tile: Sequence[ir.TileAxis],
) -> None:
    """Call the intrinsic on its operands, then the output."""
    args: list[Value] = []
    where = dict(zip(call.intrin.axes, call.axes, strict=True))
    for read, operand in zip(call.intrin.reads, call.operands, strict=True):
        if not isinstance(operand, ir.Load):
            raise InternalError(f"an operand of {call.intrin.name} is no load")
        along = [where[index] for index in read.indices if isinstance(index, Axis)]
        args += _pointer(frame, operand.buffer, operand.indices, along, tile)
    along = [where[axis] for axis in call.intrin.op.axes]
    args += _pointer(frame, buffer, indices, along, tile)
    symbol = _symbol(frame.fn.module, call.intrin, [value.type for value in args])
    frame.fn.call(symbol, None, args)


def _pointer(
    frame: Frame,
    buffer: ir.Buffer,
    indices: tuple[Expr, ...],
    along: Sequence[Axis],
    tile: Sequence[ir.TileAxis],
) -> list[Value]:
    """The address of the first element, and how many elements lie between two along each axis."""
    accessor = Accessor(frame, [t.axis for t in tile])
    for t in tile:
        accessor.at[t.axis] = Pos(None, 0)
    # Not the dimensions that `Frame.offset` joins: a step along an axis needs each by itself.
    poly = flatten(indices, frame.memory[buffer].strides)
    start = accessor.place_poly(poly)
    found = [accessor.address(frame.memory[buffer], buffer, start)]
    moving = {t.axis for t in tile}
    for axis in along:
        if axis not in moving:
            found.append(const(0, I64))
            continue
        accessor.at[axis] = Pos(None, 1)
        step = add(accessor.place_poly(poly), start, -1)
        accessor.at[axis] = Pos(None, 0)
        found.append(_sum(accessor, step))
    return found


def _sum(accessor: Accessor, step: Poly) -> Value:
    fixed = step.get((), 0)
    total = accessor.sum_of([(atoms, n) for atoms, n in step.items() if atoms])
    if not fixed:
        return total
    if total.const == 0:
        return const(fixed, I64)
    return accessor.fn.op(f"add nsw i64 {total.text}, {fixed}", I64)


def _symbol(module: Module, intrin: TensorIntrin, types: Sequence[Type]) -> str:
    """The function to call, which the module then has or declares."""
    match intrin.cpu:
        case LlvmFunction(text=text, name=name):
            known = module.texts.setdefault(name, text)
            if known != text:
                raise BackendError(
                    f"two LLVM functions are called {name!r}",
                    subject=f"the intrinsic {intrin.name}",
                    hint="give one of them another name",
                )
            return name
        case CFunction():
            symbol = symbol_of(intrin)
            module.declare(symbol, None, types)
            return symbol
        case None:
            raise InternalError(f"{intrin.name} has no code for the CPU")


def symbol_of(intrin: TensorIntrin) -> str:
    """What machine code calls the C function of an intrinsic."""
    return f"tedsl_c_{symbol(intrin.name)}"


def intrinsics_of(module: ir.Module) -> Iterator[TensorIntrin]:
    """The intrinsics that a module calls."""
    for func in module.funcs:
        for stmt in walk_stmts(func.body):
            if isinstance(stmt, (ir.Store, ir.Accumulate)) and stmt.call is not None:
                yield stmt.call.intrin


def link(module: ir.Module) -> None:
    """Tell the linker the addresses of the C functions that `module` calls.

    Raises:
        BackendError: two intrinsics of one name call different functions.
    """
    found: dict[str, TensorIntrin] = {}
    for intrin in intrinsics_of(module):
        if not isinstance(intrin.cpu, CFunction):
            continue
        other = found.setdefault(symbol_of(intrin), intrin)
        if other.cpu is not intrin.cpu:
            raise BackendError(
                f"two intrinsics are called {intrin.name!r}",
                hint="give one of them another name",
            )
        binding().add_symbol(symbol_of(intrin), intrin.cpu.address)


def check_texts(module: ir.Module) -> None:
    """Refuse LLVM text of the user's that LLVM refuses, or whose parameters do not fit.

    Raises:
        BackendError: with what LLVM says.
    """
    llvm = binding()
    for intrin in dict.fromkeys(intrinsics_of(module)):
        if not isinstance(intrin.cpu, LlvmFunction):
            continue
        subject = f"the intrinsic {intrin.name}"
        try:
            parsed = llvm.parse_assembly(intrin.cpu.text)
            parsed.verify()
        except RuntimeError as error:
            raise BackendError(
                f"LLVM refuses the text of {intrin.cpu.name}: {error}",
                subject=subject,
                hint="give LLVM assembly that stands by itself, with opaque pointers (ptr)",
            ) from error
        tensors = (*intrin.inputs, intrin.op.outputs[0])
        wanted = [t for each in tensors for t in (str(PTR), *["i64"] * each.ndim)]
        given = [str(a.type) for a in parsed.get_function(intrin.cpu.name).arguments]
        if given != wanted:
            raise BackendError(
                f"{intrin.cpu.name} takes ({', '.join(given)})",
                subject=subject,
                facts=[("wanted", ", ".join(wanted))],
                hint="for each input, then for the output: a ptr, and an i64 stride per dimension",
            )
