"""`python -m tedsl minimise`: a small program that fails as the thing in a script does."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tedsl
from tedsl.checking.minimise import minimise
from tedsl.cli.program import add_sizes, sizes_of
from tedsl.cli.script import Named, add_script, last_named, load_module, named, split_name

BUILD, BUILT = "build", "_built"


class _Reached(BaseException):
    """The script came to its build."""

    def __init__(self, what: object, target: object) -> None:
        self.what, self.target = what, target


def add(commands: Any) -> None:
    """Declare the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "minimise",
        help="make a failing program small",
        description="Take what a script builds (or the schedule, kernel or tensor named in it) and "
        "print a small program that fails in the same way: wrong numbers, an error, a process that "
        "ends, or one that takes too long. Each program is tried in a process of its own.",
    )
    add_script(command)
    add_sizes(command)
    command.add_argument("--seconds", type=float, default=120.0, help="how long to try (120)")
    command.add_argument(
        "--limit", type=float, default=30.0, help="seconds after which a program hangs (30)"
    )
    command.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it to a .py file")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Minimise."""
    thing, target = _found(options)
    found = minimise(
        thing.schedule(target),
        target,
        sizes={**sizes_of(options.size)},
        seconds=options.seconds,
        limit=options.limit,
    )
    more = "" if found.finished else ", when the time was over"
    sys.stderr.write(f"{found.failure}\nsmallest of {found.tried} programs{more}\n")
    if options.output is None:
        sys.stdout.write(found.source)
    else:
        sys.stderr.write(f"written to {found.save(options.output)}\n")
    return 0


def _found(options: argparse.Namespace) -> tuple[Named, Any]:
    """What is minimised, and the target that the script builds it for: what its first `te.build`
    is given, unless a name is."""
    path, name = split_name(str(options.script))
    try:
        with _stopped_at_build():
            module = load_module(path, options.arguments)
        return (named(module, name) if name else last_named(module)), options.target
    except _Reached as reached:
        module = sys.modules["__tedsl_program__"]
        if name:
            return named(module, name), options.target or reached.target
        setattr(module, BUILT, reached.what)
        return named(module, BUILT), options.target or reached.target


@contextmanager
def _stopped_at_build() -> Generator[None]:
    """A script that is loaded comes to its first build, and no further: it may crash or hang."""
    before: Any = tedsl.build

    def build(what: object, *args: Any, target: object = None, **named: object) -> None:
        texts = [each for each in args if isinstance(each, str)]
        raise _Reached(what, target or next(iter(texts), None))

    setattr(tedsl, BUILD, build)
    try:
        yield
    finally:
        setattr(tedsl, BUILD, before)
