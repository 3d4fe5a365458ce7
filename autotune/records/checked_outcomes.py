"""Outcomes that come as data, from a record file or from a host, checked before they are believed.

Imports `outcome` and `checked_text`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.records.checked_text import is_number, named_numbers, numbers


def checked_outcome(data: Mapping[str, Any]) -> Outcome:
    """The outcome that has these fields.

    Raises:
        ValueError: a field is missing or holds what it cannot.
    """
    try:
        status = Status(data["status"])
        seconds = data["seconds"]
        texts = [data[name] for name in ("reason", "error", "code")]
        samples, resources = numbers(data["samples"]), named_numbers(data["resources"])
    except KeyError as missing:
        raise ValueError(f"there is no {missing}") from missing
    reason, error, code = texts
    if not (isinstance(reason, str) and isinstance(error, str) and isinstance(code, str)):
        raise ValueError("a text that is none")
    timed = is_number(seconds) and seconds > 0
    if (status is Status.OK and not timed) or not (timed or seconds is None):
        raise ValueError(f"{status} in {seconds!r} seconds")
    if any(sample <= 0 for sample in samples):
        raise ValueError("a sample of no time")
    taken = None if seconds is None else float(seconds)
    return Outcome(status, taken, samples, reason, error, code, resources)
