"""Text that others have written, read as data: whatever is wrong with it is a ValueError.

Files that are shared, and answers that come from elsewhere, may be damaged, cut off, from another
version, or meant to do harm; what reads them has one kind of failure to expect.
"""

from __future__ import annotations

import json
import math
from typing import Any, cast

LARGEST = 1e300


def read_json(text: object) -> Any:
    """A JSON text as data.

    Raises:
        ValueError: it is none, or nested too deeply.
    """
    if not isinstance(text, (str, bytes)):
        raise ValueError(f"no text but {type(text).__name__}")
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def read_object(text: object) -> dict[str, Any]:
    """A JSON text that holds an object.

    Raises:
        ValueError: it holds something else.
    """
    found = read_json(text)
    if not isinstance(found, dict):
        raise ValueError(f"no object but {type(found).__name__}")
    return cast("dict[str, Any]", found)


def is_number(value: object) -> bool:
    """True for a finite number that a float can hold."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return (
        plain and math.isfinite(value)
        if isinstance(value, float)
        else (plain and -LARGEST < cast("int", value) < LARGEST)
    )


def numbers(value: object) -> tuple[float, ...]:
    """A list of finite numbers.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"no list but {type(value).__name__}")
    found = cast("list[object]", value)
    if not all(map(is_number, found)):
        raise ValueError("a list that holds more than finite numbers")
    return tuple(float(cast("float", item)) for item in found)


def named_numbers(value: object) -> dict[str, float]:
    """An object of finite numbers.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, dict):
        raise ValueError(f"no object but {type(value).__name__}")
    found = cast("dict[str, object]", value)
    if not all(map(is_number, found.values())):
        raise ValueError("an object that holds more than finite numbers")
    return {name: float(cast("float", item)) for name, item in found.items()}
