"""Chains of dependent reductions as users write them, with float64 references."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tedsl as te
from tedsl.dtypes import DType
from tedsl.expr.numerics import numpy_dtype
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.tensor.tensor import Tensor

LOW = -1e30
WIDE = "float32"


def axis(extent: Any, name: str = "k") -> Any:
    """A reduce axis from 0."""
    return te.reduce_axis((0, extent), name=name)


@dataclass(frozen=True)
class Rows:
    """A chain over the rows of an input: the reduction to fuse at, what is computed of it, and the
    reference for inputs."""

    last: Tensor
    outputs: tuple[Tensor, ...]
    inputs: tuple[Tensor, ...]
    reference: Callable[..., list[np.ndarray]]

    @property
    def k(self) -> Any:
        """The reduce axis of the last reduction."""
        return self.last.op.reduce_axis[0]


def _over(x: Tensor, extent: Any, value: Callable[[Any, Any], Any], fold: Any, name: str) -> Any:
    k = axis(extent)
    return te.compute((x.shape[0],), lambda i: fold(value(i, k), axis=k), name=name)


def softmax(n: Any, length: Any) -> Rows:
    """y = exp(x - m) / l."""
    X = te.placeholder((n, length), name="X")
    m = _over(X, length, lambda i, k: X[i, k], te.max, "m")
    total = _over(X, length, lambda i, k: te.exp(X[i, k] - m[i]), te.sum, "l")
    Y = te.compute((n, length), lambda i, j: te.exp(X[i, j] - m[i]) / total[i], name="Y")
    return Rows(total, (Y,), (X,), lambda x: [_shares(x)])


def _shares(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def log_sum_exp(n: Any, length: Any) -> Rows:
    """m + log(l)."""
    X = te.placeholder((n, length), name="X")
    m = _over(X, length, lambda i, k: X[i, k], te.max, "m")
    total = _over(X, length, lambda i, k: te.exp(X[i, k] - m[i]), te.sum, "l")
    O = te.compute((n,), lambda i: m[i] + te.log(total[i]), name="O")  # noqa: E741
    return Rows(total, (O,), (X,), lambda x: [np.log(_powers(x).sum(1)) + x.max(1)])


def _powers(x: np.ndarray) -> np.ndarray:
    return np.exp(x - x.max(1, keepdims=True))


def normalised_product(n: Any, length: Any, columns: int = 0) -> Rows:
    """RMSNorm followed by a matvec, or a matmul with `columns`."""
    X = te.placeholder((n, length), name="X")
    shape = (length, columns) if columns else (length,)
    W = te.placeholder(shape, name="W")
    squares = _over(X, length, lambda i, k: X[i, k] * X[i, k], te.sum, "q")
    count = te.cast(length, "float32") if not isinstance(length, int) else float(max(1, length))
    H = te.compute(
        (n, length), lambda i, j: X[i, j] * te.rsqrt(squares[i] / count + 1e-5), name="H"
    )
    k = axis(length)

    def product(i: Any, *j: Any) -> Any:
        return te.sum(H[i, k] * W[(k, *j)], axis=k)

    Y = te.compute((n, *shape[1:]), product, name="Y")

    def reference(x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
        return [(x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)) @ w]

    return Rows(Y, (Y,), (X, W), reference)


def scaled_by_largest(n: Any, length: Any) -> Rows:
    """sum(x / (max|x| + eps) * w)."""
    X, W = te.placeholder((n, length), name="X"), te.placeholder((length,), name="W")
    a = _over(X, length, lambda i, k: te.abs(X[i, k]), te.max, "a")
    Y = _over(X, length, lambda i, k: X[i, k] / (a[i] + 1e-6) * W[k], te.sum, "Y")

    def reference(x: np.ndarray, w: np.ndarray) -> list[np.ndarray]:
        return [(x / (np.abs(x).max(1, keepdims=True) + 1e-6)) @ w]

    return Rows(Y, (Y,), (X, W), reference)


def entropy(n: Any, length: Any) -> Rows:
    """log(l) - sum(exp(x - m) * (x - m)) / l: both sums follow the maximum."""
    X = te.placeholder((n, length), name="X")
    m = _over(X, length, lambda i, k: X[i, k], te.max, "m")
    total = _over(X, length, lambda i, k: te.exp(X[i, k] - m[i]), te.sum, "l")
    weighted = _over(
        X,
        length,
        lambda i, k: te.exp(X[i, k] - m[i]) / total[i] * (X[i, k] - m[i]),
        te.sum,
        "E",
    )
    Y = te.compute((n,), lambda i: te.log(total[i]) - weighted[i], name="Y")

    def reference(x: np.ndarray) -> list[np.ndarray]:
        p = _shares(x)
        return [-(p * np.log(p)).sum(1)]

    return Rows(weighted, (Y,), (X,), reference)


def argmax_and_sum(n: Any, length: Any) -> Rows:
    """The place of the maximum, and the log of the sum of exponentials."""
    X = te.placeholder((n, length), name="X")

    def first(a: Any, b: Any) -> Any:
        before = te.any(a[1] > b[1], te.all(a[1] == b[1], a[0] <= b[0]))
        return te.select(before, a[0], b[0]), te.select(a[1] >= b[1], a[1], b[1])

    reducer = te.comm_reducer(
        first, lambda i, v: (te.const(2**31 - 1, i), te.min_value(v)), name="argmax"
    )
    k = axis(length)
    place: Any = te.compute((n,), lambda i: reducer((k.astype("int32"), X[i, k]), axis=k), name="m")
    total = _over(X, length, lambda i, k: te.exp(X[i, k] - place[1][i]), te.sum, "l")
    O: Any = te.compute(  # noqa: E741
        (n,), lambda i: (place[0][i], place[1][i] + te.log(total[i])), name="O"
    )

    def reference(x: np.ndarray) -> list[np.ndarray]:
        return [x.argmax(1), np.log(_powers(x).sum(1)) + x.max(1)]

    return Rows(total, tuple(O), (X,), reference)


def variance(n: Any, length: int, dtype: str = "float32") -> Rows:
    """sum((x - mean)^2) / length, with the mean in `dtype`."""
    X = te.placeholder((n, length), name="X")
    total = _over(X, length, lambda i, k: X[i, k].astype(dtype), te.sum, "S")
    mean = te.compute((n,), lambda i: total[i] / length, name="mean")

    def apart(i: Any, k: Any) -> Any:
        return (X[i, k].astype(dtype) - mean[i]) * (X[i, k].astype(dtype) - mean[i])

    squares = _over(X, length, apart, te.sum, "V")
    Y = te.compute((n,), lambda i: (squares[i] / length).astype("float32"), name="Y")
    return Rows(squares, (Y,), (X,), lambda x: [x.var(1)])


def layer_norm(n: Any, length: int, dtype: str = "float32", shift: bool = False) -> Rows:
    """(x - mean) / sqrt(variance + eps), with mean and variance in `dtype`; with `shift` all of it
    relative to the first element of the row."""
    X = te.placeholder((n, length), name="X")

    def value(i: Any, k: Any) -> Any:
        first = X[i, te.const(0, "int32")]
        return X[i, k] - first if shift else X[i, k].astype(dtype)

    total = _over(X, length, value, te.sum, "S")
    mean = te.compute((n,), lambda i: total[i] / length, name="mean")
    squares = _over(
        X, length, lambda i, k: (value(i, k) - mean[i]) * (value(i, k) - mean[i]), te.sum, "V"
    )
    Y = te.compute(
        (n, length),
        lambda i, j: ((value(i, j) - mean[i]) * te.rsqrt(squares[i] / length + 1e-5)).astype(
            "float32"
        ),
        name="Y",
    )
    return Rows(squares, (Y,), (X,), lambda x: [_normal(x)])


def _normal(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)


def fused(rows: Rows, factor: int = 8, lanes: bool = True, **options: Any) -> Schedule:
    """One kernel: the chain in the loop of its last reduction, inside the output's rows."""
    s = te.create_schedule(list(rows.outputs))
    for stage in s.stages:
        if stage.name in ("mean", "H"):
            s[stage.name].compute_inline()
    out = rows.outputs[0]
    if out.op is not rows.last.op:
        s[rows.last].compute_at(s[out], s[out].op.axis[0])
    outer, inner = s[rows.last].split(rows.k, factor=factor)
    s[rows.last].online(outer, **options)
    if lanes:
        s[rows.last].vectorize(inner)
    return s


