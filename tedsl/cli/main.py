"""The commands and their help.

Each command is a module with `add(commands)`, which declares its arguments, and a function of the
parsed arguments that returns the exit status: 0 done, 1 refused, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from tedsl.cli import doctor, explain, minimise, records, replay, roofline, space, tune, view
from tedsl.errors import TedslError

COMMANDS = (explain, view, roofline, tune, space, records, replay, minimise, doctor)

EXAMPLES = """examples:
  python -m tedsl explain model.py:loss --target cuda    what is fused, and why the rest is not
  python -m tedsl view model.py:loss -o loss.html        see the schedule, the IR and the code
  python -m tedsl roofline model.py:loss --plot r.svg    how far it is from what the machine can do
  python -m tedsl tune model.py:loss --trials 32         search for a schedule, print it
  python -m tedsl space model.py:loss --target cuda      what there is to choose
  python -m tedsl records list                           what has been tuned here
  python -m tedsl records export winners.jsonl --winners
  python -m tedsl replay gemm.csv.gz --seeds 20          try the search on a recorded space
  python -m tedsl minimise broken.py -o small.py         a small program that fails alike
  python -m tedsl doctor                                 what works here, and what to do
"""


def _called() -> str:
    """How the command was called."""
    return "tedsl" if Path(sys.argv[0]).stem == "tedsl" else "python -m tedsl"


def parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    whole = argparse.ArgumentParser(
        prog=_called(),
        description="Tensor expressions with explicit schedules: explain, see, tune, check.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    whole.add_argument("--version", action="version", version=f"tedsl {metadata.version('tedsl')}")
    commands = whole.add_subparsers(title="commands", dest="command", required=True)
    for command in COMMANDS:
        command.add(commands)
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; errors of the project are printed without a traceback."""
    options = parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except TedslError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    except BrokenPipeError:  # the reader of a pipe has seen enough
        sys.stderr.close()
        return 0
    except OSError as error:  # a file that was named cannot be read or written
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return 130
