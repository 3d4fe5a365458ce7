"""Rewritten graphs compute what the definition says, in the reference and lowered."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from computations import argmax, chain, matmul

import tedsl as te
from tedsl.ir.interp import run
from tedsl.lower.pipeline import lower
from tedsl.reference.reference import evaluate
from tedsl.target import Target
from tedsl.tensor.tensor import PlaceholderOp, Tensor

Build = Callable[[], tuple[te.Schedule, list[Tensor]]]


def check(s: te.Schedule, outputs: list[Tensor], sizes: dict[te.Var, int]) -> None:
    """Small integers as inputs, so that sums are exact."""
    rng = np.random.default_rng(0)
    inputs: dict[Tensor, Any] = {}
    for stage in s.stages:
        op = stage.op
        if isinstance(op, PlaceholderOp):
            shape = [sizes[e] if isinstance(e, te.Var) else int(str(e)) for e in op.shape]
            inputs[op.outputs[0]] = rng.integers(-3, 4, shape).astype(op.dtype.value)
    want = evaluate(outputs, inputs, sizes)
    module = lower(s.plan, Target.parse("cpu"), check=True)
    named = {tensor.name: array for tensor, array in inputs.items()}
    result = run(
        module,
        {buffer: named[buffer.name] for buffer in module.inputs},
        {var: next(v for k, v in sizes.items() if k.name == var.name) for var in module.sizes},
    )
    for buffer, array in zip(module.outputs, want, strict=True):
        np.testing.assert_array_equal(result[buffer], array)


def where_and_init(inner: bool) -> tuple[te.Schedule, list[Tensor]]:
    X, P = te.placeholder((3, 23), name="X"), te.placeholder((3,), name="P")
    k, r = te.reduce_axis((3, 23), name="k"), te.reduce_axis((0, 2), name="r")

    def body(i: Any) -> Any:
        return te.sum(X[i, k] + r, axis=[k, r], where=X[i, k] > 0.0, init=P[i])

    S = te.compute((3,), body, name="S")
    s = te.create_schedule(S)
    _ko, ki = s[S].split(k, nparts=6)
    kio, kii = s[S].split(ki, 3)
    s.rfactor(S, kii if inner else kio, 1)
    return s, [S]


def fused() -> tuple[te.Schedule, list[Tensor]]:
    X = te.placeholder((3, 5, 6), name="X")
    k, r = te.reduce_axis((0, 5), name="k"), te.reduce_axis((0, 6), name="r")
    S = te.compute((3,), lambda i: te.max(X[i, k, r], axis=[k, r]), name="S")
    s = te.create_schedule(S)
    outer, _inner = s[S].split(s[S].fuse(k, r), 7)
    s.rfactor(S, outer)
    return s, [S]


def only_axis() -> tuple[te.Schedule, list[Tensor]]:
    X = te.placeholder((3, 23), name="X")
    k = te.reduce_axis((0, 23), name="k")
    S = te.compute((3,), lambda i: te.sum(X[i, k], axis=k, where=X[i, k] != 1.0), name="S")
    s = te.create_schedule(S)
    s.rfactor(S, s[S].fuse(*s[S].split(k, 4)))
    return s, [S]


def symbolic() -> tuple[te.Schedule, list[Tensor]]:
    n = te.size_var("n")
    X = te.placeholder((3, n), name="X")
    k = te.reduce_axis((0, n), name="k")
    S = te.compute((3,), lambda i: te.sum(X[i, k], axis=k), name="S")
    s = te.create_schedule(S)
    ko, _ki = s[S].split(k, 8)
    partial = s.rfactor(S, ko)
    s[partial].vectorize(s[partial].op.reduce_axis[0])
    return s, [S]


def tuples(outer: bool) -> tuple[te.Schedule, list[Tensor]]:
    index, value = argmax(23)
    s = te.create_schedule([index, value])
    ko, ki = s[index].split(s[index].op.reduce_axis[0], 5)
    s.rfactor(value, ko if outer else ki, -1)
    return s, [index, value]


def cached() -> tuple[te.Schedule, list[Tensor]]:
    m = matmul(10, 12, 11)
    s = te.create_schedule(m.D)
    i, j = s[m.C].op.axis
    s[m.C].reorder(j, i)
    local = s.cache_write(m.C, "local")
    copy = s.cache_read(m.B, "local", [local])
    _io, jo, _ii, _ji = s[m.D].tile(*s[m.D].op.axis, 4, 5)
    s[m.C].compute_at(s[m.D], jo)
    s[local].compute_at(s[m.C], s[m.C].op.axis[1])
    ko, ki = s[local].split(s[local].op.reduce_axis[0], 4)
    s[local].reorder(ko, *s[local].op.axis, ki)
    s[copy].compute_at(s[local], ko)
    partial = s.cache_read(m.bias, "local", [m.D])
    s[partial].compute_at(s[m.D], jo)
    return s, [m.D]


def nested() -> tuple[te.Schedule, list[Tensor]]:
    m = matmul(10, 12, 11)
    s = te.create_schedule(m.D)
    io, _ii = s[m.D].split(s[m.D].op.axis[0], 4)
    s[m.C].compute_at(s[m.D], io)
    ko, _ki = s[m.C].split(s[m.C].op.reduce_axis[0], nparts=3)
    partial = s.rfactor(m.C, ko, 1)
    s[partial].compute_at(s[m.C], s[m.C].op.axis[0])
    return s, [m.D]


def inlined() -> tuple[te.Schedule, list[Tensor]]:
    c = chain(7, 9)
    s = te.create_schedule([c.D])
    s[c.B].compute_inline()
    s.cache_read(c.B, "local", [c.C])
    fused_axis = s[c.D].fuse(*s[c.D].op.axis)
    _outer, inner = s[c.D].split(fused_axis, 16)
    s[c.D].vectorize(inner)
    return s, [c.D]


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: where_and_init(False), id="where and init, outer"),
        pytest.param(lambda: where_and_init(True), id="where and init, inner"),
        fused,
        only_axis,
        pytest.param(lambda: tuples(False), id="tuple, inner"),
        pytest.param(lambda: tuples(True), id="tuple, outer"),
        cached,
        nested,
        inlined,
    ],
)
def test_agrees_with_the_definition(build: Build):
    s, outputs = build()
    check(s, outputs, {})


@pytest.mark.parametrize("n", [0, 1, 8, 23])
def test_agrees_for_every_size(n: int):
    s, outputs = symbolic()
    check(s, outputs, {s.size("n"): n})
