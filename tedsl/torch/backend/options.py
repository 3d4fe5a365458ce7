"""What a user may say: `torch.compile(model, backend="tedsl", options={...})`.

Imports `report`.
"""

from __future__ import annotations

import difflib
import sys
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from tedsl.errors import BackendError
from tedsl.torch.backend.report import Report
from tedsl.torch.compiled import Compiled


@dataclass(frozen=True, slots=True)
class Budget:
    """How long a search for the kernels of one graph of Dynamo may take, its backward included.

    Attributes:
        trials: measurements for each region, spent where they pay most.
        seconds: of all together.
    """

    trials: int
    seconds: float


SEARCHES = {"quick": Budget(8, 60.0), "thorough": Budget(64, 1800.0)}


@dataclass
class Options:
    """The options of one model.

    Attributes:
        products: take products and convolutions too where a library is faster: all on the CPU,
            on a GPU those that arithmetic bounds.
        channels_last: lay out images and weights with channels last for the library's convolutions:
            True for all, False for none, by default on a GPU where it pays.
        report: a `Report` that is written.
        explain: True writes what became of each graph to standard error; or a function that is
            called with that text.
        search: `"quick"` or `"thorough"`: regions are tuned, the heaviest first, and winners are
            recorded; by default the rules schedule them and nothing is measured.
        seconds: how long a search may take, in place of what its name stands for.
        records: the record file of the search, as for `te.autotune`.
        known: kernels by the structure of their region.
        spent: seconds of searches so far.
    """

    products: bool = False
    channels_last: bool | None = None
    report: Report = field(default_factory=Report)
    explain: Callable[[str], object] | None = None
    search: str | None = None
    seconds: float | None = None
    records: str | Path | bool | None = None
    known: dict[str, Compiled | None] = field(default_factory=dict[str, "Compiled | None"])
    spent: float = 0.0

    @property
    def budget(self) -> Budget | None:
        """What is left for a search, None without one."""
        if self.search is None:
            return None
        named = SEARCHES[self.search]
        seconds = named.seconds if self.seconds is None else self.seconds
        return Budget(named.trials, max(0.0, seconds - self.spent))

    def note_search(self, begin: float) -> None:
        """Count the time of a search that began then."""
        self.spent += time.monotonic() - begin


_ALLOWED = tuple(each.name for each in fields(Options) if each.name not in ("known", "spent"))
_TYPES: dict[str, tuple[type, ...]] = {
    "products": (bool,),
    "channels_last": (bool, type(None)),
    "report": (Report,),
    "seconds": (int, float, type(None)),
    "records": (str, Path, bool, type(None)),
}


def options_of(settings: Mapping[str, Any]) -> Options:
    """What `torch.compile` passes on, checked.

    Raises:
        BackendError: an option that there is not, one of a value that it does not take, or a mode.
    """
    mode = settings.get("mode")
    if mode not in (None, "default"):
        raise BackendError(
            f"mode={mode!r} has no meaning for this backend",
            subject="torch.compile",
            hint='give options={"search": "quick"} to tune, or leave the mode out',
        )
    given = dict(settings.get("options") or {})
    for name in given:
        if name not in _ALLOWED:
            raise _unknown(f"unknown option {name!r}", name, _ALLOWED)
    for name, kinds in _TYPES.items():
        if name in given and not isinstance(given[name], kinds):
            allowed = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
            raise _wrong(name, given[name], allowed)
    search = given.get("search")
    if search is not None and search not in SEARCHES:
        raise _unknown(f"unknown search {search!r}", str(search), SEARCHES)
    explain = given.get("explain")
    if explain is True:
        given["explain"] = _to_stderr
    elif explain is None or explain is False:
        given["explain"] = None
    elif not callable(explain):
        raise _wrong("explain", explain, "bool or a function of a text")
    return Options(**given)


def _to_stderr(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _unknown(reason: str, given: str, allowed: Collection[str]) -> BackendError:
    near = difflib.get_close_matches(given, allowed, n=1)
    return BackendError(
        reason,
        subject="torch.compile",
        facts=[("allowed", ", ".join(allowed))],
        hint=f"did you mean {near[0]!r}?" if near else "write one of these",
    )


def _wrong(name: str, value: object, allowed: str) -> BackendError:
    return BackendError(
        f"the option {name!r} is {value!r}",
        subject="torch.compile",
        facts=[("allowed", allowed)],
        hint=f"give {name} such a value, or leave it out",
    )
