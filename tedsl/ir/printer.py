"""The text of loop IR: the format of goldens and bug reports.

Part of the third room; imports `expr` and `ir`.  The text is a function of the tree alone: a name
is given when its object is first printed, and a name already taken gets the suffix `_1`, `_2`, ...
"""

from __future__ import annotations

from collections.abc import Callable

from tedsl.expr import printer as expr_printer
from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.ir.nodes import (
    Accumulate,
    Allocate,
    Buffer,
    Dot,
    Evict,
    Finish,
    For,
    Func,
    Guard,
    HostCall,
    Launch,
    Load,
    LoopKind,
    Meet,
    Module,
    Precision,
    Seq,
    Stmt,
    Store,
    TensorCall,
    TileAxis,
)
from tedsl.tensor.tensor import Operation


class Namer:
    """Gives each axis, runtime scalar and buffer a name of its own, in order of first use."""

    def __init__(self, outer: Namer | None = None) -> None:
        self._names: dict[object, str] = dict(outer._names) if outer else {}
        self._taken: set[str] = set(outer._taken) if outer else set()

    def name(self, thing: Axis | Var | Operation | Buffer) -> str:
        """The name of `thing`: its own, with a suffix when another object already has it."""
        known = self._names.get(thing)
        if known is not None:
            return known
        text, count = thing.name, 0
        while text in self._taken:
            count += 1
            text = f"{thing.name}_{count}"
        self._taken.add(text)
        self._names[thing] = text
        return text

    def inner(self) -> Namer:
        """A namer for what is inside: it knows the names given so far."""
        return Namer(self)


def print_module(module: Module, namer: Namer | None = None) -> str:
    """The whole module: its buffers, then each kernel in launch order."""
    namer = namer or Namer()
    lines = [f"module {module.name}"]
    for label, buffers in (
        ("input", module.inputs),
        ("output", module.outputs),
        ("workspace", module.workspaces),
        ("counter", module.counters),
    ):
        lines += [f"  {label} {_declaration(b, namer)}" for b in buffers]
    lines += [f"  size {namer.name(v)}: {v.dtype}" for v in module.sizes]
    for repeat, places in module.launches():
        inner = namer.inner()
        head = [""]
        if repeat is not None:
            count = _expr(repeat.extent, namer)
            head += [f"repeat {inner.name(repeat.step)} in 0..{count}:"]
        for place in places:
            text = _func_lines(module.funcs[place], inner.inner())
            lines += [*head, *(text if repeat is None else _indent(text))]
            head = [""]
    return "\n".join(lines) + "\n"


def print_func(func: Func) -> str:
    """One kernel: its signature, launch options and body."""
    return "\n".join(_func_lines(func, Namer())) + "\n"


def print_stmt(stmt: Stmt, namer: Namer | None = None) -> str:
    """A statement tree, without a trailing newline."""
    return "\n".join(_stmt_lines(stmt, namer or Namer()))


def print_expr(expr: Expr, namer: Namer | None = None) -> str:
    """One expression over buffers, axes and runtime scalars."""
    return _expr(expr, namer or Namer())


def _func_lines(func: Func, namer: Namer) -> list[str]:
    params = [_declaration(b, namer) for b in func.params]
    params += [f"{namer.name(v)}: {v.dtype}" for v in func.sizes]
    head = [f"func {func.name}({', '.join(params)})"]
    if options := _launch(func.launch):
        head[0] += f" launch({options})"
    head[0] += ":"
    body = [f"assume {_expr(cond, namer)}" for cond in func.assumptions]
    if func.when is not None:
        head[0] = f"when {_expr(func.when, namer)}: {head[0]}"
    return head + _indent(body + _stmt_lines(func.body, namer))


def _launch(launch: Launch) -> str:
    options = {
        "num_warps": launch.num_warps,
        "num_stages": launch.num_stages,
        "num_ctas": launch.num_ctas,
        "maxnreg": launch.maxnreg,
    }
    return ", ".join(f"{name}={value}" for name, value in options.items() if value is not None)


