"""A process whose free memory lies in holes of a few pages, gibibytes apart (Linux).

Run as a program: makes such an address space, as libraries that reserve much of it do, builds
kernels in it and prints `right` when their numbers are.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from pathlib import Path

import numpy as np

import tedsl as te

GIB = 1 << 30
APART = 4
HOLES = 15
PRIVATE, ANONYMOUS, NO_RESERVE, NO_REPLACE = 0x2, 0x20, 0x4000, 0x100000
FLAGS = PRIVATE | ANONYMOUS | NO_RESERVE
HIGH = 0x7000_0000_0000


def build(name: str) -> te.Kernel:
    """A kernel whose code refers to constants and to a C function."""
    x = te.placeholder((37,), "float32", name="x")
    y = te.compute((37,), lambda i: te.acos(x[i] * 0.25) + te.exp(x[i]), name=name)
    return te.build(te.create_schedule(y), "cpu", cache=False)


def scatter() -> None:
    """Reserve the free address space near what is mapped, but for the holes."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    sizes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.mmap.argtypes = [*sizes, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes = [*sizes]
    base = libc.mmap(None, (HOLES + 1) * APART * GIB, 0, FLAGS, -1, 0)
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [[int(end, 16) for end in line.split()[0].split("-")] for line in lines]
    for (start, end), (following, _) in itertools.pairwise(spans):
        if start > HIGH and 0 < following - end < 1 << 40:
            libc.mmap(end, following - end, 0, FLAGS | NO_REPLACE, -1, 0)
    for number in range(HOLES):
        pages = (2, 1, 3)[number % 3]
        libc.munmap(base + (HOLES - number) * APART * GIB, pages * mmap.PAGESIZE)
    libc.munmap(base, GIB)  # for everything else


def main() -> None:
    """Build before, so that all libraries are there, and after."""
    x = np.linspace(0.5, 3, 37, dtype=np.float32)
    want = build("before")(x)
    scatter()
    for number in range(8):
        np.testing.assert_array_equal(build(f"after{number}")(x), want)
    sys.stdout.write("right\n")


if __name__ == "__main__":
    main()
