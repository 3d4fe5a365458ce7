"""The surface of TVM's tensor expressions, name by name: what takes which arguments by position and
by keyword, and what operations, schedules and stages answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tedsl
from tedsl.counterparts import PACKAGE

te: Any = tedsl

Made = SimpleNamespace


def made(**more: Any) -> Any:
    """A, B = A + 1, C = 2 B (with loops io, ii, jo, ji), and a sum D of 16 x 8."""
    A = te.placeholder((16, 8), name="A")
    B = te.compute((16, 8), lambda i, j: A[i, j] + 1.0, name="B")
    C = te.compute((16, 8), lambda i, j: B[i, j] * 2.0, name="C")
    k = te.reduce_axis((0, 8), name="k")
    D = te.compute((16,), lambda i: te.sum(C[i, k], axis=k), name="D")
    s = te.create_schedule(D.op)
    i, j = s[C].op.axis
    thread = te.thread_axis("threadIdx.x")
    return Made(A=A, B=B, C=C, D=D, k=k, s=s, i=i, j=j, thread=thread, **more)


def one(i: Any, j: Any) -> Any:
    return i + j


def plus(x: Any, y: Any) -> Any:
    return x + y


def none(dtype: Any) -> Any:
    return te.const(0, dtype)


FUNCTIONS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("placeholder", ((4, 4), "float32", "A"), dict(shape=(4, 4), dtype="float32", name="A")),
    ("placeholder", ((4,), None), dict(shape=(4,), dtype=None)),
    (
        "compute",
        ((4, 4), one, "C", "tag", {"a": 1}, None),
        dict(shape=(4, 4), fcompute=one, name="C", tag="tag", attrs={"a": 1}, varargs_names=None),
    ),
    ("compute", ((4,), lambda *i: i[0], "C", "", None, ["x"]), {}),
    ("var", ("n", "int32"), dict(name="n", dtype="int32")),
    ("var", (), {}),
    ("size_var", ("n", "int32"), dict(name="n", dtype="int32")),
    ("size_var", (), {}),
    ("const", (1, "int32"), dict(value=1, dtype="int32")),
    ("reduce_axis", ((0, 4), "k", ""), dict(dom=(0, 4), name="k", thread_tag="")),
    ("reduce_axis", ([0, 4],), {}),
    ("thread_axis", ("threadIdx.x",), dict(dom=None, tag="threadIdx.x", name="tx")),
    ("thread_axis", ((0, 4), "vthread", "vx"), dict(dom=(0, 4), tag="vthread", name="vx")),
    ("thread_axis", (4, "blockIdx.x"), dict(tag="blockIdx.x")),
    ("comm_reducer", (plus, none, "r"), dict(fcombine=plus, fidentity=none, name="r")),
    ("tag_scope", ("conv",), dict(tag="conv")),
]


@pytest.mark.parametrize(("name", "args", "named"), FUNCTIONS)
def test_functions(name: str, args: tuple[Any, ...], named: dict[str, Any]) -> None:
    function = getattr(te, name)
    assert function(*args) is not None
    if named:
        assert type(function(**named)) is type(function(*args))


def recurrence() -> Any:
    X = te.placeholder((4, 3), name="X")
    state = te.placeholder((4, 3), name="state")
    init = te.compute((1, 3), lambda t, i: X[0, i], name="init")
    update = te.compute((4, 3), lambda t, i: state[t - 1, i] + X[t, i], name="update")
    return X, state, init, update


@pytest.mark.parametrize("inputs", ["one", "list", "none"])
def test_scan(inputs: str) -> None:
    X, state, init, update = recurrence()
    read = {"one": X, "list": [X], "none": None}[inputs]
    by_place = te.scan(init, update, state, read, "scan", "tag", {"a": 1})
    assert by_place.op.tag == "tag" and by_place.op.attrs == {"a": 1}
    again, state, init, update = recurrence()
    read = {"one": again, "list": [again], "none": None}[inputs]
    result = te.scan(
        init=init, update=update, state_placeholder=state, inputs=read, name="s", tag="", attrs=None
    )
    op = result.op
    assert op.scan_axis is op.axis[0] and op.spatial_axis_[0] is op.axis[1]
    assert [t.op for t in op.state_placeholder] == [state.op] and len(op.inputs) == bool(read)
    assert op.init[0].op.name == "init" and op.update[0].op.name == "update"


def copy(ins: Any, outs: Any) -> None:
    outs[0][...] = ins[0]


def test_extern() -> None:
    A = te.placeholder((4,), name="A")
    by_place = te.extern((4,), [A], copy, "E", "float32", None, None, "tag", {"a": 1})
    result = te.extern(
        shape=(4,),
        inputs=[A],
        fcompute=copy,
        name="E",
        dtype="float32",
        in_buffers=None,
        out_buffers=None,
        tag="tag",
        attrs={"a": 1},
    )
    for each in (by_place, result):
        assert each.op.input_tensors == (A,) and each.op.attrs == {"a": 1}
        assert each.op.tag == "tag"


def test_gradient() -> None:
    A = te.placeholder((4,), name="A")
    B = te.compute((4,), lambda i: A[i] * A[i], name="B")
    head = te.placeholder((4,), name="head")
    assert len(te.gradient(B, [A], head)) == len(te.gradient(output=B, inputs=[A], head=head)) == 1
    assert te.gradient(B, [A])[0].ndim == 2


STAGE: list[tuple[str, Callable[[Any], tuple[Any, ...]], Callable[[Any], dict[str, Any]]]] = [
    ("split", lambda m: (m.i, 4), lambda m: dict(parent=m.i, factor=4, nparts=None)),
    ("split", lambda m: (m.i, None, 4), lambda m: dict(parent=m.i, nparts=4)),
    ("fuse", lambda m: (m.i, m.j), lambda m: {}),
    ("fuse", lambda m: ([m.i, m.j],), lambda m: {}),
    (
        "tile",
        lambda m: (m.i, m.j, 4, 2),
        lambda m: dict(x_parent=m.i, y_parent=m.j, x_factor=4, y_factor=2),
    ),
    ("reorder", lambda m: (m.j, m.i), lambda m: {}),
    ("bind", lambda m: (m.i, m.thread), lambda m: dict(ivar=m.i, thread_ivar=m.thread)),
    ("vectorize", lambda m: (m.j,), lambda m: dict(var=m.j)),
    ("unroll", lambda m: (m.j,), lambda m: dict(var=m.j)),
    ("parallel", lambda m: (m.i,), lambda m: dict(var=m.i)),
    (
        "pragma",
        lambda m: (m.i, "auto_unroll_max_step", 16),
        lambda m: dict(var=m.i, pragma_type="auto_unroll_max_step", pragma_value=16),
    ),
    (
        "compute_at",
        lambda m: (m.s[m.D], m.D.op.axis[0]),
        lambda m: dict(parent=m.s[m.D], scope=m.D.op.axis[0]),
    ),
    ("compute_inline", lambda m: (), lambda m: {}),
    ("compute_root", lambda m: (), lambda m: {}),
    ("set_scope", lambda m: ("local",), lambda m: dict(scope="local")),
    ("prefetch", lambda m: (m.B, m.i, 1), lambda m: dict(tensor=m.B, var=m.i, offset=1)),
    ("storage_align", lambda m: (m.i, 16, 1), lambda m: dict(axis=m.i, factor=16, offset=1)),
    (
        "set_store_predicate",
        lambda m: (m.thread.var.equal(0),),
        lambda m: dict(predicate=m.thread.var.equal(0)),
    ),
    ("env_threads", lambda m: ([m.thread],), lambda m: dict(threads=[m.thread])),
    (
        "transform_layout",
        lambda m: (lambda i, j: [j, i],),
        lambda m: dict(mapping_function=lambda i, j: [j, i]),
    ),
]


@pytest.mark.parametrize(("name", "args", "named"), STAGE)
def test_stages(name: str, args: Callable[[Any], Any], named: Callable[[Any], Any]) -> None:
    """By position and by keyword, with one text of the schedule after both."""
    m = made()
    getattr(m.s[m.C], name)(*args(m))
    again = made()
    given = named(again)
    getattr(again.s[again.C], name)(*(() if given else args(again)), **given)
    assert str(m.s) == str(again.s)


def test_marks_of_attached_stages() -> None:
    m = made()
    m.s[m.B].compute_at(m.s[m.C], m.i)
    m.s[m.B].double_buffer()
    m = made()
    m.s[m.B].compute_at(m.s[m.C], m.j)
    with pytest.raises(te.ScheduleError, match=r"rolling_buffer(.|\n)*call s\[B\].store_at"):
        m.s[m.B].rolling_buffer()


def test_tensorize() -> None:
    def declared() -> Any:
        a = te.placeholder((8,), name="a")
        b = te.compute((8,), lambda i: a[i] * 2.0, name="b")
        return te.decl_tensor_intrin(b.op, None, name="twice", binds=None)

    for given in ("place", "keyword"):
        m = made()
        intrin = declared()
        if given == "place":
            m.s[m.C].tensorize(m.j, intrin)
        else:
            m.s[m.C].tensorize(var=m.j, tensor_intrin=intrin)
        assert "twice" in str(m.s)


SCHEDULE: list[tuple[str, Callable[[Any], tuple[Any, ...]], Callable[[Any], dict[str, Any]]]] = [
    (
        "cache_read",
        lambda m: (m.A, "shared", [m.B]),
        lambda m: dict(tensor=m.A, scope="shared", readers=[m.B]),
    ),
    ("cache_write", lambda m: (m.C, "local"), lambda m: dict(tensor=m.C, scope="local")),
    ("cache_write", lambda m: ([m.C], "local"), lambda m: dict(tensor=[m.C], scope="local")),
    ("rfactor", lambda m: (m.D, m.k, 0), lambda m: dict(tensor=m.D, axis=m.k, factor_axis=0)),
    (
        "create_group",
        lambda m: (m.C, m.A, True),
        lambda m: dict(outputs=m.C, inputs=m.A, include_inputs=True),
    ),
    ("normalize", lambda m: (), lambda m: {}),
    ("copy", lambda m: (), lambda m: {}),
]


@pytest.mark.parametrize(("name", "args", "named"), SCHEDULE)
def test_schedules(name: str, args: Callable[[Any], Any], named: Callable[[Any], Any]) -> None:
    m = made()
    getattr(m.s, name)(*args(m))
    again = made()
    getattr(again.s, name)(**named(again))
    assert str(m.s) == str(again.s)


REDUCERS = ("sum", "max", "min")
ELEMENTS = [
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "sinh",
    "cosh",
    "tanh",
    "asin",
    "acos",
    "atan",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "sigmoid",
    "floor",
    "ceil",
    "trunc",
    "round",
    "nearbyint",
    "abs",
    "isnan",
    "isfinite",
    "isinf",
]
PAIRS = [
    "atan2",
    "power",
    "pow",
    "fmod",
    "div",
    "indexdiv",
    "indexmod",
    "truncdiv",
    "truncmod",
    "floordiv",
    "floormod",
    "add",
    "subtract",
    "multiply",
    "max",
    "min",
]


@pytest.mark.parametrize("name", REDUCERS)
def test_reducers(name: str) -> None:
    A = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), "k")
    reducer = getattr(te, name)
    by_place = te.compute((4,), lambda i: reducer(A[i, k], k, k < 5, 0.5), "B")
    named = te.compute((4,), lambda i: reducer(A[i, k], axis=[k], where=k < 5, init=[0.5]), "B")
    assert str(by_place.op) == str(named.op)


def test_a_reducer_of_ones_own() -> None:
    A = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), "k")
    total = te.comm_reducer(plus, none, name="total")
    B = te.compute((4,), lambda i: total(A[i, k], axis=k, where=k < 5, init=[1.0]), name="B")
    C = te.compute((4,), lambda i: total(B[i], A[i, 0]), name="C")
    a = np.arange(32, dtype="float32").reshape(4, 8)
    np.testing.assert_allclose(te.evaluate(C, {A: a})[0], a[:, :5].sum(1) + 1 + a[:, 0])


@pytest.mark.parametrize("name", ELEMENTS)
def test_functions_of_an_element(name: str) -> None:
    A = te.placeholder((4,), name="A")
    assert te.compute((4,), lambda i: getattr(te, name)(A[i])).ndim == 1
    assert getattr(te, name)(A).op.tag == "elemwise"


@pytest.mark.parametrize("name", PAIRS)
def test_functions_of_two_elements(name: str) -> None:
    dtype = "int32" if name.startswith("index") else "float32"
    A = te.placeholder((4,), dtype, name="A")
    assert te.compute((4,), lambda i: getattr(te, name)(A[i], A[3 - i])).ndim == 1


def test_other_functions_of_elements() -> None:
    A = te.placeholder((4,), "int32", name="A")
    te.compute((4,), lambda i: te.popcount(A[i]))
    te.compute((4,), lambda i: te.if_then_else(te.all(i > 1, i < 3), te.select(i > 0, i, 1), A[i]))
    te.compute((4,), lambda i: te.if_then_else(te.any(i > 1, i < 3), 0, 1))
    te.compute((4,), lambda i: te.reinterpret(dtype="float32", x=te.reinterpret("float32", A[i])))
    for name in ("min_value", "max_value", "infinity"):
        assert getattr(te, name)("float32").dtype == "float32"


def test_tensors_and_operations() -> None:
    m = made()
    A, B, C = m.A, m.B, m.C
    assert A.ndim == 2 and A.dtype == "float32" and A.name == "A" and A.value_index == 0
    assert A.shape[0] == 16 and B.axis == B.op.axis and A == A and A != B and len({A, B, A}) == 2
    i, j = B.op.axis
    assert te.structural_equal(A(i, j), A[i, j]) and te.structural_equal(A[i][j], A[i, j])
    assert B.op.name == "B" and B.op.tag == "" and B.op.attrs == {} and B.op.num_outputs == 1
    assert B.op.output(0) is B and B.op.input_tensors == (A,) and len(B.op.body) == 1
    assert m.D.op.reduce_axis == (m.k,) and A.op.input_tensors == () and A.op.tag == ""
    assert A.op.shape == A.shape and A.op.dtype == "float32"
    assert (A + B).op.tag == "broadcast" and (A + 1.0).op.tag == "elemwise"
    with te.tag_scope("mine"):
        assert (A + B).op.tag == "mine"
    assert m.k.var is m.k and m.k.dom.extent == 8 and m.k.dom.min == 0
    assert m.k.iter_type == "reduce" and m.k.thread_tag == "" and i.iter_type == "data"
    assert C.op.axis[0] + m.k is not None


def test_equality_is_decided_where_it_depends_on_nothing() -> None:
    n, m = te.var("n"), te.var("m")
    assert n == n and te.const(3) == 3 and (n + 1) == (n + 1)
    A = te.placeholder((4,), name="A")
    for undecided in (n == m, n != m, n == 3, n < m, A[0] == A[0]):
        with pytest.raises(te.ExprError, match=r"no truth value(.|\n)*te\.if_then_else"):
            bool(undecided)


def test_stages_are_looked_at() -> None:
    m = made()
    s, C = m.s, m.C
    assert len(s.stages) == 5 - 1 and s.outputs == (m.D,) and s.groups == ()
    assert s.stage_map[C.op].op is C.op and s[C].op is s[C.op].op
    outer, inner = s[C].split(m.i, 4)
    assert list(map(id, s[C].leaf_iter_vars)) == list(map(id, (outer, inner, m.j)))
    assert m.i not in s[C].leaf_iter_vars and m.i in s[C].all_iter_vars
    assert s[C].leaf_iter_vars.index(inner) == 1
    (relation,) = s[C].relations
    assert relation.parent is m.i and relation.outer is outer and relation.inner is inner
    assert s[m.B].attach_type == 1 and s[m.B].attach_stage is None and s[m.B].attach_ivar is None
    s[m.B].compute_inline()
    assert s[m.B].attach_type == 2
    assert s[C].scope == "global" and s[m.D].is_output and not s[C].is_output
    assert s[C].group is None
    s.cache_write(C, "local")
    assert s[C].origin_op is C.op and s[C].op is not C.op
    s[C].unroll(s[C].leaf_iter_vars[0])
    assert s[C].iter_var_attrs[s[C].leaf_iter_vars[0]].kind == "unrolled"


@pytest.mark.parametrize(
    "name",
    [
        "hybrid",
        "SpecializedCondition",
        "create_prim_func",
        "extern_primfunc",
        "call_pure_extern",
        "call_extern",
        "call_intrin",
        "call_packed",
        "load_module",
    ],
)
def test_what_has_no_counterpart_says_what_to_write(name: str) -> None:
    if name in PACKAGE:
        with pytest.raises(AttributeError, match="\n  do "):
            getattr(te, name)
        return
    call = te.hybrid.script if name == "hybrid" else getattr(te, name)
    with pytest.raises(te.ExprError, match="\n  do "):
        call(test_gradient) if name == "hybrid" else call([], None)


def test_errors_are_runtime_errors() -> None:
    with pytest.raises(RuntimeError, match=r"extent 0 is -1"):
        te.placeholder((-1,))
    m = made()
    with pytest.raises(RuntimeError, match=r"not in the order of the loops"):
        m.s[m.C].fuse(m.j, m.i)


def test_what_threads_are_given() -> None:
    with pytest.raises(te.ExprError, match=r"reduce_axis 'k' was given the thread(.|\n)*bind"):
        te.reduce_axis((0, 4), "k", "threadIdx.x")
    m = made()
    with pytest.raises(te.ScheduleError, match=r"tile has no argument z_factor(.|\n)*x_factor"):
        m.s[m.C].tile(m.i, m.j, 4, z_factor=3)


@pytest.mark.ptxas
def test_fmod_is_exact() -> None:
    """As C's: no rounding of the quotient is seen in the remainder."""
    A, B = te.placeholder((512,), name="A"), te.placeholder((512,), name="B")
    C = te.compute((512,), lambda i: te.fmod(A[i], B[i]), name="C")
    rng = np.random.default_rng(0)
    a = rng.uniform(-256, 256, size=512).astype("float32")
    b = rng.uniform(0.1, 256, size=512).astype("float32")
    for target in ("cpu", "triton-interpret"):
        kernel = te.build(te.create_schedule(C.op), target)
        np.testing.assert_array_equal(kernel(a, b), np.fmod(a, b))
    assert "libdevice.fmod" in te.build(te.create_schedule(C.op), "cuda:sm_90").source
    head = te.placeholder((512,), name="head")
    got = te.evaluate(te.gradient(C, [A, B], head), {A: a, B: b, head: np.ones(512, "float32")})
    np.testing.assert_array_equal(got[0], np.ones(512))
    np.testing.assert_array_equal(got[1], -np.trunc(a / b))