def _declaration(buffer: Buffer, namer: Namer) -> str:
    name = namer.name(buffer)
    shape = ", ".join(_expr(n, namer) for n in buffer.shape)
    wish = "" if buffer.evict is Evict.NORMAL else f", evicted {buffer.evict.value}"
    if buffer.evict_then is not None:
        wish = f", evicted {buffer.evict.value}, then {buffer.evict_then.value}"
    own = ", a part for each program" if buffer.private else ""
    return f"{name}: {buffer.dtype}[{shape}]{wish}{own}"


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _stmt_lines(stmt: Stmt, namer: Namer) -> list[str]:
    match stmt:
        case Seq(stmts=stmts):
            lines = [line for child in stmts for line in _stmt_lines(child, namer)]
            return lines or ["pass"]
        case For():
            return [_loop_head(stmt, namer), *_indent(_stmt_lines(stmt.body, namer))]
        case Guard(condition=condition, body=body):
            return [f"if {_expr(condition, namer)}:", *_indent(_stmt_lines(body, namer))]
        case Finish(counter=counter, indices=indices, count=count, body=body):
            place = f"{namer.name(counter)}{_indices(indices, namer)}"
            head = f"last of {_expr(count, namer)} at {place}:"
            return [head, *_indent(_stmt_lines(body, namer))]
        case Meet(counter=counter, indices=indices, count=count, meanwhile=meanwhile):
            head = f"meet {_expr(count, namer)} at {namer.name(counter)}{_indices(indices, namer)}"
            if meanwhile is None:
                return [head]
            return [f"{head}, meanwhile:", *_indent(_stmt_lines(meanwhile, namer))]
        case Allocate(buffer=buffer, body=body):
            name, _, rest = _declaration(buffer, namer).partition(": ")
            return [f"alloc {name}: {buffer.scope} {rest}", *_stmt_lines(body, namer)]
        case Store():
            tile = _tile(stmt.tile, namer)
            place = f"{namer.name(stmt.buffer)}{_indices(stmt.indices, namer)}"
            value = _expr(stmt.value, namer)
            by = _call(stmt.call)
            return [f"{tile}{place} = {value}{_mask(stmt.mask, namer)}{by}"]
        case Accumulate():
            return [_accumulate(stmt, namer)]
        case Dot():
            return [_dot(stmt, namer)]
        case HostCall(function=function, inputs=inputs, outputs=outputs):
            made, given = (", ".join(map(namer.name, each)) for each in (outputs, inputs))
            verb = "call" if stmt.on_host else "launch"
            return [f"{made} = {verb} {function.label}({given})"]
        case _:
            return [f"<{type(stmt).__name__}>"]


def _loop_head(loop: For, namer: Namer) -> str:
    start, end = _expr(loop.start, namer), _expr(loop.end, namer)
    kind = "" if loop.kind is LoopKind.SERIAL else f" {loop.kind}"
    if loop.kind is LoopKind.PROGRAM:
        kind = f" program[{loop.program}{', descending' if loop.descending else ''}]"
    head = f"for {namer.name(loop.axis)} in{kind} {start}..{end}:"
    if loop.descending and loop.kind is not LoopKind.PROGRAM:
        head += " backwards"
    if loop.num_stages or loop.flatten:
        flatten = ", flatten" if loop.flatten else ""
        head += f" pipeline({loop.num_stages}{flatten})"
    if loop.cuts:
        head += f" cut({', '.join(_expr(point, namer) for point in loop.cuts)})"
    return head


def _tile(tile: tuple[TileAxis, ...], namer: Namer) -> str:
    if not tile:
        return ""
    return f"tile ({', '.join(f'{namer.name(t.axis)}:{t.extent}' for t in tile)}): "


def _mask(mask: Expr | None, namer: Namer) -> str:
    return "" if mask is None else f" if {_expr(mask, namer)}"


def _accumulate(stmt: Accumulate, namer: Namer) -> str:
    tile = _tile(stmt.tile, namer)
    indices = _indices(stmt.indices, namer)
    places = _tuple([f"{namer.name(b)}{indices}" for b in stmt.buffers])
    values = _tuple([_expr(v, namer) for v in stmt.values])
    mask = _mask(stmt.mask, namer)
    how = "atomic " if stmt.atomic else ""
    if stmt.along is not None:
        how = f"running along {_expr(stmt.along, namer)} "
    return f"{tile}{how}{places} {stmt.reducer.name}= {values}{mask}{_call(stmt.call)}"


def _call(call: TensorCall | None) -> str:
    return "" if call is None else f"  by {call.intrin.name}"


def _dot(stmt: Dot, namer: Namer) -> str:
    tile = _tile((*stmt.batch, stmt.row, stmt.column, stmt.contract), namer)
    place = f"{namer.name(stmt.buffer)}{_indices(stmt.indices, namer)}"
    precision = "" if stmt.precision is Precision.IEEE else f", {stmt.precision}"
    operands = f"{_expr(stmt.lhs, namer)}, {_expr(stmt.rhs, namer)}"
    return f"{tile}{place} += dot({operands}{precision})"


def _tuple(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"({', '.join(parts)})"


def _indices(indices: tuple[Expr, ...], namer: Namer) -> str:
    return f"[{', '.join(_expr(i, namer) for i in indices)}]"


def _expr(expr: Expr, namer: Namer) -> str:
    def load(node: Expr, text: Callable[[Expr], str]) -> str:
        if not isinstance(node, Load):
            return f"<{type(node).__name__}>"
        mask = "" if node.mask is None else f"; {text(node.mask)}"
        wish = "" if node.evict is None else f"; evicted {node.evict.value}"
        return f"{namer.name(node.buffer)}[{', '.join(map(text, node.indices))}{mask}{wish}]"

    return expr_printer.print_expr(expr, namer.name, load)
