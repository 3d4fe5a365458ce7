"""Triton's interpreter that also makes Triton's analysis of addresses and masks, and does not let a
kernel rely on what is wrong of it.

Run in place of `interpret/server.py`: each value carries what AxisInfo (to Triton 3.8, which
believes most) would say of it.  Each result of an operation has to be the same where it is said to
be, for the compiler computes it once there; and each load and store looks whether the widest access
that is allowed has neighbouring addresses, an aligned start and one mask.  So a fault that only a
GPU would show is an error here.  `believing` in `believing_runs` starts it.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np

CHILD = Path(__file__).parents[2] / "tedsl/backends/triton/interpret/server.py"
MOST = 1 << 62
WIDEST = 16
Dims = tuple[int, ...]


@dataclass(frozen=True)
class Info:
    """Per dimension: runs, what divides the first of each, how many are the same."""

    run: Dims
    divides: Dims
    same: Dims
    value: int | None = None


def power(number: int) -> int:
    """The largest power of two that divides a number."""
    return number & -number if number else MOST


def extents(handle: Any) -> Dims:
    """The shape; (1,) for a scalar."""
    return tuple(handle.data.shape) or (1,)


def is_scalar(handle: Any) -> bool:
    """Blocks of one element do not occur."""
    return handle.data.size == 1 and handle.data.ndim <= 1


def info(handle: Any) -> Info:
    """What is said of a value; the least where it was never looked at."""
    if not hasattr(handle, "data") or not hasattr(handle.data, "shape"):
        return Info((1,), (1,), (1,))
    ones = (1,) * len(extents(handle))
    found: Info = getattr(handle, "believed", None) or Info(ones, ones, ones)
    if len(found.run) != len(ones):
        found = Info(ones, ones, ones)
    for key, field in (("divisibility", "divides"), ("contiguity", "run"), ("constancy", "same")):
        hint = getattr(handle, "attr", {}).get(f"tt.{key}")
        if hint is not None:
            found = replace(found, **{field: tuple(int(getattr(n, "value", n)) for n in hint)})
    return found


def constant(value: int, shape: Dims, divides: int | None = None) -> Info:
    rank = len(shape)
    same = (1,) if shape == (1,) else shape
    return Info((1,) * rank, (divides or power(value),) * rank, same, value)


def times(a: int, b: int) -> int:
    return min(MOST, a * b)


def both(run_a: Dims, run_b: Dims, a: Dims, b: Dims) -> Dims:
    """What divides a choice of two."""
    return tuple(
        gcd(x, y) if p == q else gcd(x, y, p, q)
        for p, q, x, y in zip(run_a, run_b, a, b, strict=True)
    )


def gcds(*parts: Dims) -> Dims:
    return tuple(gcd(*each) for each in zip(*parts, strict=True))


def added(a: Info, b: Info, shape: Dims) -> Info:
    del shape
    run = tuple(
        max(gcd(p, y), gcd(x, q)) for p, q, x, y in zip(a.same, b.same, a.run, b.run, strict=True)
    )
    return Info(run, gcds(a.divides, b.divides), gcds(a.same, b.same))


def subtracted(a: Info, b: Info, shape: Dims) -> Info:
    del shape
    return Info(gcds(a.run, b.same), gcds(a.divides, b.divides), gcds(a.same, b.same))


def multiplied(a: Info, b: Info, shape: Dims) -> Info:
    def each(x: Info, other: Info) -> Dims:
        whole = other.value == 1
        return tuple(1 if r > 1 and not whole else d for r, d in zip(x.run, x.divides, strict=True))

    divides = tuple(times(x, y) for x, y in zip(each(a, b), each(b, a), strict=True))
    run = (1,) * len(shape)
    if 1 in (a.value, b.value):
        run = a.run if b.value == 1 else b.run
    return Info(run, divides, gcds(a.same, b.same))


def divided(a: Info, b: Info, shape: Dims) -> Info:
    same = list(gcds(a.same, b.same))
    divides = [1] * len(shape)
    for d, extent in enumerate(shape):
        if a.run[d] == extent and b.same[d] == extent and shape != (1,):
            same[d] = max(same[d], gcd(a.run[d], a.divides[d], b.divides[d]))
        if a.value == 0 or b.value == 1:
            divides[d] = a.divides[d]
        elif b.value is not None and power(abs(b.value)) == abs(b.value) and a.run[d] == 1:
            divides[d] = max(1, a.divides[d] // abs(b.value))
    run = a.run if b.value == 1 else (1,) * len(shape)
    return Info(run, tuple(divides), tuple(same))


def remaining(a: Info, b: Info, shape: Dims) -> Info:
    run, divides = [1] * len(shape), [1] * len(shape)
    for d, extent in enumerate(shape):
        if a.run[d] == extent and b.same[d] == extent and shape != (1,):
            run[d] = gcd(a.run[d], a.divides[d], b.divides[d])
        if b.same[d] > 1:
            divides[d] = gcd(a.divides[d], b.divides[d])
    same = shape if b.value == 1 else gcds(a.same, b.same)
    return Info(tuple(run), tuple(divides), same, 0 if b.value == 1 else None)


def logical(a: Info, b: Info, shape: Dims) -> Info:
    ones = (1,) * len(shape)
    return Info(ones, ones, gcds(a.same, b.same))


def extreme(a: Info, b: Info, shape: Dims) -> Info:
    del shape
    return Info(gcds(a.run, b.run), both(a.run, b.run, a.divides, b.divides), gcds(a.same, b.same))


def shifted_left(a: Info, b: Info, shape: Dims) -> Info:
    shift = b.value or 0
    divides = tuple(
        times(1 if r > 1 and shift else d, 1 << shift)
        for r, d in zip(a.run, a.divides, strict=True)
    )
    run = a.run if b.value == 0 else (1,) * len(shape)
    return Info(run, divides, gcds(a.same, b.same))


def shifted_right(a: Info, b: Info, shape: Dims) -> Info:
    ones = (1,) * len(shape)
    if b.value is None:
        return Info(ones, ones, gcds(a.same, b.same))
    divides = tuple(
        max(1, (1 if r > 1 and b.value else d) >> b.value)
        for r, d in zip(a.run, a.divides, strict=True)
    )
    return Info(a.run if b.value == 0 else ones, divides, gcds(a.same, b.same))


def compared(kind: str) -> Callable[[Info, Info, Dims], Info]:
    """Greater and less-or-equal look at a constant on the left, the others on the right."""
    left, right = kind[1:] in ("GT", "LE"), kind[1:] in ("LT", "GE")

    def compare(a: Info, b: Info, shape: Dims) -> Info:
        same = list(gcds(a.same, b.same))
        for d, extent in enumerate(shape):
            if left and a.same[d] == extent:
                same[d] = max(same[d], gcd(b.run[d], a.divides[d], b.divides[d]))
            elif right and b.same[d] == extent:
                same[d] = max(same[d], gcd(a.run[d], a.divides[d], b.divides[d]))
        ones = (1,) * len(shape)
        return Info(ones, ones, tuple(same))

    return compare


RULES: dict[str, Callable[[Info, Info, Dims], Info]] = {
    "create_add": added, "create_sub": subtracted, "create_mul": multiplied,
    "create_sdiv": divided, "create_udiv": divided,
    "create_srem": remaining, "create_urem": remaining,
    "create_and": logical, "create_or": logical, "create_xor": logical,
    "create_minsi": extreme, "create_maxsi": extreme,
    "create_minui": extreme, "create_maxui": extreme,
    "create_shl": shifted_left, "create_lshr": shifted_right, "create_ashr": shifted_right,
    **{f"create_icmp{s}{op}": compared(s + op) for s in "SU" for op in ("LT", "LE", "GT", "GE")},
    "create_icmpEQ": compared("EQ"), "create_icmpNE": compared("NE"),
}  # fmt: skip
PASSED_ON = ("create_int_cast", "create_bitcast")


def chosen(condition: Info, a: Info, b: Info, whole: bool) -> Info:
    divides = both(a.run, b.run, a.divides, b.divides)
    if whole:
        return Info(gcds(a.run, b.run), divides, gcds(a.same, b.same))
    same = condition.same
    return Info(gcds(a.run, b.run, same), divides, gcds(a.same, b.same, same))


def expanded(x: Info, axis: int) -> Info:
    if x.value is not None:
        divides = power(x.value)
    else:
        divides = gcd(*(1 if r > 1 else d for r, d in zip(x.run, x.divides, strict=True)))

    def put(dims: Dims, new: int) -> Dims:
        return (*dims[:axis], new, *dims[axis:])

    return Info(put(x.run, 1), put(x.divides, divides), put(x.same, 1), x.value)


def broadcast(x: Info, old: Dims, new: Dims) -> Info:
    wide = [o == 1 and n != 1 for o, n in zip(old, new, strict=True)]
    run = tuple(1 if w else r for w, r in zip(wide, x.run, strict=True))
    same = tuple(n if w else s for w, n, s in zip(wide, new, x.same, strict=True))
    return Info(run, x.divides, same, x.value)


class WrongWidth(IndexError):
    """The widest access that the analysis allows is not one."""


def check(pointer: Any, mask: Any, what: str) -> None:
    """Look at a load or store of a block.

    Raises:
        WrongWidth: an access of several elements would be wrong.
    """
    if is_scalar(pointer):
        return
    size = max(1, pointer.get_element_ty().primitive_bitwidth // 8)
    believed, allowed = info(pointer), None if mask is None else info(mask)
    places = np.asarray(pointer.data).astype(np.int64)
    holds = np.ones(places.shape, bool) if mask is None else np.asarray(mask.data).astype(bool)
    holds = np.broadcast_to(holds, places.shape)
    for d in range(places.ndim):
        width = min(believed.run[d], max(1, believed.divides[d] // size), WIDEST // size)
        if allowed is not None:
            width = min(width, allowed.same[d])
        if width < 2:
            continue
        runs = np.moveaxis(places, d, -1).reshape(-1, width)
        on = np.moveaxis(holds, d, -1).reshape(-1, width)
        used = on.any(axis=1)
        one_mask = (on == on[:, :1]).all(axis=1)
        near = (runs == runs[:, :1] + size * np.arange(width)).all(axis=1)
        starts = runs[:, 0] % (width * size) == 0
        for right, why in ((one_mask, "masks differ"), (near, "are apart"), (starts, "unaligned")):
            if not right[used].all():
                raise WrongWidth(f"{what} of {width} elements along dimension {d}: {why}")


def look(name: str, handle: Any, said: Info) -> None:
    """Look whether a value is the same where it is said to be.

    Raises:
        WrongWidth: it is not.
    """
    data = np.asarray(handle.data)
    for d, extent in enumerate(data.shape if not is_scalar(handle) else ()):
        same = gcd(said.same[d], extent)
        if same == 1 or data.dtype.kind == "f":  # NaN is not the same, and no float is asked for
            continue
        runs = np.moveaxis(data, d, -1).reshape(-1, same)
        if not (runs == runs[:, :1]).all():
            what = name.removeprefix("create_")
            raise WrongWidth(f"{what} is said to be the same for {same} along dimension {d}")


def install(module: Any) -> None:
    """Make the interpreter carry and check what the analysis says."""
    builder = module.InterpreterBuilder

    def wrap(name: str, rule: Callable[..., Info | None]) -> None:
        original = getattr(builder, name)

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            found = rule(result, *args)
            if found is not None:
                look(name, result, found)
                result = module.TensorHandle(result.data, result.dtype)
                result.believed = found
            return result

        setattr(builder, name, call)

    def binary(rule: Callable[[Info, Info, Dims], Info]) -> Callable[..., Info]:
        def say(result: Any, a: Any, b: Any, *_: Any) -> Info:
            one, other, shape = info(a), info(b), extents(result)
            if one.value is not None and other.value is not None and result.dtype.is_int():
                return constant(int(np.ravel(result.data)[0]), shape)
            return rule(one, other, shape)

        return say

    for name, rule in RULES.items():
        wrap(name, binary(rule))
    for name in PASSED_ON:
        wrap(name, lambda result, x, *_: info(x))
    for name in dir(builder):
        if re.fullmatch(r"get_u?int\d+|get_null_value|get_all_ones_value", name):
            wrap(name, lambda r, *_: constant(int(np.ravel(r.data)[0]), extents(r))
                 if r.dtype.is_int() else None)  # fmt: skip
    wrap("create_make_range", lambda r, _kind, start, stop: Info(
        (stop - start,), (power(start),), (1,)))  # fmt: skip
    wrap("create_splat", lambda r, _kind, x: Info(
        (1,) * r.data.ndim, (info(x).divides[0],) * r.data.ndim, extents(r), info(x).value
    ))  # fmt: skip
    wrap("create_expand_dims", lambda r, x, axis: expanded(info(x), axis))
    wrap("create_broadcast", lambda r, x, shape: broadcast(info(x), extents(x), tuple(shape)))
    wrap("create_select", lambda r, c, a, b: chosen(info(c), info(a), info(b), is_scalar(c)))

    def pointed(result: Any, pointer: Any, offset: Any) -> Info:
        size = max(1, pointer.get_element_ty().primitive_bitwidth // 8)
        by = info(offset)
        by = replace(by, divides=tuple(times(d, size) for d in by.divides), value=None)
        return added(info(pointer), by, extents(result))

    wrap("create_addptr", pointed)
    _accesses(builder, wrap)
    _arguments(module)


def _arguments(module: Any) -> None:
    """What the launcher says of arguments: which are multiples of 16, and which are 1."""
    given = module._implicit_cvt

    def converted(arg: Any) -> Any:
        found = given(arg)
        handle = getattr(found, "handle", None)
        if handle is not None and hasattr(handle, "data"):
            number = int(np.ravel(handle.data)[0])
            divides = WIDEST if number % WIDEST == 0 else 1
            whole = number == 1 and not handle.dtype.is_ptr()
            handle.believed = Info((1,), (divides,), (1,), 1 if whole else None)
        return found

    module._implicit_cvt = converted


def _accesses(builder: Any, wrap: Callable[..., None]) -> None:
    """Loads are of nothing known; all accesses are looked at."""

    def loaded(result: Any, pointer: Any, mask: Any, *_: Any) -> Info:
        same = info(pointer).same if mask is None else gcds(info(pointer).same, info(mask).same)
        ones = (1,) * len(same)
        return Info(ones, ones, same)

    wrap("create_masked_load", loaded)
    wrap("create_load", lambda r, pointer, *_: loaded(r, pointer, None))
    for name, place in (("create_load", None), ("create_store", None),
                        ("create_masked_load", 1), ("create_masked_store", 2)):  # fmt: skip
        original = getattr(builder, name)

        def call(
            self: Any, *args: Any, _original: Any = original, _place: int | None = place,
            _name: str = name, **kwargs: Any,
        ) -> Any:  # fmt: skip
            if not getattr(self, "looked_at", False):
                mask = None if _place is None else args[_place]
                check(args[0], mask, "a load" if "load" in _name else "a store")
            self.looked_at = True  # the plain forms call the masked ones
            try:
                return _original(self, *args, **kwargs)
            finally:
                self.looked_at = False

        setattr(builder, name, call)


def main() -> None:
    """Serve as `interpret/server.py` does."""
    spec = importlib.util.spec_from_file_location("server", CHILD)
    if spec is None or spec.loader is None:
        raise ImportError(str(CHILD))
    child: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(child)
    plain = child.install

    def both_installed() -> None:
        plain()
        install(importlib.import_module("triton.runtime.interpreter"))

    child.install = both_installed
    child.main()


if __name__ == "__main__":
    main()
