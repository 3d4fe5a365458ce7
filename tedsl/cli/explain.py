"""`python -m tedsl explain`: what something in a script has fused, and why the rest is not."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tedsl.cli.program import add_sizes, sizes_of
from tedsl.cli.script import add_script, load_named
from tedsl.explaining.explain import explain
from tedsl.runtime.kernel import Kernel


def add(commands: Any) -> None:
    """Declare the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "explain",
        help="what is fused, what that saves, why the rest is not",
        description="Print for each kernel its stages, the bytes that it reads and writes, its "
        "operations, and what it waits for; and for every two stages in different kernels why "
        "they are not in one, with the call that would do it. Needs no GPU, not for cuda either.",
    )
    add_script(command)
    command.add_argument(
        "--device", default="", metavar="NAME", help='predict for this GPU, as "NVIDIA H200"'
    )
    add_sizes(command, " (1024)")
    command.add_argument("--json", action="store_true", help="as one JSON object")
    command.add_argument(
        "--save",
        "--html",
        type=Path,
        metavar="FILE",
        help="write it to an .html, .json or .txt file",
    )
    command.add_argument(
        "--no-caches", action="store_true", help="count the bytes of every access, without caches"
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Explain."""
    named = load_named(options)
    sizes = sizes_of(options.size)
    value = named.value
    what = value if isinstance(value, Kernel) else named.schedule(options.target)
    found = explain(
        what, options.target, device=options.device, sizes=sizes, caches=not options.no_caches
    )
    if options.save is not None:
        sys.stderr.write(f"written to {found.save(options.save)}\n")
    if options.json or options.save is None:
        sys.stdout.write(f"{found.to_json() if options.json else found}\n")
    return 0
