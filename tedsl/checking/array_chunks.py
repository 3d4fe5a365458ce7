"""Large flat arrays in pieces that stay in the caches, worked on by a thread for each processor.

NumPy lets other threads run while it works on a piece.  Imports `cores`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tedsl.processor import usable_cores

Array = NDArray[Any]
T = TypeVar("T")
PIECE = 1 << 18
"""Elements of a piece."""
MOST_THREADS = 16


def parts(flat: Any, size: int = PIECE) -> Iterator[Any]:
    """The pieces of a flat array, one after the other."""
    for start in range(0, len(flat), size):
        yield flat[start : start + size]


def by_pieces(work: Callable[..., T], *flats: Array) -> list[T]:
    """What `work` returns for each piece of flat arrays of one length, in order."""
    together = list(zip(*(parts(flat) for flat in flats), strict=True))
    return in_threads(lambda pieces: work(*pieces), together)


def drawn(
    draw: Callable[[np.random.Generator, int], Array],
    count: int,
    dtype: np.dtype[Any],
    seed: Sequence[int],
) -> Array:
    """A flat array of `count` random elements; each piece has a generator of its own, so that the
    numbers do not depend on the threads.

    Args:
        draw: makes so many elements with a generator.
        count: of elements.
        dtype: that elements are converted to.
        seed: what the generators of all pieces come from.
    """
    made = np.empty(count, dtype)
    pieces = list(parts(made))

    def fill(each: tuple[Array, np.random.SeedSequence]) -> None:
        piece, own = each
        np.copyto(piece, draw(np.random.default_rng(own), len(piece)), casting="unsafe")

    seeds = np.random.SeedSequence(seed).spawn(len(pieces))
    in_threads(fill, list(zip(pieces, seeds, strict=True)))
    return made


def in_threads(work: Callable[[Any], T], items: Sequence[Any]) -> list[T]:
    """What `work` returns for each item, in order."""
    count = min(len(items), usable_cores(), MOST_THREADS)
    if count <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(count, "tedsl-pieces") as threads:
        return list(threads.map(work, items))
