"""The rules of each IR level, checked after every pass under test.

Part of the third room; imports `expr`, `index` and `ir`.  A broken rule is a bug in tedsl:
`verify` raises `InternalError` with the rule, the node and the statement it stands in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from tedsl.dtypes import DType
from tedsl.errors import InternalError
from tedsl.expr.index_arith import ONE, at_most, constant
from tedsl.expr.nodes import (
    Axis,
    Binary,
    BinaryOp,
    Compare,
    Const,
    Expr,
    IfThenElse,
    Reduce,
    Select,
    TensorRead,
    Unary,
    Var,
)
from tedsl.expr.visit import variables, walk
from tedsl.index.facts import Facts
from tedsl.index.prove import prove
from tedsl.ir.counted import comes_short
from tedsl.ir.nodes import (
    ATOMIC_OPERATORS,
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Finish,
    For,
    Func,
    Guard,
    HostCall,
    Level,
    Load,
    LoopKind,
    Meet,
    Module,
    Scope,
    Seq,
    Stmt,
    Store,
    TensorCall,
    TileAxis,
)
from tedsl.ir.printer import print_expr, print_stmt
from tedsl.ir.visit import buffers_written, closed, own_exprs, tile_axes, walk_stmts

_OF_FLOATS = frozenset({BinaryOp.DIV, BinaryOp.ATAN2})


@dataclass(frozen=True, slots=True)
class _Scope:
    """What is bound at one point of the walk.  `at_once` are the loops around it whose iterations
    run at the same time, each with the buffers that they share, `programs` all such loops.
    `counters` are those of the module; `always` where every program of the grid arrives, once, but
    for those that `chosen` conditions leave out; `deciding` is what else decides that; `known` is
    what holds at every call that runs the kernel."""

    func: str
    level: Level
    axes: frozenset[Axis]
    sizes: frozenset[Var]
    buffers: frozenset[Buffer]
    at_once: tuple[tuple[Axis, frozenset[Buffer]], ...] = ()
    counters: frozenset[Buffer] = frozenset()
    always: bool = True
    programs: tuple[Axis, ...] = ()
    extents: tuple[Expr, ...] = ()
    chosen: tuple[Expr, ...] = ()
    deciding: frozenset[Expr] = frozenset()
    known: tuple[Expr, ...] = ()

    def runs_once(self, axis: Axis) -> bool:
        """True for a loop around this point that has no second iteration."""
        facts = Facts()
        for condition in (*self.known, *self.chosen):
            facts = facts.assume(condition)
        extent = dict(zip(self.programs, self.extents, strict=True))[axis]
        return prove(at_most(extent, ONE), facts)

    def fail(self, rule: str, stmt: Stmt | None, expr: Expr | None = None) -> InternalError:
        facts = [("level", str(self.level))]
        if expr is not None:
            facts.append(("at", print_expr(expr)))
        if stmt is not None:
            facts.append(("in", print_stmt(stmt).replace("\n", "\n          ")))
        return InternalError(rule, subject=f"verify {self.func}", facts=facts)


def verify(ir: Module | Func, level: Level) -> None:
    """Check the rules of `level` over a module or one kernel.

    Raises:
        InternalError: naming the rule, the node and the statement.
    """
    if isinstance(ir, Func):
        counters = (s.counter for s in walk_stmts(ir.body) if isinstance(s, (Finish, Meet)))
        _verify_func(ir, level, frozenset(counters))
        return
    known = {*ir.inputs, *ir.outputs, *ir.workspaces, *ir.counters}
    for place, func in enumerate(ir.funcs):
        for buffer in func.params:
            if buffer not in known:
                raise InternalError(
                    f"parameter {buffer.name!r} of {func.name} is no buffer of the module",
                    subject=f"verify {ir.name}",
                )
        steps = {repeat.step for repeat in ir.repeats if repeat.begin <= place < repeat.end}
        for size in func.sizes:
            if size not in frozenset(ir.sizes) | steps:
                raise InternalError(
                    f"size {size.name!r} of {func.name} is no size of the module",
                    subject=f"verify {ir.name}",
                )
        _verify_func(func, level, frozenset(ir.counters))
    for condition in ir.assumptions:
        _check_expr(
            condition,
            _Scope(ir.name, level, frozenset(), frozenset(ir.sizes), frozenset()),
            None,
        )


def _verify_func(func: Func, level: Level, counters: frozenset[Buffer]) -> None:
    sizes, params = frozenset(func.sizes), frozenset(func.params)
    counters &= params
    scope = _Scope(func.name, level, frozenset(), sizes, params - counters, counters=counters)
    bound: set[Axis] = set()
    for buffer in func.params:
        if buffer.scope is not Scope.GLOBAL:
            raise scope.fail(f"parameter {buffer.name!r} is not GLOBAL", None)
        for extent in buffer.shape:
            _check_expr(extent, scope, None)
    known = (*func.assumptions, *(() if func.when is None else (func.when,)))
    for condition in known:
        _check_expr(condition, scope, None)
        if condition.dtype is not DType.bool:
            raise scope.fail("a condition on sizes is not bool", None, condition)
    if func.host_call is None:
        _check_stmt(func.body, replace(scope, known=known), bound)
    else:
        _check_host_call(func.host_call, scope)


def _check_host_call(call: HostCall, scope: _Scope) -> None:
    for buffer in (*call.inputs, *call.outputs):
        if buffer not in scope.buffers:
            raise scope.fail(f"buffer {buffer.name!r} is no parameter", call)
    for buffer in call.outputs:
        if buffer in call.inputs:
            raise scope.fail(f"buffer {buffer.name!r} is read and written", call)


def _check_stmt(stmt: Stmt, scope: _Scope, bound: set[Axis]) -> None:
    """`bound` collects every axis bound anywhere in the function: each may be bound once."""
    match closed(stmt):
        case Seq(stmts=stmts):
            for child in stmts:
                _check_stmt(child, scope, bound)
        case For() as loop:
            _check_loop(loop, scope)
            _bind(loop.axis, loop, scope, bound)
            inside = _inner(scope, axes=(loop.axis,))
            if loop.kind in (LoopKind.PARALLEL, LoopKind.PROGRAM):
                shared = (*scope.at_once, (loop.axis, scope.buffers))
                running, extents = (*scope.programs, loop.axis), (*scope.extents, loop.extent)
                inside = replace(inside, at_once=shared, programs=running, extents=extents)
            else:
                deciding = scope.deciding.union(variables(loop.start, loop.end))
                inside = replace(inside, always=False, deciding=deciding)
            _check_stmt(loop.body, inside, bound)
        case Guard(condition=condition, body=body):
            _check_expr(condition, scope, stmt)
            if condition.dtype is not DType.bool:
                raise scope.fail("the condition of a guard is not bool", stmt, condition)
            named = frozenset(variables(condition))
            inside = replace(_pinned(condition, scope), deciding=scope.deciding | named)
            if named <= {*scope.programs, *scope.sizes} and not _loads(condition):
                inside = replace(inside, chosen=(*scope.chosen, condition))
            else:
                inside = replace(inside, always=False)
            _check_stmt(body, inside, bound)
        case Finish() as finish:
            _check_stmt(finish.body, _finishing(finish, scope), bound)
        case Meet() as meet:
            _check_meet(meet, scope)
            if meet.meanwhile is not None:
                _check_meanwhile(meet.meanwhile, scope)
                _check_stmt(meet.meanwhile, scope, bound)
        case Allocate(buffer=buffer, body=body):
            _check_allocate(buffer, scope, stmt)
            _check_stmt(body, _inner(scope, buffers=(buffer,)), bound)
        case (Store() | Accumulate() | Dot()) as leaf:
            _check_leaf(leaf, scope)
        case HostCall():
            raise scope.fail("a call of the host inside a kernel", stmt)
        case _ as never:
            assert_never(never)


def _inner(scope: _Scope, axes: tuple[Axis, ...] = (), buffers: tuple[Buffer, ...] = ()) -> _Scope:
    return replace(scope, axes=scope.axes.union(axes), buffers=scope.buffers.union(buffers))


def _bind(axis: Axis, stmt: Stmt, scope: _Scope, bound: set[Axis]) -> None:
    if axis in bound:
        raise scope.fail(f"axis {axis.name!r} is bound twice", stmt)
    bound.add(axis)


def _pinned(condition: Expr, scope: _Scope) -> _Scope:
    """The scope under a condition: what it names of a loop may be one iteration, so that loop is
    left alone."""
    named = set(variables(condition))
    return replace(scope, at_once=tuple(pair for pair in scope.at_once if pair[0] not in named))


def _finishing(finish: Finish, scope: _Scope) -> _Scope:
    """The scope of a last-block reduction: axes that tell the last program from the others are not
    known there, and iterations of the others do not run."""
    grid = tuple(zip(scope.programs, scope.extents, strict=True))
    if not scope.always or (scope.chosen and comes_short(finish, grid, scope.chosen)):
        raise scope.fail("a program may come to a finish not at all, or again and again", finish)
    _check_counter(finish, scope)
    if not finish.count.dtype.is_integer:
        raise scope.fail("the count of a finish is not an integer", finish, finish.count)
    known = set(variables(*finish.indices))
    kept = tuple(pair for pair in scope.at_once if pair[0] in known)
    axes = scope.axes - {axis for axis, _ in scope.at_once if axis not in known}
    return replace(scope, axes=axes, at_once=kept, always=False)


def _loads(condition: Expr) -> bool:
    return any(isinstance(node, Load) for node in walk(condition))


def _check_counter(stmt: Finish | Meet, scope: _Scope) -> None:
    counter = stmt.counter
    if counter not in scope.counters or counter.dtype is not DType.int32:
        raise scope.fail(f"{counter.name!r} is no counter", stmt)
    _check_access(counter, stmt.indices, replace(scope, buffers=scope.counters), stmt)
    for expr in own_exprs(stmt):
        _check_expr(expr, scope, stmt)


def _check_meet(meet: Meet, scope: _Scope) -> None:
    """A grid barrier is uniform: programs of a group differ in the axes that the indices do not
    name, and no such axis decides whether they arrive."""
    _check_counter(meet, scope)
    if not meet.count.dtype.is_integer:
        raise scope.fail("the count of a meeting is not an integer", meet, meet.count)
    named = set(variables(*meet.indices))
    apart = [axis for axis in scope.programs if axis not in named]
    if not apart:
        raise scope.fail("every program meets itself alone", meet)
    for axis in apart:
        if axis in scope.deciding:
            raise scope.fail(f"only some iterations of {axis.name!r} come to a meeting", meet)


def _check_meanwhile(stmt: Stmt, scope: _Scope) -> None:
    """What runs between arrival and wait stores nothing that other programs see."""
    for buffer in buffers_written(stmt):
        if buffer.scope is not Scope.LOCAL:
            raise scope.fail(f"{buffer.name!r} is stored while programs wait", stmt)


def _check_loop(loop: For, scope: _Scope) -> None:
    for bound in (loop.start, loop.end):
        _check_expr(bound, scope, loop)
        if not bound.dtype.is_integer:
            raise scope.fail("the bound of a loop is not an integer", loop, bound)
    if loop.kind is not LoopKind.SERIAL and constant(loop.start) != 0:
        raise scope.fail(f"a {loop.kind} loop does not start at 0", loop)
    if scope.level is Level.TILE and loop.kind is LoopKind.VECTORIZED:
        raise scope.fail("a VECTORIZED loop at TILE level", loop)
    backwards = loop.descending and loop.kind is not LoopKind.PROGRAM
    if backwards and scope.level is Level.TILE:
        raise scope.fail("a loop that runs backwards at TILE level", loop)
    if backwards and loop.kind not in (LoopKind.SERIAL, LoopKind.UNROLLED):
        raise scope.fail(f"a {loop.kind} loop that runs backwards", loop)
    if not 0 <= loop.program <= 2:
        raise scope.fail(f"grid dimension {loop.program} of a loop is not 0, 1 or 2", loop)


def _check_allocate(buffer: Buffer, scope: _Scope, stmt: Stmt) -> None:
    if buffer in scope.buffers:
        raise scope.fail(f"buffer {buffer.name!r} is allocated twice", stmt)
    for extent in buffer.shape:
        _check_expr(extent, scope, stmt)
        if buffer.scope is not Scope.GLOBAL and not isinstance(extent, Const):
            raise scope.fail(f"{buffer.scope} buffer {buffer.name!r} has no constant shape", stmt)


def _check_leaf(stmt: Store | Accumulate | Dot, scope: _Scope) -> None:
    tile = tile_axes(stmt)
    if scope.level is Level.NEST and tile:
        raise scope.fail("a statement with tile axes at NEST level", stmt)
    for axis in tile:
        if axis.extent <= 0:
            raise scope.fail(f"tile axis {axis.axis.name!r} has extent {axis.extent}", stmt)
        if axis.axis in scope.axes:
            raise scope.fail(f"tile axis {axis.axis.name!r} is also a loop around it", stmt)
    if len({t.axis for t in tile}) != len(tile):
        raise scope.fail("a tile axis occurs twice", stmt)
    inside = _inner(scope, axes=tuple(t.axis for t in tile))
    for expr in own_exprs(stmt):
        _check_expr(expr, inside, stmt)
    match stmt:
        case Store(buffer=buffer, indices=indices, value=value, mask=mask):
            _check_place(buffer, indices, value, inside, stmt)
            _check_mask(mask, inside, stmt)
            _check_distinct(stmt, tile, inside)
            _check_call(stmt.call, inside, stmt)
        case Accumulate():
            _check_accumulate(stmt, inside)
            _check_call(stmt.call, inside, stmt)
            _check_mask(stmt.mask, inside, stmt)
        case Dot():
            _check_dot(stmt, inside)
        case _ as never:
            assert_never(never)


def _check_call(call: TensorCall | None, scope: _Scope, stmt: Store | Accumulate) -> None:
    """An intrinsic computes whole tiles: nothing is masked, and each of its axes has its extent."""
    if call is None:
        return
    name, extents = call.intrin.name, {t.axis: t.extent for t in stmt.tile}
    if len(call.axes) != len(call.intrin.axes) or len(call.operands) != len(call.intrin.inputs):
        raise scope.fail(f"the call of {name} has other axes or operands than declared", stmt)
    for operand in call.operands:
        if not isinstance(operand, Load) or operand.mask is not None:
            raise scope.fail(f"an operand of {name} is no element of a buffer", stmt, operand)
    if scope.level is Level.NEST:
        return
    if stmt.mask is not None:
        raise scope.fail(f"the tile of {name} is masked", stmt, stmt.mask)
    for axis, size in zip(call.axes, call.intrin.extents, strict=True):
        if extents.get(axis, 1) != size:
            raise scope.fail(f"axis {axis.name!r} of {name} does not have the extent {size}", stmt)


def _check_place(
    buffer: Buffer, indices: tuple[Expr, ...], value: Expr | None, scope: _Scope, stmt: Stmt
) -> None:
    """The element that is written: a known buffer, one integer index per dimension, its dtype."""
    _check_access(buffer, indices, scope, stmt)
    if value is not None and value.dtype is not buffer.dtype:
        raise scope.fail(
            f"a {value.dtype} value is stored into {buffer.dtype} buffer {buffer.name!r}",
            stmt,
            value,
        )


def _check_access(
    buffer: Buffer, indices: tuple[Expr, ...], scope: _Scope, stmt: Stmt | None
) -> None:
    if buffer not in scope.buffers:
        raise scope.fail(f"buffer {buffer.name!r} is neither a parameter nor allocated here", stmt)
    if len(indices) != len(buffer.shape):
        raise scope.fail(
            f"{len(indices)} indices for buffer {buffer.name!r} of rank {len(buffer.shape)}", stmt
        )
    for index in indices:
        if not index.dtype.is_integer:
            raise scope.fail(f"an index of {buffer.name!r} is not an integer", stmt, index)


def _check_mask(mask: Expr | None, scope: _Scope, stmt: Stmt | None) -> None:
    if mask is None:
        return
    if scope.level is Level.NEST and not isinstance(stmt, Accumulate):
        raise scope.fail("a mask at NEST level", stmt, mask)
    if mask.dtype is not DType.bool:
        raise scope.fail("a mask is not bool", stmt, mask)


def _check_distinct(stmt: Store, tile: tuple[TileAxis, ...], scope: _Scope) -> None:
    """Decidable part of "distinct points write distinct elements": every tile axis must occur.

    A tile axis that the mask names may be pinned to one point by it, so it is left alone.
    """
    used = {*variables(*stmt.indices), *(variables(stmt.mask) if stmt.mask is not None else ())}
    for axis in tile:
        if axis.extent > 1 and axis.axis not in used:
            raise scope.fail(f"points of tile axis {axis.axis.name!r} write the same element", stmt)


def _check_accumulate(stmt: Accumulate, scope: _Scope) -> None:
    width = len(stmt.reducer.combine)
    if len(stmt.buffers) != width or len(stmt.values) != width:
        raise scope.fail(
            f"{len(stmt.buffers)} buffers and {len(stmt.values)} values for reducer "
            f"{stmt.reducer.name!r} of {width}",
            stmt,
        )
    parts = zip(stmt.buffers, stmt.values, stmt.reducer.combine, strict=True)
    for buffer, value, combine in parts:
        _check_place(buffer, stmt.indices, value, scope, stmt)
        if combine.dtype is not buffer.dtype:
            raise scope.fail(
                f"reducer {stmt.reducer.name!r} makes {combine.dtype} for {buffer.dtype} "
                f"buffer {buffer.name!r}",
                stmt,
            )

    if stmt.along is not None:
        _check_running(stmt, stmt.along, scope)
    if stmt.atomic:
        _check_atomic(stmt, scope)
        return
    used = set(variables(*stmt.indices))
    for axis, shared in scope.at_once:
        if axis in used or shared.isdisjoint(stmt.buffers):
            continue
        if not scope.runs_once(axis):
            raise scope.fail(f"iterations of {axis.name!r} race for one element", stmt)


def _check_atomic(stmt: Accumulate, scope: _Scope) -> None:
    if len(stmt.buffers) != 1 or stmt.buffers[0].scope is not Scope.GLOBAL:
        raise scope.fail("an atomic update of several buffers, or of one that is not GLOBAL", stmt)
    if stmt.reducer.operator not in ATOMIC_OPERATORS or stmt.call is not None:
        raise scope.fail(f"an atomic update with reducer {stmt.reducer.name!r}", stmt)


def _check_running(stmt: Accumulate, along: Axis, scope: _Scope) -> None:
    named = set(variables(*stmt.indices))
    if stmt.atomic or stmt.call is not None or along not in {t.axis for t in stmt.tile}:
        raise scope.fail(f"a running fold along {along.name!r}, which is no axis of its tile", stmt)
    if any(t.axis not in named for t in stmt.tile):
        raise scope.fail("a running fold that reduces an axis", stmt)
    if any(buffer.scope is not Scope.LOCAL for buffer in stmt.buffers):
        raise scope.fail("a running fold into a buffer that is not LOCAL", stmt)


def _check_dot(stmt: Dot, scope: _Scope) -> None:
    _check_access(stmt.buffer, stmt.indices, scope, stmt)
    batch = {t.axis for t in stmt.batch}
    tile = {t.axis for t in tile_axes(stmt)}
    operands = (
        ("lhs", stmt.lhs, {stmt.row.axis, stmt.contract.axis}),
        ("rhs", stmt.rhs, {stmt.column.axis, stmt.contract.axis}),
        ("place", None, {stmt.row.axis, stmt.column.axis}),
    )
    for name, operand, allowed in operands:
        exprs = stmt.indices if operand is None else (operand,)
        extra = tile.intersection(variables(*exprs)) - batch - allowed
        if extra:
            names = ", ".join(sorted(axis.name for axis in extra))
            raise scope.fail(f"the {name} of a dot depends on {names}", stmt)


def _check_expr(expr: Expr, scope: _Scope, stmt: Stmt | None) -> None:
    for node in walk(expr):
        match node:
            case Axis() if node not in scope.axes:
                raise scope.fail(f"axis {node.name!r} is not bound here", stmt, expr)
            case Var() if node not in scope.sizes:
                raise scope.fail(f"size {node.name!r} is not listed in the sizes", stmt, expr)
            case TensorRead() | Reduce():
                raise scope.fail(f"a {type(node).__name__} in the loop IR", stmt, node)
            case IfThenElse() if scope.level is Level.TILE:
                raise scope.fail("an IfThenElse at TILE level", stmt, node)
            case Load(buffer=buffer, indices=indices, mask=mask):
                _check_access(buffer, indices, scope, stmt)
                _check_mask(mask, scope, stmt)
            case _:
                _check_types(node, scope, stmt)


def _check_types(node: Expr, scope: _Scope, stmt: Stmt | None) -> None:
    match node:
        case Binary(a=a, b=b) | Compare(a=a, b=b) if a.dtype is not b.dtype:
            raise scope.fail(f"operands are {a.dtype} and {b.dtype}", stmt, node)
        case Binary(op=op, a=a) if op in _OF_FLOATS and not a.dtype.is_float:
            raise scope.fail(f"{op.value} of {a.dtype} operands", stmt, node)
        case Select(condition=condition, a=a, b=b) | IfThenElse(condition=condition, a=a, b=b):
            if condition.dtype is not DType.bool:
                raise scope.fail("the condition of a choice is not bool", stmt, node)
            if a.dtype is not b.dtype:
                raise scope.fail(f"choices are {a.dtype} and {b.dtype}", stmt, node)
        case Const(value=value, dtype=dtype):
            _check_const(node, value, dtype, scope, stmt)
        case Unary(op=op, a=a) if a.dtype is DType.bool and op.value in ("neg", "abs", "sign"):
            raise scope.fail(f"{op.value} of a bool", stmt, node)
        case _:
            pass


def _check_const(node: Expr, value: float, dtype: DType, scope: _Scope, stmt: Stmt | None) -> None:
    expected = bool if dtype.is_bool else int if dtype.is_integer else float
    if type(value) is not expected and not (expected is float and type(value) is int):
        raise scope.fail(f"{value!r} is not a value of {dtype}", stmt, node)
    if dtype.is_integer and not dtype.info.lowest <= value <= dtype.info.highest:
        raise scope.fail(f"{value!r} does not fit {dtype}", stmt, node)
