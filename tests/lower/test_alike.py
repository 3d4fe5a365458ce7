"""Kernels that are one but for names: lowered once, written once, compiled once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.backends.triton.emit.module import emit
from tedsl.ir.alike import form_of
from tedsl.ir.nodes import Level
from tedsl.ir.verify import verify
from tedsl.lower import pipeline
from tedsl.schedules import default_schedule

TARGETS = ("cpu", "cuda:sm_90", "triton-interpret")


def layers(n: int, size: int = 32) -> Any:
    """Products with a bias and a choice behind each; the last is an output."""
    y = te.placeholder((size, size), "float32", name="x")
    for k in range(n):
        w = te.placeholder((size, size), "float32", name=f"w{k}")
        b = te.placeholder((size,), "float32", name=f"b{k}")
        y = te.nn.relu(te.nn.linear(y, w, b, name=f"l{k}"), name=f"r{k}")
    return y


def forms(target: str, n: int) -> list[Any]:
    """The forms of the kernels of so many layers."""
    return [form_of(func) for func in te.lower(layers(n), target).funcs]


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_lowered_once_is_what_each_would_be(target: str) -> None:
    s = default_schedule(layers(5), target)
    once, each = te.lower(s, target), te.lower(s, target, check=True)
    verify(once, Level.TILE)
    assert str(once) == str(each)
    known = {*once.inputs, *once.outputs, *once.workspaces, *once.counters}
    assert all(known.issuperset(func.params) for func in once.funcs)


@pytest.mark.parametrize("target", TARGETS)
def test_passes_run_for_each_form_and_not_for_each_layer(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed, count = pipeline._passed, 0

    def counted(step: Any, func: Any) -> Any:
        nonlocal count
        count += 1
        return passed(step, func)

    monkeypatch.setattr(pipeline, "_passed", counted)
    counts: list[int] = []
    for n in (6, 24):
        s = default_schedule(layers(n), target)
        count = 0
        te.lower(s.copy(), target)
        default_schedule(layers(n), target)
        counts.append(count)
    assert counts[0] == counts[1] > 0


@pytest.mark.parametrize("target", TARGETS)
def test_equal_layers_have_few_forms(target: str) -> None:
    assert len({form.key for form in forms(target, 12)}) <= 2


def test_what_differs_in_more_than_names_has_another_form() -> None:
    x, y = te.placeholder((8,), name="x"), te.placeholder((8,), name="y")
    z = te.placeholder((9,), name="z")
    makes = (
        lambda: te.compute((8,), lambda i: x[i] + 1.0, name="a"),
        lambda: te.compute((8,), lambda k: y[k] + 1.0, name="b"),
        lambda: te.compute((8,), lambda i: x[i] + 2.0, name="a"),
        lambda: te.compute((8,), lambda i: z[i] + 1.0, name="a"),
        lambda: te.compute((8,), lambda i: x[i] + x[7 - i], name="a"),
        lambda: te.compute((8,), lambda i: x[i] + y[7 - i], name="a"),
    )
    keys = [
        form_of(te.lower(te.create_schedule(make()), "cpu", check=True).funcs[0]).key
        for make in makes
    ]
    assert keys[0] == keys[1]
    assert len(set(keys)) == len(keys) - 1


def test_a_triton_program_has_each_form_once() -> None:
    program = emit(te.lower(layers(12), "cuda:sm_90"), "cuda:sm_90")
    assert program.source.count("@triton.jit") <= 2
    assert len({spec.name for spec in program.kernels}) <= 2
    assert len({spec.title for spec in program.kernels}) == 12
    for spec, func in zip(program.kernels, program.module.funcs, strict=True):
        assert spec.func == func.name
        assert {p.buffer for p in spec.params if p.buffer} == set(func.params)


@pytest.mark.cpu
def test_llvm_code_has_each_form_once() -> None:
    few, many = (te.build(layers(n), "cpu", cache=False).source for n in (4, 12))
    assert few.count("define internal") == many.count("define internal")


@pytest.mark.cpu
@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_kernels_that_share_code_give_what_each_would(target: str) -> None:
    kernel = te.build(layers(4), target, cache=False)
    rng = np.random.default_rng(0)
    names = [buffer.name for buffer in kernel.module.inputs]
    given = {name: (rng.standard_normal((32, 32)) * 0.2).astype("float32") for name in names}
    given |= {name: value[0] for name, value in given.items() if name.startswith("b")}
    want = given["x"]
    for k in range(4):
        want = np.maximum(want @ given[f"w{k}"].T + given[f"b{k}"], 0)
    got = kernel(*(given[name] for name in names))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.ptxas
def test_figures_of_each_kernel_are_told_though_code_is_shared() -> None:
    kernel = te.build(layers(4), "cuda:sm_90", cache=False)
    assert len(kernel.resources) == 4
    assert len({info.code for info in kernel.resources.values()}) <= 2
    assert te.explain(kernel)
