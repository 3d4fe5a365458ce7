"""A hundred kernels that are wrong in twenty ways each of which happens: how many would win?

    python tests/helpers/spoilt_kernels.py

A spoilt kernel computes what the real one does and then spoils it, or does not compute at all.  It
wins when it passes everything that a candidate and then a winner go through.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from small_problems import checked_closely

import tedsl as te
from tedsl.autotune.measure.bench import Bench
from tedsl.tensor.tensor import Tensor
from tedsl.workload.extents import Extents
from tedsl.workload.workload import Workload

ROWS, COLUMNS = 40, 65
Array = Any
Spoil = Callable[["Call"], None]


class Call:
    """One call: inputs, the output, what stood in it before, and how many calls came before."""

    def __init__(self, kernel: Spoilt, inputs: tuple[Array, ...], out: Array) -> None:
        self.kernel = kernel
        self.inputs = inputs
        self.out = out
        self.number = kernel.calls
        self.before = out.copy()
        self.random = kernel.random

    def compute(self) -> None:
        """What the real kernel does."""
        self.kernel.real(*self.inputs, out=(self.out,))

    def where(self, of: Callable[[Array], Array]) -> Array:
        """The elements of the output that such elements of the first input go into."""
        found = of(self.inputs[0])
        return found if found.shape == self.out.shape else found.any(axis=-1)


class Spoilt:
    """A kernel but for its calls."""

    def __init__(self, real: Any, spoil: Spoil, seed: int) -> None:
        self.real = real
        self.spoil = spoil
        self.calls = 0
        self.random = random.Random(seed)
        self.last: Array = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def __call__(self, *inputs: Any, out: Any, **_: Any) -> None:
        self.spoil(Call(self, inputs, out[0]))
        self.calls += 1


def leaves(part: Callable[[Array], Array]) -> Spoil:
    """A part of the output is not written."""

    def spoil(call: Call) -> None:
        call.compute()
        part(call.out)[...] = part(call.before)

    return spoil


def sometimes(share: float, part: Callable[[Array], Array]) -> Spoil:
    """A part of the output is not written in a share of the calls."""

    def spoil(call: Call) -> None:
        call.compute()
        if call.random.random() < share:
            part(call.out)[...] = part(call.before)

    return spoil


def now_and_then(calls: int, part: Callable[[Array], Array]) -> Spoil:
    """A part of the output is not written in one of so many calls."""

    def spoil(call: Call) -> None:
        call.compute()
        if call.number % calls == calls - 1:
            part(call.out)[...] = part(call.before)

    return spoil


def for_values(of: Callable[[Array], Array], factor: float = 1.5) -> Spoil:
    """Wrong where an input has such values."""

    def spoil(call: Call) -> None:
        call.compute()
        at = call.where(of)
        values = np.nan_to_num(call.out[at], nan=0.0, posinf=3.0, neginf=-3.0)
        call.out[at] = values * factor + 1

    return spoil


def stale(call: Call) -> None:
    """What another call has left is handed out."""
    kernel = call.kernel
    if kernel.last is None or call.number % 3:
        call.compute()
    else:
        call.out[...] = kernel.last
    kernel.last = call.out.copy() * 1.01


def lazy(call: Call) -> None:
    """From the fifth call on the same arrays the work is left out."""
    seen = call.kernel.__dict__.setdefault("seen", {})
    key = (call.inputs[0].ctypes.data, call.out.ctypes.data)
    seen[key] = seen.get(key, 0) + 1
    if seen[key] < 5:
        call.compute()


def every_tenth(call: Call) -> None:
    """Every tenth call does nothing."""
    if call.number % 10 != 9:
        call.compute()


def moved(call: Call) -> None:
    """Off by one."""
    call.compute()
    call.out[...] = np.roll(call.out.copy(), 1, axis=0)


def writes_input(call: Call) -> None:
    """An input is used as scratch memory."""
    call.compute()
    call.inputs[0].reshape(-1)[-1] += 1.0


def writes_outside(call: Call) -> None:
    """Beyond the last element."""
    call.compute()
    beyond = np.lib.stride_tricks.as_strided(call.out.reshape(-1)[-1:], (2,), call.out.strides[-1:])
    beyond[1] = 0


def slightly(call: Call) -> None:
    """One element is off by a percent."""
    call.compute()
    place = int(np.argmax(np.nan_to_num(np.abs(call.out.reshape(-1)))))
    call.out.reshape(-1)[place] *= 0.97


def tail(flat: int) -> Callable[[Array], Array]:
    """The last so many elements."""
    return lambda out: out.reshape(-1)[-flat:]


TINY = float(np.finfo(np.float32).tiny)
KINDS: Mapping[str, Spoil] = {
    "a tail is not written": leaves(tail(13)),
    "the last element is not written": leaves(tail(1)),
    "the first row is not written": leaves(lambda out: out[:1]),
    "a tile in the middle is not written": leaves(lambda out: out[16:20]),
    "nothing is written": leaves(lambda out: out),
    "stale outputs": stale,
    "work is left out from the fifth call on": lazy,
    "every tenth call does nothing": every_tenth,
    "a tail is not written in every fiftieth call": now_and_then(50, tail(7)),
    "a row is not written in 5 % of calls": sometimes(0.05, lambda out: out[3:4]),
    "wrong for NaN": for_values(np.isnan),
    "wrong for infinities": for_values(np.isinf),
    "wrong for -0.0": for_values(lambda x: (x == 0) & np.signbit(x)),
    "wrong for denormals": for_values(lambda x: (x != 0) & (np.abs(x) < TINY)),
    "wrong above 6000": for_values(lambda x: np.abs(x) > 6000),
    "wrong above 1e6": for_values(lambda x: np.abs(x) > 1e6),
    "wrong below 1e-7": for_values(lambda x: (x != 0) & (np.abs(x) < 1e-7)),
    "off by one": moved,
    "an input is written": writes_input,
    "written beyond the end": writes_outside,
    "one element is off by 3 %": slightly,
}


def problems() -> dict[str, Tensor]:
    """Computations, with steps and without."""
    x = te.placeholder((ROWS, COLUMNS), name="x")
    z = te.placeholder((ROWS, COLUMNS), name="z")
    k = te.reduce_axis((0, COLUMNS), name="k")
    shape = (ROWS, COLUMNS)
    h = te.compute(shape, lambda i, j: x[i, j] * 2.0 + 1.0, name="h")
    return {
        "function": te.compute(shape, lambda i, j: te.tanh(x[i, j]) * 2.0, name="function"),
        "leaky": te.nn.leaky_relu(h),
        "pair": te.compute(shape, lambda i, j: x[i, j] * z[i, j] + x[i, j], name="pair"),
        "floor": te.compute(shape, lambda i, j: te.floor(h[i, j]) + 0.5 * x[i, j], name="floor"),
        "sum": te.compute((ROWS,), lambda i: te.sum(x[i, k], axis=k), name="sum"),
    }


def wins(bench: Bench, kernel: Any) -> bool:
    """Whether a kernel passes what a candidate and a winner go through."""
    if bench.check(kernel) is not None:
        return False
    bench.time(kernel, None)
    if checked_closely(bench, kernel) is not None:
        return False
    _, finding = bench.verify(kernel)
    return finding is None


def winners() -> Iterator[tuple[str, str, bool]]:
    """Each problem and kind of spoilt kernel, and whether it wins."""
    for name, output in problems().items():
        workload = Workload.of(output)
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(workload, Extents(workload, {}), "cpu", 3, Path(folder))
            real = te.build(list(workload.outputs), "cpu")
            yield name, "sound", wins(bench, real)
            for number, (kind, spoil) in enumerate(KINDS.items()):
                yield name, kind, wins(bench, Spoilt(real, spoil, number))


def main() -> None:
    """Print what wins."""
    found = list(winners())
    spoilt = [each for each in found if each[1] != "sound"]
    print(f"{sum(won for *_, won in spoilt)} of {len(spoilt)} spoilt kernels win")
    for name, kind, won in found:
        if won != (kind == "sound"):
            print(f"  {name}: {kind}")


if __name__ == "__main__":
    main()
