"""Tutorial 11: coming from TVM's tensor expressions, line by line.

    python tutorials/11_from_tvm.py                   # CPU, a few seconds
    python tutorials/11_from_tvm.py --target cuda     # an NVIDIA GPU and PyTorch

TVM removed its tensor-expression schedules in v0.20.  A script written for them needs another
import and other build and run lines; the lines between stay.  Each cell has TVM's line as a comment
(`# tvm:`) where ours differs, and only there.  What cannot be said in TVM's way is refused with
what to write instead: the last cells print such messages.  Every result is compared with NumPy.

The same lines serve a GPU: `blockIdx` is a program, `threadIdx`, `vthread` and `vectorize` are axes
of the tile that it holds, and how threads share that tile is for the compiler to say.  Schedules
written for threads, with stages in `local` and `shared` memory, run as they are: what each thread
computes by itself is a tile of the program.
"""

# %% Imports.  One package: `te` holds what TVM spread over `tvm`, `te`, `topi` and `tir`.
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from lesson import Lesson, check, title, to_torch

# tvm: import tvm; from tvm import te
import tedsl as te
from tedsl import tvm

lesson = Lesson.begin(__doc__)
# tvm: tgt = "llvm", or "cuda"
target = lesson.target  # "cpu", or "cuda"
THREADS = 128 if lesson.gpu else 64


def array(*shape: int) -> Any:
    """Random float32, on the host."""
    return lesson.normal(*shape)


def here(array: Any) -> Any:
    """The array where kernels want it.  They take NumPy arrays, PyTorch tensors, or anything with
    DLPack."""
    # tvm: tvm.nd.array(array, tvm.cpu(0)), tvm.nd.array(array, tvm.cuda(0))
    return to_torch(array, "cuda") if target == "cuda" else array


def agrees(what: str, kernel: te.Kernel, want: Any, *inputs: Any) -> None:
    """Run a kernel and compare with NumPy; where there is no GPU to run it, say what it asks."""
    if lesson.runs:
        check(what, kernel(*map(here, inputs)), want, 1e-4)
        print(f"{what}: agrees with NumPy")
        return
    asked = ", ".join(f"{name} {info.registers}" for name, info in kernel.resources.items())
    print(f"{what}: compiled for {target}; registers of a thread: {asked}")


def refused(call: Callable[[], object]) -> None:
    """Print why a call is refused."""
    try:
        call()
    except (te.TedslError, AttributeError) as error:
        print(f"{error}\n")
    else:
        raise SystemExit("the call above was expected to be refused")


# %% Vector addition.  Nothing changes before the build.
title("vector addition")
n = te.var("n")
A = te.placeholder((n,), name="A")
B = te.placeholder((n,), name="B")
C = te.compute(A.shape, lambda i: A[i] + B[i], name="C")
s = te.create_schedule(C.op)
bx, tx = s[C].split(C.op.axis[0], factor=THREADS)
# On the CPU the grid is a parallel loop and the threads of a block are SIMD lanes.  On a GPU the
# grid is the grid; the block of THREADS elements is a tile, and how many threads hold it is a
# launch option, 4 warps unless `s[C].launch(num_warps=...)` says otherwise.
s[C].bind(bx, te.thread_axis("blockIdx.x"))
s[C].bind(tx, te.thread_axis("threadIdx.x"))
# tvm: print(tvm.lower(s, [A, B, C], simple_mode=True))
print(te.lower(s, [A, B, C], target, simple_mode=True))
# tvm: fadd = tvm.build(s, [A, B, C], tgt, name="add")
fadd = te.build(s, [A, B, C], target, name="add")
a, b = array(1000), array(1000)
if lesson.runs:
    # tvm: c = tvm.nd.array(np.zeros(1000, "float32"), dev); fadd(a, b, c); c.numpy()
    c = here(np.zeros(1000, "float32"))
    fadd(here(a), here(b), c)
    check("a list of arguments", c, a + b, 1e-6)
    print("a list of arguments, results included: agrees with NumPy")
# Without the list a kernel takes the inputs and returns the results.
add = te.build(s, target=target)
agrees("inputs in, results out", add, a + b, a, b)
# tvm: print(fadd.get_source()); fadd.imported_modules[0].get_source()
print(f"{len(add.source.splitlines())} lines of generated code in kernel.source")
# tvm: fadd.time_evaluator(fadd.entry_name, dev, number=10)(a, b, c).mean
if lesson.measured:
    inputs = here(a), here(b)
    clock = te.runtime.measure_cuda if lesson.gpu else te.runtime.measure
    print(f"te.runtime.{clock.__name__}: {clock(lambda: add(*inputs)).median * 1e6:.1f} us")

