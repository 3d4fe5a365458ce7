"""What a host answers, checked before it is believed: whatever carries answers may spoil them.

Imports `checked_outcomes` and `checked_text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tedsl.autotune.outcome import Outcome
from tedsl.autotune.records.checked_outcomes import checked_outcome
from tedsl.autotune.records.checked_text import is_number, numbers, read_object

FACTS = ("device", "features", "toolchain", "codegen")
_ENDS = ("internal", "other", "error")
"""What an answer says in place of what was asked for."""


def read_answer(text: object, op: str, count: int) -> dict[str, Any]:
    """The answer to a request about so many candidates.

    Raises:
        ValueError: it is none.
    """
    reply = read_object(text)
    told = [name for name in _ENDS if name in reply]
    if told:
        for name in (*told, *(["text"] if told[0] != "other" else [])):
            if not isinstance(reply.get(name), str):
                raise ValueError(f"{name!r} is no text")
        return reply
    match op:
        case "facts":
            _check_facts(reply.get("facts"))
        case "measure":
            reply["outcomes"] = _outcomes(reply.get("outcomes"), count)
        case "compare":
            reply["samples"] = _samples(reply.get("samples"), count)
        case "estimate":
            reply["found"] = _estimates(reply.get("found"), count)
        case "verify":
            _check_verified(reply)
        case _:
            pass
    return reply


def _list(value: object, count: int) -> Sequence[Any]:
    if not isinstance(value, list) or len(cast("list[object]", value)) != count:
        raise ValueError(f"no list of {count}")
    return cast("list[Any]", value)


def _check_facts(facts: object) -> None:
    held = cast("dict[str, object]", facts) if isinstance(facts, dict) else {}
    missing = [name for name in FACTS if not isinstance(held.get(name), str)]
    if missing:
        raise ValueError(f"facts without {missing[0]}")


def _outcomes(value: object, count: int) -> list[Outcome | None]:
    found: list[Outcome | None] = []
    for each in _list(value, count):
        if not (each is None or isinstance(each, dict)):
            raise ValueError("an outcome that is none")
        found.append(None if each is None else checked_outcome(cast("dict[str, Any]", each)))
    return found


def _samples(value: object, count: int) -> list[list[float]] | None:
    if value is None:
        return None
    found = [list(numbers(each)) for each in _list(value, count)]
    if any(not each or min(each) <= 0 for each in found):
        raise ValueError("a sample of no time")
    return found


def _estimates(value: object, count: int) -> list[dict[str, float] | None]:
    found: list[dict[str, float] | None] = []
    for each in _list(value, count):
        if not (each is None or isinstance(each, dict)):
            raise ValueError("features that are none")
        named = cast("dict[str, Any] | None", each)
        if named is not None and not all(map(_is_feature, named.values())):
            raise ValueError("a feature that is no number")
        found.append(named)
    return found


def _is_feature(value: object) -> bool:
    """True for a number; a predicted time may be infinite."""
    return isinstance(value, float) or is_number(value)


def _check_verified(reply: dict[str, Any]) -> None:
    calls, fault = reply.get("calls"), reply.get("fault")
    if not isinstance(calls, int) or not 0 <= calls < 1 << 31:
        raise ValueError(f"{str(calls)[:60]!r} calls")
    reply["fault"] = None if fault is None else checked_outcome(fault)
