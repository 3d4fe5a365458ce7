"""Make a failing draw smaller: fewer and smaller numbers, as long as it fails in the same way.

What was drawn is a list of numbers (`choices.Recorder`), in which 0 is the simplest: to leave out a
primitive, to take a smaller extent or to cut an expression is to leave out numbers or lower them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Fails = Callable[[list[int]], list[int] | None]
"""The numbers that were drawn from what is given, where it still fails, else None."""


def shrink(noted: Sequence[int], fails: Fails) -> list[int]:
    """A smaller list that fails.

    Args:
        noted: what failed.
        fails: raises `StopIteration` when no more is to be tried.

    Returns:
        The smallest found; `noted` itself where none is smaller.
    """
    best = _trimmed(noted)

    def smaller(candidate: list[int]) -> bool:
        nonlocal best
        candidate = _trimmed(candidate)
        if not _order(candidate) < _order(best):
            return False
        found = fails(candidate)
        if found is None:
            return False
        found = _trimmed(found)
        best = min(found, candidate, key=_order)
        return True

    try:
        while (
            _deleted(lambda: best, smaller)
            | _cleared(lambda: best, smaller)
            | _lowered(lambda: best, smaller)
        ):
            pass
    except StopIteration:
        pass
    return best


def _trimmed(numbers: Sequence[int]) -> list[int]:
    """Without zeros at the end: they are drawn anyway."""
    kept = len(numbers)
    while kept and numbers[kept - 1] == 0:
        kept -= 1
    return list(numbers[:kept])


def _order(numbers: list[int]) -> tuple[int, int, list[int]]:
    return len(numbers), sum(numbers), numbers


def _deleted(best: Callable[[], list[int]], smaller: Callable[[list[int]], bool]) -> bool:
    """Without some numbers in a row, the end first; long rows before short ones."""
    changed = False
    size = max(1, len(best()) // 2)
    while size:
        end = len(best())
        while end > 0:
            now = best()
            start = max(0, end - size)
            if smaller([*now[:start], *now[end:]]):
                changed = True
                end = min(start + size, len(best()))
            else:
                end -= size if size > 4 else 1
        size //= 2
    return changed


def _cleared(best: Callable[[], list[int]], smaller: Callable[[list[int]], bool]) -> bool:
    """With zeros for some numbers in a row."""
    changed = False
    for size in (8, 2):
        for start in range(0, len(best()), size):
            now = best()
            if any(now[start : start + size]):
                zeros = [0] * len(now[start : start + size])
                changed |= smaller([*now[:start], *zeros, *now[start + size :]])
    return changed


def _lowered(best: Callable[[], list[int]], smaller: Callable[[list[int]], bool]) -> bool:
    """With a smaller number at one place: 0, a half, one less."""
    changed = False
    for place in range(len(best()) - 1, -1, -1):
        for lower in (lambda n: 0, lambda n: n // 2, lambda n: n - 1):
            now = best()
            if place < len(now) and now[place] and lower(now[place]) < now[place]:
                changed |= smaller([*now[:place], lower(now[place]), *now[place + 1 :]])
    return changed