# %% Math functions and casts
title("math functions")
# tvm: te.compute((n,), lambda i: te.exp(A[i]), name="E")            the same
# tvm: tvm.tir.if_then_else(A[i] > 0, A[i], 0.0)                     te.if_then_else
# tvm: tvm.tir.Cast("float64", A[i]), tvm.tir.const(1, "int32")      A[i].astype, te.const
E = te.compute((n,), lambda i: te.if_then_else(A[i] > 0, te.exp(-A[i]), 1.0), name="E")
F = te.compute((n,), lambda i: te.tanh(E[i]).astype("float64") * te.const(0.5, "float64"), name="F")
s = te.create_schedule(F.op)
s[E].compute_inline()
agrees("inlined", te.build(s, target=target), np.tanh(np.where(a > 0, np.exp(-a), 1)) / 2, a)

# %% Reductions: serial, factored, across threads
title("reductions")
m = te.var("m")
X = te.placeholder((n, m), name="X")
k = te.reduce_axis((0, m), "k")
R = te.compute((n,), lambda i: te.sum(X[i, k], axis=k), name="R")
x = array(50, 70)
s = te.create_schedule(R.op)
ko, ki = s[R].split(R.op.reduce_axis[0], factor=16)
xo, xi = s[R].split(R.op.axis[0], factor=32)
s[R].bind(xo, te.thread_axis("blockIdx.x"))
s[R].bind(xi, te.thread_axis("threadIdx.x"))
agrees("row sums", te.build(s, target=target), x.sum(1), x)

# Across threads: the reduction is factored, what is left is bound to threads, the factored part is
# computed inside, and one thread stores.  As in TVM.
s = te.create_schedule(R.op)
ko, ki = s[R].split(R.op.reduce_axis[0], factor=16)
across = s.rfactor(R, ki)
xo, xi = s[R].split(s[R].op.axis[0], factor=32)
s[R].bind(xo, te.thread_axis("blockIdx.x"))
s[R].bind(xi, te.thread_axis("threadIdx.y"))
tx = te.thread_axis("threadIdx.x")
s[R].bind(s[R].op.reduce_axis[0], tx)
s[across].compute_at(s[R], s[R].op.reduce_axis[0])
s[R].set_store_predicate(tx.var.equal(0))
agrees("row sums across threads", te.build(s, target=target), x.sum(1), x)

# Shorter, and not in TVM: a block axis may be a reduction, and its lanes are combined by the
# compiler.
s = te.create_schedule(R.op)
ko, ki = s[R].split(R.op.reduce_axis[0], factor=16)
xo, xi = s[R].split(s[R].op.axis[0], factor=32)
s[R].bind(xo, te.thread_axis("blockIdx.x"))
s[R].bind(xi, te.thread_axis("threadIdx.y"))
s[R].bind(ki, te.thread_axis("threadIdx.x"))
agrees("row sums, lanes of a reduction", te.build(s, target=target), x.sum(1), x)

# Factored into partial sums that several programs make: as in TVM.
s = te.create_schedule(R.op)
ko, ki = s[R].split(R.op.reduce_axis[0], factor=16)
RF = s.rfactor(R, ko)
s[RF].parallel(s[RF].op.axis[0])
agrees("row sums of partial sums", te.build(s, target=target), x.sum(1), x)

# %% Reducers of tuples: argmax
title("argmax")


def combine(lhs: Any, rhs: Any) -> Any:
    """The greater value; of equal ones the one at the smaller index, in whatever order."""
    # tvm: lhs[1] >= rhs[1] keeps the earlier one, which is right only in the order of the loop
    first = (lhs[1] > rhs[1]) | ((lhs[1] == rhs[1]) & (lhs[0] < rhs[0]))
    return te.select(first, lhs[0], rhs[0]), te.select(first, lhs[1], rhs[1])


# tvm: identity = lambda t0, t1: (tvm.tir.const(-1, t0), tvm.te.min_value(t1))
argmax = te.comm_reducer(
    combine, lambda t0, t1: (te.max_value(t0), te.min_value(t1)), name="argmax"
)
k = te.reduce_axis((0, m), "k")
T0, T1 = te.compute((n,), lambda i: argmax((k.var, X[i, k]), axis=k), name="T")
s = te.create_schedule(T0.op)
ko, ki = s[T0].split(T0.op.reduce_axis[0], factor=8)
# The reducer is proved to combine in any order, so its loop may be vectorized.
s[T0].vectorize(ki)
agrees("argmax", te.build(s, target=target), (x.argmax(1), x.max(1)), x)

