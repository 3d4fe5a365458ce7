"""Solutions of tutorial 11: a TVM script carried over, argmin, a schedule that is checked.

python tutorials/solutions/11_from_tvm.py
"""

# %% Setup
from __future__ import annotations

from typing import Any

import numpy as np

# tvm: import tvm; from tvm import te
import tedsl as te

random = np.random.default_rng(0)

# %% 1. A convolution over one dimension, as it was written for TVM
# Every line that had to change has TVM's as a comment; the schedule is TVM's but for one line.
LENGTH, TAPS = 1000, 7
signal = te.placeholder((LENGTH + TAPS - 1,), name="signal")
taps = te.placeholder((TAPS,), name="taps")
t = te.reduce_axis((0, TAPS), name="t")
out = te.compute((LENGTH,), lambda i: te.sum(signal[i + t] * taps[t], axis=t), name="out")
s = te.create_schedule(out.op)
local = s.cache_write(out, "local")
outer, inner = s[out].split(out.op.axis[0], factor=128)
s[local].compute_at(s[out], outer)
(i,) = s[local].op.axis
(k,) = s[local].op.reduce_axis
s[local].reorder(k, i)
s[local].unroll(k)
s[local].vectorize(i)
s[out].vectorize(inner)
# tvm: s[out].parallel(outer)               the same
s[out].parallel(outer)
# tvm: f = tvm.build(s, [signal, taps, out], "llvm"); f(a, b, c); c.numpy()
kernel = te.build(s, [signal, taps, out], "cpu")
a: Any = random.standard_normal(LENGTH + TAPS - 1, dtype=np.float32)
b: Any = random.standard_normal(TAPS, dtype=np.float32)
c = np.zeros(LENGTH, np.float32)
kernel(a, b, c)
np.testing.assert_allclose(c, np.convolve(a, b[::-1], "valid"), rtol=1e-4, atol=1e-5)
print("exercise 1: one import and one build line")


# %% 2. argmin whose reduction may be split
# TVM's tutorial keeps the left operand on ties, which is the first one only in the order of the
# loop.  A reducer that says what it wants of ties combines in any order, and `rfactor` takes it.
def smaller(left: Any, right: Any) -> Any:
    """The lesser value; of equal ones the one at the smaller index."""
    first = (left[1] < right[1]) | ((left[1] == right[1]) & (left[0] < right[0]))
    return te.select(first, left[0], right[0]), te.select(first, left[1], right[1])


argmin = te.comm_reducer(smaller, lambda i, v: (te.max_value(i), te.max_value(v)), name="argmin")
ROWS, COLUMNS = 12, 90
X = te.placeholder((ROWS, COLUMNS), name="X")
k = te.reduce_axis((0, COLUMNS), name="k")
place, least = te.compute((ROWS,), lambda i: argmin((k.var, X[i, k]), axis=k), name="least")
s = te.create_schedule(place.op)
part, _ = s[place].split(k, nparts=3)
parts = s.rfactor(place, part)
s[parts[0]].parallel(s[parts[0]].op.axis[0])
x = random.integers(0, 5, (ROWS, COLUMNS)).astype(np.float32)  # many ties
found = te.build(s, "cpu")(x)
np.testing.assert_array_equal(found[0], x.argmin(1))
np.testing.assert_array_equal(found[1], x.min(1))
print("exercise 2: the first of equal ones, also in three parts")

# %% 3. Which line breaks it?
# `te.checked` runs what each step has made and compares it with the definition; a step that is not
# legal is refused at its own line, and the schedule stays as it was.
Y = te.placeholder((64, 64), name="Y")
r = te.reduce_axis((0, 64), name="r")
total = te.compute((64,), lambda i: te.sum(Y[i, r], axis=r), name="total")
s = te.create_schedule(total.op)
with te.checked() as checks:
    outer, inner = s[total].split(total.op.axis[0], factor=16)
    s[total].parallel(outer)
    try:
        s[total].parallel(r)
    except te.ScheduleError as error:
        print(f"exercise 3, refused: {error}")
    else:
        raise SystemExit("a race was expected to be refused")
    s[total].vectorize(inner)
print(checks)
