"""Tensors, axes and sizes may be called anything that can be printed: no name becomes code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tedsl as te
from tedsl.errors import ExprError
from tedsl.scheduling.trace.replay import replay
from tedsl.scheduling.trace.trace import Trace

ODD = [
    *("é", "数", "1a", "x²", "ﬁ", "in", "class", "None", "s", "te", "a b", "seq-len", "a/b", ".."),
    *('"', "'", "\\", "\\n", "%", "@", "#", "; ret void", "{0}", "$x", "*/", "//", "_", "__"),
    *("llvm.sqrt", "tedsl_entry", "tedsl.zero", "main", "free", "A", "B.0", "define", "🐍"),
    "n" * 5000,
]
REFUSED = ["", "a\nb", "a\0b", "a\tb", "\u202eb", "a\u00a0b", "\ud800", "\x1b[0m", "a\u2028b"]
WRONG: list[Any] = [None, 5, b"a", ["a"], object()]


def computation(name: str) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """A row sum behind a stage, where everything has this name."""
    n = te.size_var(name)
    x = te.placeholder((n, 6), "float32", name=name)
    k = te.reduce_axis((0, 6), name=name)
    y = te.compute((n, 6), lambda *i: x[i] * 2.0, name=name, varargs_names=(name, f"{name}{name}"))
    z = te.compute((n,), lambda *i: te.sum(y[i[0], k], axis=k), name=name, varargs_names=(name,))
    return x, y, z


def schedule(y: te.Tensor, z: te.Tensor, name: str) -> te.Schedule:
    """Steps that name stages, axes and the size."""
    s = te.create_schedule(z)
    s.assume(s.size(name) >= 1)
    s[y].transform_layout(lambda i, j: (j, i))
    partial: Any = s.rfactor(z, s[z].split(s[z].op.reduce_axis[0], 3)[1])
    outer, inner = s[z].split(s[z].op.axis[0], 4)
    s[partial].compute_at(s[z], outer)
    s[z].vectorize(inner)
    s[z].parallel(outer)
    return s


def short(name: str) -> str:
    return ascii(name)[:12]


@pytest.mark.cpu
@pytest.mark.parametrize("name", ODD, ids=short)
def test_kernels_of_any_names_run_on_the_cpu(name: str) -> None:
    given = np.arange(30, dtype=np.float32).reshape(5, 6)
    want = (2 * given).sum(axis=1)
    x, y, z = computation(name)
    np.testing.assert_array_equal(te.build(z, target="cpu")(given), want)
    np.testing.assert_array_equal(te.build(schedule(y, z, name), target="cpu")(given), want)
    assert te.build(te.create_schedule(y), target="cpu").source
    assert str(z) and str(x) and name[:50] in repr(z)


@pytest.mark.parametrize("name", ODD, ids=short)
def test_traces_of_any_names_replay(name: str) -> None:
    _, y, z = computation(name)
    s = schedule(y, z, name)
    again = replay([z], Trace.from_json(s.trace.to_json()))
    assert str(again) == str(s)
    scope: dict[str, Any] = {"te": te, "out": z}
    exec(s.as_python("out"), scope)
    assert str(scope["s"]) == str(s)
    compile(s.as_python(), "<text>", "exec")


@pytest.mark.parametrize("name", ODD, ids=short)
def test_kernels_of_any_names_are_lowered_for_a_gpu(name: str) -> None:
    for each in (computation(name)[2], te.create_schedule(computation(name)[2])):
        te.lower(each, target="cuda:sm_90", check=True)


@pytest.mark.cpu
@pytest.mark.parametrize("name", ODD, ids=short)
def test_scalars_are_given_by_any_name(name: str) -> None:
    n, x = te.var(name, "float32"), te.placeholder((7,), "float32", name="x")
    kernel = te.build(te.compute((7,), lambda i: x[i] * n, name=name), target="cpu")
    given: dict[str, Any] = {name: 3.0}
    np.testing.assert_array_equal(kernel(np.ones(7, np.float32), **given), np.full(7, 3.0, "f4"))


def makers(name: Any) -> list[Any]:
    """What takes a name."""
    x = te.placeholder((4,), "float32", name="x")
    k = te.reduce_axis((0, 4), name="k")
    state = te.placeholder((4,), "float32", name="state")
    step = te.compute((4,), lambda t: state[t - 1] + x[t], name="step")
    product = te.compute((4,), lambda i: x[i] * 2.0, name="product")
    return [
        lambda: te.placeholder((4,), "float32", name=name),
        lambda: te.compute((4,), lambda i: x[i], name=name),
        lambda: te.compute((4,), lambda *i: x[i], varargs_names=(name,)),
        lambda: te.compute((), lambda: te.sum(x[k], axis=k), name=name),
        lambda: te.extern((4,), [x], lambda ins, outs: ins[0], name=name),
        lambda: te.scan(te.compute((1,), lambda t: x[t]), step, state, name=name),
        lambda: te.reduce_axis((0, 4), name=name),
        lambda: te.var(name),
        lambda: te.size_var(name),
        lambda: te.comm_reducer(lambda a, b: a + b, lambda t: te.const(0, t), name=name),
        lambda: te.decl_tensor_intrin(product, name=name, cpu=None),
        lambda: te.nn.relu(x, name=name),
    ]


@pytest.mark.parametrize("name", REFUSED, ids=short)
def test_what_cannot_be_printed_is_no_name(name: str) -> None:
    words = "is empty" if not name else r"U\+[0-9A-F]{4}, which cannot be printed"
    for make in makers(name):
        with pytest.raises(ExprError, match=words):
            make()


@pytest.mark.parametrize("name", WRONG, ids=lambda name: type(name).__name__)
def test_a_name_is_text(name: Any) -> None:
    for make in makers(name)[:9]:
        with pytest.raises(ExprError, match=r"the name of a .* is .*|varargs_names"):
            make()


@pytest.mark.cpu
def test_names_that_are_of_the_program_itself_are_no_symbols_twice() -> None:
    """Kernels called like the entry, its parts, and what LLVM and the C library have."""
    x = te.placeholder((8,), "float32", name="x")
    for names in (("tedsl_entry", "tedsl_entry"), ("llvm.sqrt.f32", "free"), ("1", "1.0")):
        y = te.compute((8,), lambda i: te.sqrt(x[i]), name=names[0])
        e: Any = te.extern((8,), [y], lambda ins, outs: ins[0].copy(), name="between")
        s = te.create_schedule(_plus(e, names[1]))
        got = te.build(s, target="cpu")(np.full(8, 4.0, np.float32))
        np.testing.assert_array_equal(got, np.full(8, 3.0, np.float32))


def _plus(e: Any, name: str) -> te.Tensor:
    return te.compute((8,), lambda i: e[i] + 1.0, name=name)
