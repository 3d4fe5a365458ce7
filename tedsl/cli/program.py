"""What is to be tuned, or whose space is shown: tensors of a script, and who schedules them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tedsl.cli.script import load_module, lookup
from tedsl.errors import TuneError
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.slips import NoFunction
from tedsl.tensor.tensor import Tensor

ScheduleFunction = Callable[[Schedule], object]


@dataclass(frozen=True)
class Program:
    """What the command works on: the tensors to compute, and who schedules them."""

    outputs: tuple[Tensor, ...]
    schedule: ScheduleFunction | None


def add_program(command: argparse.ArgumentParser) -> None:
    """The arguments that name a program."""
    command.add_argument(
        "program",
        metavar="SCRIPT:NAME",
        help="a Python file, and a name in it: a tensor, a list of tensors, or a function without "
        "arguments that returns them",
    )
    command.add_argument(
        "--schedule",
        metavar="NAME",
        help="a function f(s) in the script that schedules them and calls s.knob(...) for what is "
        "open; without it the default rules are used",
    )
    command.add_argument(
        "--target", choices=("cpu", "cuda"), help="by default the GPU where there is one"
    )


def load(options: argparse.Namespace) -> Program:
    """The program that the arguments name.

    Raises:
        TedslError: no such file or name, or not something that can be computed.
    """
    path, colon, name = str(options.program).rpartition(":")
    if not colon or not path:
        raise TuneError(
            f"{options.program!r} names no tensor",
            hint="write the script and a name: model.py:loss",
        )
    module = load_module(Path(path))
    found = lookup(module, name)
    if callable(found) and not isinstance(found, NoFunction):
        found = found()
    several = isinstance(found, (list, tuple))
    outputs = tuple(cast("Sequence[object]", found)) if several else (found,)
    tensors = tuple(each for each in outputs if isinstance(each, Tensor))
    if not tensors or len(tensors) != len(outputs):
        raise TuneError(
            f"{name} in {path} is {type(found).__name__}, which cannot be computed",
            hint="name a tensor, a list of tensors, or a function that returns them",
        )
    schedule = None
    if options.schedule is not None:
        schedule = lookup(module, options.schedule)
        if not callable(schedule):
            raise TuneError(
                f"{options.schedule} in {path} is {type(schedule).__name__}, not a function",
                hint="--schedule names a function of one argument: def f(s): ...",
            )
    return Program(tensors, cast("ScheduleFunction | None", schedule))


def add_sizes(command: argparse.ArgumentParser, more: str = "") -> None:
    """The option that gives values to symbolic sizes; `more` is what they are for, or without."""
    command.add_argument(
        "--size",
        action="append",
        default=[],
        metavar="NAME=N",
        help=f"value of a symbolic size{more}; may be given several times",
    )


def sizes_of(given: Sequence[str]) -> dict[str, int]:
    """`n=1024` and the like as a dictionary.

    Raises:
        TuneError: something else.
    """
    found: dict[str, int] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier() or not value.isdecimal():
            raise TuneError(f"--size {text!r} is no size", hint="write --size n=1024")
        found[name] = int(value)
    return found
