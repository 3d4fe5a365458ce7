"""All classes of drawn rows, and rows by their number.  Imports the modules of the classes."""

from __future__ import annotations

from collections.abc import Sequence

import of_elements
import of_graphs
import of_products
import of_rows
import of_windows
from grammar import KINDS, SCALES, Draw, Row

FILES = (of_elements, of_rows, of_products, of_windows, of_graphs)


def kind_of(number: int, kinds: Sequence[str] = ()) -> str:
    """Which class the row of a number is of: each in turn."""
    chosen = list(kinds) or list(KINDS)
    return chosen[number % len(chosen)]


def row_of(
    seed: int, number: int, scale: str, dtypes: Sequence[str], kinds: Sequence[str] = ()
) -> Row:
    """The row of a seed and a number: equal ones for equal arguments.

    Args:
        seed: of the whole run.
        number: from 0 on.
        scale: a name of `SCALES`.
        dtypes: of floating-point tensors.
        kinds: the classes that are drawn, all without any.
    """
    name = kind_of(number, kinds)
    draw = Draw(f"{seed} {number} {name}", SCALES[scale], dtypes)
    return draw.row(f"{name} {seed}:{number}", name, KINDS[name](draw))
