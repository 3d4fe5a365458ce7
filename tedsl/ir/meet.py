"""Grid barriers in the interpreter: kernels with a `Meet` run program by program, each until it has
to wait.

Part of the third room; used by `interp`.  Statements that lead to a `Meet` become generators that
yield where the program waits; loops of the grid run their programs in turn, each with cells of its
own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from tedsl.errors import InternalError
from tedsl.expr.nodes import Expr
from tedsl.ir import numerics
from tedsl.ir.evaluate import Env, Eval, Layout, Memory, check_place
from tedsl.ir.nodes import Allocate, For, Func, Guard, LoopKind, Meet, Seq, Stmt
from tedsl.ir.visit import walk_stmts

Run = Callable[[Env], None]
Steps = Callable[[Env], Iterator[None]]

_GRID = (LoopKind.PARALLEL, LoopKind.PROGRAM)


@dataclass(slots=True)
class Compile:
    """How the interpreter compiles what waits for nothing: statements, scalars, and what makes the
    memory of an allocation."""

    layout: Layout
    stmt: Callable[[Stmt], Run]
    scalar: Callable[[Expr], Eval]
    allocation: Callable[[Allocate], Run]


@dataclass(slots=True)
class _Progress:
    """How often a program arrived at the barrier, or that it ended."""

    count: int = 0


def meets(stmt: Stmt) -> bool:
    """True when programs wait in `stmt`."""
    return any(isinstance(node, Meet) for node in walk_stmts(stmt))


def run_meeting(func: Func, compiler: Compile) -> Run:
    """What runs a kernel whose programs wait for each other.

    Raises:
        InternalError: (when run) all programs wait, or some came more often than others.
    """
    progress = _Progress()
    steps = _steps(func.body, compiler, progress)
    found = dict.fromkeys(s.counter for s in walk_stmts(func.body) if isinstance(s, Meet))
    counters = [compiler.layout.memory(counter) for counter in found]

    def run(env: Env) -> None:
        before = -1
        for _ in steps(env):
            if progress.count == before:
                raise InternalError(
                    f"the programs of {func.name} wait for each other forever",
                    facts=[(env[cell].name, str(env[cell].data)) for cell in counters],
                )
            before = progress.count
        for cell in counters:
            env[cell].data[...] = 0

    return run


def _steps(stmt: Stmt, compiler: Compile, progress: _Progress) -> Steps:
    if not meets(stmt):
        return _at_once(compiler.stmt(stmt))
    match stmt:
        case Meet():
            return _meet(stmt, compiler, progress)
        case Seq(stmts=stmts):
            return _seq([_steps(child, compiler, progress) for child in stmts])
        case Guard(condition=condition, body=body):
            return _guard(compiler.scalar(condition), _steps(body, compiler, progress))
        case For(body=body):
            return _loop(stmt, compiler, _steps(body, compiler, progress), progress)
        case Allocate(body=body):
            return _seq([_at_once(compiler.allocation(stmt)), _steps(body, compiler, progress)])
        case _:
            raise InternalError(f"programs meet inside a {type(stmt).__name__}")


def _at_once(run: Run) -> Steps:
    def steps(env: Env) -> Iterator[None]:
        run(env)
        return iter(())

    return steps


def _seq(parts: list[Steps]) -> Steps:
    def steps(env: Env) -> Iterator[None]:
        for part in parts:
            yield from part(env)

    return steps


def _guard(condition: Eval, body: Steps) -> Steps:
    def steps(env: Env) -> Iterator[None]:
        if condition(env):
            yield from body(env)

    return steps


def _loop(loop: For, compiler: Compile, body: Steps, progress: _Progress) -> Steps:
    cell = compiler.layout.cell(loop.axis)
    start, end = compiler.scalar(loop.start), compiler.scalar(loop.end)
    dtype = numerics.numpy_dtype(loop.axis.dtype)

    def values(env: Env) -> Iterator[object]:
        yield from np.arange(int(start(env)), int(end(env)), dtype=dtype)

    def in_order(env: Env) -> Iterator[None]:
        for value in values(env):
            env[cell] = value
            yield from body(env)

    def together(env: Env) -> Iterator[None]:
        running: list[Iterator[None]] = []
        for value in values(env):
            own = list(env)
            own[cell] = value
            running.append(body(own))
        while running:
            waiting: list[Iterator[None]] = []
            for program in running:
                if next(program, _ENDED) is _ENDED:
                    progress.count += 1
                else:
                    waiting.append(program)
            running = waiting
            if running:
                yield

    return together if loop.kind in _GRID else in_order


_ENDED = object()


def _nothing(env: Env) -> None:
    pass


def _meet(stmt: Meet, compiler: Compile, progress: _Progress) -> Steps:
    cell = compiler.layout.memory(stmt.counter)
    count = compiler.scalar(stmt.count)
    indices = [compiler.scalar(index) for index in stmt.indices]
    meanwhile = _nothing if stmt.meanwhile is None else compiler.stmt(stmt.meanwhile)

    def steps(env: Env) -> Iterator[None]:
        memory: Memory = env[cell]
        place = tuple([int(index(env)) for index in indices])
        check_place(memory, place, "count outside")
        group = int(count(env))
        memory.data[place] += 1
        progress.count += 1
        wanted = -(-int(memory.data[place]) // group) * group
        meanwhile(env)
        while memory.data[place] < wanted:
            yield

    return steps
