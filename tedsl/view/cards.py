"""Cards: what a notebook shows at the end of a cell for a tensor, a schedule, a stage, a kernel, or
another thing that is printed as a text of several lines.

Plain HTML without scripts or colours of its own, so that it fits the notebook's theme.
"""

from __future__ import annotations

import html
from collections.abc import Iterable

from tedsl.runtime.kernel import Kernel
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.plan.graph import producers_first
from tedsl.scheduling.plan.labels import loops_text
from tedsl.target import TargetKind
from tedsl.tensor.printer import print_operation
from tedsl.tensor.tensor import Operation, PlaceholderOp, Tensor
from tedsl.view.code import resource_table
from tedsl.view.data import Table

_MOST = 40
"""Definitions that the card of a tensor shows."""


def card(thing: object) -> str:
    """The HTML of the card."""
    match thing:
        case Kernel():
            return "".join(_kernel(thing))
        case Schedule():
            return "".join(_schedule(thing))
        case Stage():
            return _head(f"stage {thing.name}", loops_text(thing.plan)) + _text(
                print_operation(thing.op)
            )
        case Tensor(op=op):
            return "".join(_definitions(thing.name, op))
        case Operation():
            return "".join(_definitions(thing.name, thing))
        case _:
            return _text(str(thing))


def _definitions(name: str, op: Operation) -> Iterable[str]:
    """The definition, then what it is made of, producers first."""
    yield _head(name, _made(op))
    yield _text(print_operation(op))
    under = [each for each in producers_first(op.outputs[:1]) if each is not op]
    computed = [each for each in under if not isinstance(each, PlaceholderOp)]
    inputs = ", ".join(f"{each.name}: {_made(each)}" for each in under if each not in computed)
    if inputs:
        yield f"<p>inputs <code>{html.escape(inputs)}</code></p>"
    if computed:
        shown = [print_operation(each) for each in computed[-_MOST:]]
        left_out = len(computed) - len(shown)
        more = [f"... and {left_out} before them"] if left_out else []
        yield _folded(f"made of {_count(len(computed), 'stage')}", "\n".join([*more, *shown]))


def _schedule(schedule: Schedule) -> Iterable[str]:
    outputs = ", ".join(tensor.name for tensor in schedule.outputs)
    stages, steps = len(schedule.stages), len(schedule.trace)
    yield _head(f"schedule of {outputs}", f"{_count(stages, 'stage')}, {_count(steps, 'step')}")
    yield _text(str(schedule))
    yield _folded("as Python", schedule.as_python())


def _kernel(kernel: Kernel) -> Iterable[str]:
    yield _head(f"kernel {kernel.name}", f"{kernel.signature}, for {kernel.target}")
    source = kernel.source
    compiles_first = kernel.target.kind is TargetKind.CUDA and kernel.target.arch is None
    table = None if compiles_first else resource_table(kernel.resources)
    if table is not None:
        yield _table(table)
    if kernel.schedule is not None:
        yield _folded("loop nest", str(kernel.schedule), opened=True)
        yield _folded("schedule as Python", kernel.schedule.as_python())
    if kernel.tuning is not None:
        yield _folded("what its search found", str(kernel.tuning.report))
    yield _folded("loop IR", kernel.ir)
    yield _folded("source", source)


def _made(op: Operation) -> str:
    """`float32[64, 32]`, for each output."""
    kinds = zip(op.output_dtypes, op.output_shapes, strict=True)
    return ", ".join(f"{dtype.value}[{', '.join(map(str, shape))}]" for dtype, shape in kinds)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def _head(title: str, what: str) -> str:
    return f"<p><b>{html.escape(title)}</b> <code>{html.escape(what)}</code></p>"


def _text(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _folded(title: str, text: str, opened: bool = False) -> str:
    head = f"<summary>{html.escape(title)}</summary>"
    return f"<details{' open' if opened else ''}>{head}{_text(text)}</details>"


def _table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table.rows)
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