@dataclass(frozen=True)
class Attention:
    """Two contractions around a softmax."""

    heads: int = 2
    groups: int = 1
    queries: int = 21
    keys: int = 35
    width: int = 16
    dtype: str = "float32"
    causal: str = ""
    window: int = 0
    cap: float = 0.0
    biased: bool = False
    empty: bool = False
    scale: float = 0.25
    with_sums: bool = False

    def allowed(self, i: Any, j: Any) -> list[Any]:
        """Which keys a query sees."""
        found = [j <= i] if self.causal else []
        found += [j > i - self.window] if self.window else []
        return [*found, i % 3 != 1] if self.empty else found

    def tensors(self) -> dict[str, Any]:
        """The expressions: S, T, m, p, l, P and O."""
        h, n, m, w = self.heads, self.queries, self.keys, self.width
        g = self.groups
        Q = te.placeholder((h, n, w), self.dtype, name="Q")
        K = te.placeholder((h // g, m, w), self.dtype, name="K")
        B = te.placeholder((h, n, m), WIDE, name="B")
        V = te.placeholder((h // g, m, w), self.dtype, name="V")
        d = axis(w, "d")
        S = te.compute(
            (h, n, m),
            lambda h, i, j: te.sum(Q[h, i, d].astype(WIDE) * K[h // g, j, d].astype(WIDE), axis=d),
            name="S",
        )
        T = te.compute((h, n, m), lambda h, i, j: self._score(S, B, h, i, j), name="T")
        j = axis(m, "j")
        top = te.compute(
            (h, n), lambda h, i: te.max(T[h, i, j], axis=j, **self._where(i, j)), name="m"
        )
        p = te.compute((h, n, m), lambda h, i, j: te.exp(T[h, i, j] - top[h, i]), name="p")
        j1 = axis(m, "j")
        total = te.compute(
            (h, n), lambda h, i: te.sum(p[h, i, j1], axis=j1, **self._where(i, j1)), name="l"
        )

        def share(h: Any, i: Any, j: Any) -> Any:
            below = total[h, i]
            if self.empty:
                below = te.select(below > 0.0, below, te.const(1.0, WIDE))
            return p[h, i, j] / below

        P = te.compute((h, n, m), share, name="P")
        j2 = axis(m, "j")

        def term(h: Any, i: Any, d: Any) -> Any:
            if self.dtype == WIDE:
                return P[h, i, j2] * V[h // g, j2, d]
            return P[h, i, j2].astype(self.dtype).astype(WIDE) * V[h // g, j2, d].astype(WIDE)

        O = te.compute(  # noqa: E741
            (h, n, w),
            lambda h, i, d: te.sum(term(h, i, d), axis=j2, **self._where(i, j2)),
            name="O",
        )
        found = {"S": S, "T": T, "m": top, "p": p, "l": total, "P": P, "O": O, "j": j2, "d": d}
        if self.with_sums:
            found["LSE"] = te.compute(
                (h, n), lambda h, i: top[h, i] + te.log(total[h, i]), name="LSE"
            )
        return found

    def _score(self, S: Any, B: Any, h: Any, i: Any, j: Any) -> Any:
        found = S[h, i, j] * self.scale
        if self.biased:
            found = found + B[h, i, j]
        if self.cap:
            found = te.tanh(found / self.cap) * self.cap
        if self.causal == "select":
            found = te.select(te.all(*self.allowed(i, j)), found, te.const(LOW, WIDE))
        return found

    def _where(self, i: Any, j: Any) -> dict[str, Any]:
        if self.causal == "select" or not (limits := self.allowed(i, j)):
            return {}
        return {"where": te.all(*limits) if len(limits) > 1 else limits[0]}

    def schedule(self, rows: int = 16, columns: int = 16, **options: Any) -> Schedule:
        """One kernel, tiles of `rows` x `columns`."""
        return self.scheduled(self.tensors(), rows, columns, **options)

    def scheduled(
        self, g: dict[str, Any], rows: int = 16, columns: int = 16, **options: Any
    ) -> Schedule:
        """The schedule of given tensors, in at most 30 calls."""
        s = te.create_schedule([g["O"], *([g["LSE"]] if "LSE" in g else [])])
        O = g["O"]  # noqa: E741
        h, i, d = O.op.axis
        io, ii = s[O].split(i, rows)
        jo, ji = s[O].split(g["j"], columns)
        s[O].reorder(h, io, jo, ii, d, ji)
        s[O].bind(h, "blockIdx.y")
        s[O].bind(io, "blockIdx.x")
        s[g["P"]].compute_inline()
        s[g["T"]].compute_inline()
        casts = {} if self.dtype == "float32" else {"casts": True}
        s[O].online(jo, **casts, **options)
        s[g["S"]].compute_at(s[O], jo)
        for each in (ii, d, ji):
            s[O].vectorize(each)
        return s

    def for_gpu(self, warps: int = 4, finite: bool = True, **options: Any) -> Schedule:
        """Tiles of 128 x 64, both contractions as matrix products, the loop pipelined."""
        g = self.tensors()
        s = te.create_schedule(g["O"])
        O = g["O"]  # noqa: E741
        h, i, d = O.op.axis
        io, ii = s[O].split(i, 128)
        jo, ji = s[O].split(g["j"], 64)
        s[O].reorder(h, io, jo, ii, d, ji)
        s[O].bind(h, "blockIdx.y")
        s[O].bind(io, "blockIdx.x")
        s[g["P"]].compute_inline()
        s[g["T"]].compute_inline()
        s[O].online(jo, casts=True, **options)
        s[g["S"]].compute_at(s[O], jo)
        s[g["S"]].vectorize(s[g["S"]].op.reduce_axis[0])
        s[O].dot(ji, finite=finite)
        s[O].pipeline(jo, 2)
        s[O].launch(num_warps=warps)
        return s

    def arrays(self, factor: float = 1.0) -> list[np.ndarray]:
        """Inputs in the order of the kernel's arguments."""
        rng = np.random.default_rng(5)
        h, n, m, w = self.heads, self.queries, self.keys, self.width
        small = h // self.groups
        dtype = numpy_dtype(DType(self.dtype))
        q, k, v = (rng.standard_normal(s) for s in ((h, n, w), (small, m, w), (small, m, w)))
        found = [(q * factor).astype(dtype), (k * factor).astype(dtype)]
        if self.biased:
            found.append(rng.standard_normal((h, n, m)).astype(np.float32))
        return [*found, v.astype(dtype)]

    def reference(self, *arrays: np.ndarray) -> np.ndarray:
        """In float64; rows that see nothing are 0."""
        q, k, *bias, v = (a.astype(np.float64) for a in arrays)
        k, v = np.repeat(k, self.groups, 0), np.repeat(v, self.groups, 0)
        t = np.einsum("hid,hjd->hij", q, k) * self.scale
        t = t + bias[0] if bias else t
        t = np.tanh(t / self.cap) * self.cap if self.cap else t
        i, j = np.arange(self.queries)[:, None], np.arange(self.keys)[None, :]
        seen = np.ones(t.shape, bool)
        for each in self.allowed(i, j):
            seen = seen & each
        if self.causal == "select":
            return _shares(np.where(seen, t, LOW)) @ v
        e = np.where(seen, np.exp(t - np.where(seen, t, -1e300).max(-1, keepdims=True)), 0.0)
        total = e.sum(-1, keepdims=True)
        return (e / np.where(total > 0, total, 1.0)) @ v

    def but(self, **changes: Any) -> Attention:
        """The same with other parameters."""
        return replace(self, **changes)