# %% Matrix product: blocks, vectors, packing, a write cache
title("matrix product")
M = N = K = lesson.size(cpu=512, cuda=2048, quick=128)
P = te.placeholder((M, K), name="P")
Q = te.placeholder((K, N), name="Q")
k = te.reduce_axis((0, K), "k")
G = te.compute((M, N), lambda x, y: te.sum(P[x, k] * Q[k, y], axis=k), name="G")
p, q = array(M, K), array(K, N)
kernels: dict[str, te.Kernel] = {}
s = te.create_schedule(G)
mo, no, mi, ni = s[G].tile(G.op.axis[0], G.op.axis[1], 32, 32)
(kaxis,) = s[G].op.reduce_axis
ko, ki = s[G].split(kaxis, factor=4)
s[G].reorder(mo, no, ko, ki, mi, ni)
s[G].vectorize(ni)
if lesson.gpu:
    # TVM binds mi and ni to threads, which a CPU has not; here both are axes of a tile.
    s[G].vectorize(mi)
s[G].parallel(s[G].fuse(mo, no) if lesson.gpu else mo)
kernels["blocked"] = te.build(s, target=target)
agrees("blocked", kernels["blocked"], p @ q, p, q)

# Array packing: TVM writes the packed operand as a stage of its own.  So it may stand here; or the
# layout of a cached copy is changed, and the definition stays a matrix product.
s = te.create_schedule(G)
# tvm: packedQ = te.compute((N // 32, K, 32), lambda bigN, k, littleN: Q[k, bigN * 32 + littleN])
packed = s.cache_read(Q, "global", [G])
s[packed].transform_layout(lambda k, j: [j // 32, k, j % 32])
# tvm: bigN, _, littleN = s[packedQ].op.axis; s[packedQ].vectorize(littleN)
*panels, littleN = s[packed].leaf_iter_vars
s[packed].vectorize(littleN)
s[packed].parallel(s[packed].fuse(*panels))
GG = s.cache_write(G, "global")
mo, no, mi, ni = s[G].tile(G.op.axis[0], G.op.axis[1], 32, 32)
s[GG].compute_at(s[G], no)
mc, nc = s[GG].op.axis
(kaxis,) = s[GG].op.reduce_axis
ko, ki = s[GG].split(kaxis, factor=4)
s[GG].reorder(ko, *((ki, mc) if lesson.gpu else (mc, ki)), nc)
s[GG].vectorize(nc)
s[GG].unroll(ki)
if lesson.gpu:
    for axis in (mi, ni, mc):
        (s[GG] if axis is mc else s[G]).vectorize(axis)
    s[G].bind(mo, te.thread_axis("blockIdx.y"))
    s[G].bind(no, te.thread_axis("blockIdx.x"))
else:
    s[G].parallel(mo)
kernels["packed"] = te.build(s, target=target)
agrees("packed, with a write cache", kernels["packed"], p @ q, p, q)

# Thread blocks as TVM has them: each thread computes elements of its own in registers, and all load
# the tiles of the operands to shared memory together.  Here they are one program, which holds the
# tile of all threads: `local` is computed outside them, the loops inside them are dimensions of the
# tile, and what the threads load is a tile as well.  A multiply-accumulate over three dimensions of
# tiles is a product for the matrix units, of steps of at least 16.
s = te.create_schedule(G)
local = s.cache_write(G, "local")
PS, QS = s.cache_read(P, "shared", [local]), s.cache_read(Q, "shared", [local])
mo, no, mi, ni = s[G].tile(*s[G].op.axis, 64, 64)
thread_y, thread_x = te.thread_axis((0, 8), "threadIdx.y"), te.thread_axis((0, 8), "threadIdx.x")
ty, mi = s[G].split(mi, nparts=8)
tx, ni = s[G].split(ni, nparts=8)
s[G].reorder(mo, no, ty, tx, mi, ni)
s[G].bind(mo, te.thread_axis("blockIdx.y"))
s[G].bind(no, te.thread_axis("blockIdx.x"))
s[G].bind(ty, thread_y)
s[G].bind(tx, thread_x)
s[local].compute_at(s[G], tx)
ko, ki = s[local].split(s[local].op.reduce_axis[0], factor=16)
s[local].reorder(ko, ki, *s[local].op.axis)
for shared in (PS, QS):
    s[shared].compute_at(s[local], ko)
    ty, _ = s[shared].split(s[shared].op.axis[0], nparts=8)
    tx, _ = s[shared].split(s[shared].op.axis[1], nparts=8)
    s[shared].bind(ty, thread_y)
    s[shared].bind(tx, thread_x)
agrees("thread blocks, written for threads", te.build(s, target=target), p @ q, p, q)

# The same program as one says it here: an axis of the tile for each dimension, and `pipeline` in
# the place of the copies.
s = te.create_schedule(G)
GL = s.cache_write(G, "local")
mo, no, mi, ni = s[G].tile(*s[G].op.axis, 64, 64)
s[G].bind(mo, te.thread_axis("blockIdx.y"))
s[G].bind(no, te.thread_axis("blockIdx.x"))
s[G].bind(mi, te.thread_axis("threadIdx.y"))
s[G].bind(ni, te.thread_axis("threadIdx.x"))
s[GL].compute_at(s[G], no)
ko, ki = s[GL].split(s[GL].op.reduce_axis[0], factor=32)
if lesson.gpu:
    s[GL].vectorize(ki)
s[GL].pipeline(ko, num_stages=3)
print(te.lower(s, [P, Q, G], "cuda"))
block = te.build(s, target=target)
agrees("thread blocks, on either machine", block, p @ q, p, q)
if lesson.gpu:  # a CPU computes the tile element by element: what its lanes are was not said
    kernels["thread blocks"] = block

# %% What these lines are worth, and what you get for none
# The schedule is the part of a TVM script that took the longest to write.  `te.build(G)` without
# one asks the rules, `te.autotune(G)` searches; both give schedules, which print as such lines.
# TVM has its own search (`auto_scheduler`); its records do not carry over, your templates do: a
# function of the schedule with `s.knob(name, choices)` where `cfg.define_knob` stood.
kernels["default rules"] = te.build(G, target)
# tvm: task = auto_scheduler.SearchTask(func=..., target=tgt); task.tune(...); task.apply_best(...)
kernels |= lesson.search(G)
compared = lesson.compare(
    f"matrix product, {M} x {N} x {K} float32",
    kernels,
    [p, q],
    lambda p, q: p @ q,
    lambda p, q: p @ q,
    base="blocked",
    tolerance=1e-3,
)
compared.print("Gflop/s")
compared.draw("11_matrix_product")
title("the rules' schedule of the product")
print(kernels["default rules"].schedule.as_python())

# %% Convolution: padding, shared copies of both operands
title("convolution")
size, channels, filters, window = 14, 8, 16, 3
Z = te.placeholder((size, size, channels), name="Z")
W = te.placeholder((window, window, channels, filters), name="W")
pad = te.compute(
    (size + 2, size + 2, channels),
    # tvm: tvm.tir.all(y >= 1, ...)        the same, as te.all
    lambda y, x, c: te.if_then_else(
        te.all(y >= 1, y - 1 < size, x >= 1, x - 1 < size), Z[y - 1, x - 1, c], 0.0
    ),
    name="pad",
)
rc = te.reduce_axis((0, channels), name="rc")
ry = te.reduce_axis((0, window), name="ry")
rx = te.reduce_axis((0, window), name="rx")
conv = te.compute(
    (size, size, filters),
    lambda y, x, f: te.sum(pad[y + ry, x + rx, rc] * W[ry, rx, rc, f], axis=[ry, rx, rc]),
    name="conv",
)
z, w = array(size, size, channels), array(window, window, channels, filters)
s = te.create_schedule(conv.op)
s[pad].compute_inline()
WW = s.cache_read(W, "shared", [conv])
L = s.cache_write(conv, "local")
y, xx, f = s[conv].op.axis
s[conv].bind(y, te.thread_axis("blockIdx.y"))
fo, fi = s[conv].split(f, factor=8)
s[conv].reorder(y, fo, xx, fi)
s[conv].bind(fo, te.thread_axis("blockIdx.x"))
s[conv].bind(fi, te.thread_axis("threadIdx.x"))
s[L].compute_at(s[conv], fo)
rc, ry, rx = s[L].op.reduce_axis
_, lx, lf = s[L].op.axis
s[L].reorder(ry, rx, rc, lx, lf)
# A shared copy is made at a loop of the grid or of a reduction; threads need not be named for it.
s[WW].compute_at(s[L], rx)
if lesson.gpu:
    # What a program holds is read as it is, so the loops over it are axes of its tile.
    s[conv].vectorize(xx)
    for axis in (rc, lx, lf):
        s[L].vectorize(axis)
want = np.zeros((size, size, filters), "float32")
padded = np.pad(z, ((1, 1), (1, 1), (0, 0)))
for dy in range(window):
    for dx in range(window):
        want += padded[dy : dy + size, dx : dx + size] @ w[dy, dx]
agrees("convolution", te.build(s, target=target), want, z, w)

# %% Softmax: five stages as they are written, or one pass
title("softmax")
k = te.reduce_axis((0, m), "k")
top = te.compute((n,), lambda i: te.max(X[i, k], axis=k), name="top")
k = te.reduce_axis((0, m), "k")
total = te.compute((n,), lambda i: te.sum(te.exp(X[i, k] - top[i]), axis=k), name="total")
soft = te.compute((n, m), lambda i, j: te.exp(X[i, j] - top[i]) / total[i], name="soft")
s = te.create_schedule(soft)
# What TVM cannot: the sum goes along with the maximum that it depends on, repaired where the
# maximum grows; the repair is derived from the expression and proved.
ko, ki = s[total].split(s[total].op.reduce_axis[0], factor=16)
s[total].vectorize(ki)
s[total].online(ko)
row = s[soft].op.axis[0]
s[soft].bind(row, te.thread_axis("blockIdx.x"))
s[total].compute_at(s[soft], row)
ex = np.exp(x - x.max(1, keepdims=True))
agrees("softmax", te.build(s, target=target), ex / ex.sum(1, keepdims=True), x)

# %% Scans: a recurrence, as in TVM
title("scan")
state = te.placeholder((n, m), name="state")
first = te.compute((1, m), lambda _, i: X[0, i], name="first")
update = te.compute((n, m), lambda t, i: state[t - 1, i] + X[t, i], name="update")
sums = te.scan(first, update, state, inputs=[X], name="sums")
assert isinstance(sums, te.Tensor)
s = te.create_schedule(sums.op)
agrees("running sums", te.build(s, target=target), x.cumsum(0), x)

# %% What the language cannot say: a function from outside
title("extern")
# tvm: te.extern((n, m), [X], lambda ins, outs: tvm.tir.call_packed("my.sort", ins[0], outs[0]))
# The one function gets NumPy arrays; the other one, PyTorch tensors on the GPU and on its stream.
rows: Any = te.extern(
    (n, m),
    [X],
    lambda ins, outs: outs[0].__setitem__(..., np.sort(ins[0], axis=1)),
    gpu=lambda ins, outs: outs[0].copy_(ins[0].sort(dim=1).values),
    name="rows",
)
falling = te.compute((n, m), lambda i, j: rows[i, m - 1 - j], name="falling")
s = te.create_schedule(falling.op)
s[falling].parallel(falling.op.axis[0])
agrees("a Python function, then a loop", te.build(s, target=target), np.sort(x, 1)[:, ::-1], x)

# %% What is refused, and what to write instead
title("what is refused")
s = te.create_schedule(R.op)
refused(lambda: s[R].parallel(R.op.reduce_axis[0]))  # TVM: a race, or a late failure
refused(lambda: s[R].split(R.op.axis[0]))
earlier = te.comm_reducer(
    lambda a, b: (te.select(a[1] >= b[1], a[0], b[0]), te.maximum(a[1], b[1])),
    lambda t0, t1: (te.const(-1, t0), te.min_value(t1)),
    name="earlier",
)
k = te.reduce_axis((0, m), "k")
U0, _ = te.compute((n,), lambda i: earlier((k.var, X[i, k]), axis=k), name="U")
s = te.create_schedule(U0.op)
refused(lambda: s.rfactor(U0, s[U0].op.reduce_axis[0]))  # TVM: another answer on ties
refused(lambda: te.build(s, [X], target))
refused(lambda: te.Target.parse("metal"))
print("targets as TVM writes them:", te.Target.parse("llvm -mcpu=native"))

# %% Names that are gone, each with what stands for it
title("names that are gone")
names: Any = te
refused(lambda: names.create_prim_func([X, R]))
refused(lambda: names.hybrid.script(refused))

# %% TVM's module itself: `from tedsl import tvm` in a script that says `tvm.` everywhere
title("tvm")
held = tvm.nd.array(np.arange(4, dtype="float32"))
print(held.numpy(), held.shape)

# %% A check of every line while a script is carried over
title("te.checked")
s = te.create_schedule(G)
with te.checked() as checks:
    mo, no, mi, ni = s[G].tile(G.op.axis[0], G.op.axis[1], 32, 32)
    s[G].vectorize(ni)
print(checks)

# %% Exercises (solutions/11_from_tvm.py)
# 1. Carry a script of your own over; or a convolution over one dimension with a write cache, as TVM
#    has it.  Which lines had to change?
# 2. Write argmin as a reducer that may be split over several programs with `rfactor`.
# 3. Schedule a reduction inside `te.checked()` and make a mistake.  What is printed, and what does
#    the schedule look like after it?
lesson.done()
