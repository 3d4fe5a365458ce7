"""Names in generated source: valid Python, unique in a function, close to what the user wrote.

All that a user named comes into the text by one of two ways: as an identifier (`sanitise`), or in a
comment (`shown`).
"""

from __future__ import annotations

import builtins
import keyword
import re

LONGEST = 40
RESERVED = frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"tl", "triton", "libdevice"}


def sanitise(name: str) -> str:
    """`name` as a Python identifier: `"i.outer"` becomes `i_outer`, `"2d"` becomes `_2d`; of a
    long name, its end."""
    text = re.sub(r"[\W_]+", "_", name, flags=re.ASCII).strip("_")
    if len(text) > LONGEST:
        text = text[-LONGEST:].partition("_")[2] or text[-LONGEST:]
    text = text or "v"
    return f"_{text}" if text[0].isdigit() else text


def shown(text: str) -> str:
    """`text` as it may stand in a comment: of printable ASCII, so on one line, whatever it was."""
    return "".join(
        char if char.isascii() and char.isprintable() else f"<U+{ord(char):04X}>" for char in text
    )


class Names:
    """Gives out each name once; a second request for the same one gets a number."""

    def __init__(self, taken: frozenset[str] = frozenset()) -> None:
        self._taken = set(RESERVED | taken)

    def fresh(self, *wishes: str) -> str:
        """The first of the wishes that is free, else the last one with a number."""
        texts = [sanitise(wish) for wish in wishes]
        for text in texts:
            if text not in self._taken:
                self._taken.add(text)
                return text
        number = 1
        while f"{texts[-1]}_{number}" in self._taken:
            number += 1
        self._taken.add(f"{texts[-1]}_{number}")
        return f"{texts[-1]}_{number}"
