"""TVM's modules by their paths, in expressions and imports, the classes of `tir` that `isinstance`
is asked about, and what scripts look at: groups, marks of loops, outputs taken for operations."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

from tedsl import tvm as module
from tedsl.scheduling.handles import tvm_schedule

tvm: Any = module
te: Any = tvm.te
topi: Any = tvm.topi


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("te", "compute Tensor"),
        ("te.tensor", "Tensor ComputeOp"),
        ("te.schedule", "InferBound IterVar"),
        ("tir", "IntImm LT const if_then_else"),
        ("topi.nn", "relu pad"),
        ("topi.utils", "get_const_tuple traverse_inline"),
        ("topi.tag", "is_broadcast ELEMWISE"),
        ("target", "Target cuda create"),
        ("ir", "structural_equal IRModule Array"),
        ("runtime", "convert Module NDArray"),
        ("testing", "assert_allclose"),
    ],
)
def test_imports(path: str, names: str) -> None:
    """`from tedsl.tvm.<path> import ...` gives what the path means as an expression."""
    found = importlib.import_module(f"tedsl.tvm.{path}")
    value = tvm
    for part in path.split("."):
        value = getattr(value, part)
    assert value is found
    for name in names.split():
        assert hasattr(found, name)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("topi.nn.pad", "pad mirror_pad"),
        ("topi.nn.conv2d", "conv2d conv2d_nchw"),
        ("topi.nn.softmax", "softmax log_softmax"),
        ("topi.nn.elemwise", "relu leaky_relu"),
        ("topi.nn.depthwise_conv2d", "depthwise_conv2d_nchw"),
        ("topi.nn.pooling", "pool2d global_pool"),
        ("topi.nn.utils", "get_pad_tuple"),
        ("topi.reduction", "sum argmax"),
        ("topi.broadcast", "add broadcast_to"),
        ("topi.transform", "matrix_set_diag reshape strided_set"),
        ("topi.cuda.injective", "schedule_injective"),
        ("topi.x86.dense", "dense schedule_dense"),
        ("te.autodiff", "gradient"),
        ("te.operation", "ComputeOp"),
        ("tir.expr", "IntImm Add"),
        ("target.codegen", "llvm_version_major"),
    ],
)
def test_files_of_tvm(path: str, names: str) -> None:
    """A file has the names of the package around it, and the operator of its name stays one."""
    found = importlib.import_module(f"tedsl.tvm.{path}")
    for name in names.split():
        assert callable(getattr(found, name))
    x = te.placeholder((2, 3), name="x")
    assert topi.nn.pad(x, (1, 1)).op.name and topi.nn.softmax(x).shape[0] == 2
    assert tvm.target.codegen.llvm_version_major() >= 15


def test_the_parts_of_tedsl_are_loaded_once() -> None:
    assert importlib.import_module("tedsl.tvm.te.schedule") is tvm_schedule
    assert tvm.te.tensor.Tensor is te.Tensor and tvm.te.operation.ComputeOp is te.ComputeOp
    assert tvm.__version__ and tvm.nd.cpu() == tvm.cpu()


@pytest.mark.parametrize(
    "path", ["relay.op", "autotvm.task", "contrib.cuda.graph", "script.tir", "topi.image"]
)
def test_an_import_of_what_is_not_there_says_what_to_write(path: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"has no attribute(.|\n)*\n  do +\S"):
        importlib.import_module(f"tedsl.tvm.{path}")


@pytest.mark.parametrize("path", ["relay", "autotvm", "contrib.graph_executor", "script", "rpc"])
def test_a_module_that_is_not_there_answers_when_it_is_used(path: str) -> None:
    found = importlib.import_module(f"tedsl.tvm.{path}")
    with pytest.raises(AttributeError, match=rf"tvm.{path} has no attribute 'x'\n  do +\S"):
        getattr(found, "x")  # noqa: B009


def test_remarks_on_tests() -> None:
    mark = tvm.testing

    @mark.uses_gpu
    @mark.exclude_targets("cuda")
    @mark.slow
    @mark.requires_package("antlr4")
    def runs(width: int) -> int:
        return width

    assert runs(3) == 3 and callable(mark.fixture(cache_return_value=True))
    assert all(map(callable, (mark.parameter(1, 2), mark.parameter(by_dict={"a": 1}))))
    assert callable(mark.fixture(lambda: 1))


@pytest.mark.parametrize(
    ("holder", "name"),
    [
        ("tir", "For"),
        ("tir", "ir_builder"),
        ("tir", "transform"),
        ("tir", "call_llvm_intrin"),
        ("ir", "register_op_attr"),
        ("target", "mali"),
        ("runtime", "Object"),
        ("transform", "Sequential"),
        ("testing", "parameters"),
        ("topi", "sparse_dense"),
    ],
)
def test_every_name_that_is_not_there_says_what_to_write(holder: str, name: str) -> None:
    with pytest.raises(AttributeError, match=r"has no attribute(.|\n)*\n  do +\S"):
        getattr(getattr(tvm, holder), name)


def expressions() -> list[tuple[Any, str]]:
    n, i = te.var("n"), te.var("i")
    A = te.placeholder((n,), name="A")
    tir = tvm.tir
    return [
        (i < n, "LT"),
        (i <= n, "LE"),
        (i > n, "GT"),
        (i >= n, "GE"),
        (i.equal(n), "EQ"),
        (i != n, "NE"),
        (i + n, "Add"),
        (i - n, "Sub"),
        (i * n, "Mul"),
        (i // n, "FloorDiv"),
        (i % n, "FloorMod"),
        (te.truncdiv(i, n), "Div"),
        (te.truncmod(i, n), "Mod"),
        (te.max(i, n), "Max"),
        (te.min(i, n), "Min"),
        (te.all(i < n, n < 9), "And"),
        (te.any(i < n, n < 9), "Or"),
        (tir.Not(te.isnan(A[i])), "Not"),
        (tir.Select(i < n, i, n), "Select"),
        (tir.Cast("float32", i), "Cast"),
        (tir.IntImm("int64", 3), "IntImm"),
        (tir.FloatImm("float32", 3), "FloatImm"),
        (A[i], "ProducerLoad"),
        (te.exp(A[i]), "Call"),
        (tir.if_then_else(i < n, i, n), "Call"),
        (te.size_var("m"), "SizeVar"),
        (te.reduce_axis((0, n)).var, "Var"),
        ("text", "StringImm"),
    ]


def test_classes_of_expressions() -> None:
    """Each is of its own class and, sizes being variables, of no other."""
    names = {name for _, name in expressions()}
    for value, name in expressions():
        held = {each for each in names if isinstance(value, getattr(tvm.tir, each))}
        assert held == {"SizeVar": {"Var", "SizeVar"}}.get(name, {name}), name
    assert isinstance(te.const(3), (tvm.tir.IntImm, tvm.tir.FloatImm))
    assert not isinstance(3, tvm.tir.IntImm) and tvm.tir.LT.__name__ == "LT"


def test_classes_build_what_they_hold() -> None:
    i, n = te.var("i"), te.var("n")
    assert str(tvm.tir.LT(i, n)) == str(i < n) and str(tvm.tir.Add(i, n)) == str(i + n)
    A = te.placeholder((4,), name="A")
    load = tvm.tir.ProducerLoad(A, [i])
    assert load.producer is A and load.indices[0].same_as(i) and not load.same_as(i)
    chosen = tvm.tir.Select(i < n, i, n)
    assert chosen.true_value is i and chosen.false_value is n


def test_targets() -> None:
    Target = tvm.target.Target
    assert Target({"kind": "cuda", "arch": "sm_80"}) == Target("cuda:sm_80")
    assert tvm.target.create("llvm") == Target({"kind": "llvm", "mcpu": "core-avx2"})
    assert tvm.target.cuda("1080ti", options="-arch=sm_90") == Target("cuda:sm_90")
    assert [Target(each).kind.name for each in ("llvm", "cuda")] == ["llvm", "cuda"]
    with tvm.target.cuda():
        chosen = Target.current(allow_none=False)
    assert (chosen.max_num_threads, chosen.thread_warp_size) == (1024, 32)
    assert Target("llvm").max_num_threads == 1 and Target.current(allow_none=True) is None
    with pytest.raises(te.BackendError, match=r"unknown target 'nvidia/(.|\n)*mean cuda"):
        Target("nvidia/geforce-rtx-3070")
    with pytest.raises(AttributeError, match=r"a target has no attribute 'attrs'\n  do +\S"):
        getattr(Target("cuda"), "attrs")  # noqa: B009
    assert tvm.runtime.enabled("llvm") and not tvm.runtime.enabled("rocm")


def chain() -> Any:
    A = te.placeholder((8, 16), name="A")
    B = topi.add(A, A)
    C = topi.nn.relu(B)
    return A, B, C, te.create_schedule([C.op])


@pytest.mark.cpu
def test_a_schedule_of_topi_that_asks_for_tags_and_outputs() -> None:
    A, B, C, s = chain()
    scheduled: list[Any] = []

    def traverse(op: Any) -> None:
        if topi.tag.is_broadcast(op.tag):
            if op not in s.outputs:
                s[op].compute_inline()
            for tensor in op.input_tensors:
                if isinstance(tensor.op, te.tensor.ComputeOp) and tensor.op not in scheduled:
                    traverse(tensor.op)
        scheduled.append(op)

    traverse(s.outputs[0].op)
    assert s[B].attach_type == 2 and s[C].attach_type == 1 and C.op in s.outputs
    out = s.outputs[0].output(0)
    assert s.outputs[0] == C.op and out is C and s.outputs[0].tag == C.op.tag
    s[out].parallel(s[out].fuse(*s[out].op.axis))
    a, c = np.ones((8, 16), "f4"), np.zeros((8, 16), "f4")
    tvm.build(s, [A, C], "llvm")["main"](a, c)
    np.testing.assert_array_equal(c, 2 * a)
    again = te.create_schedule(C.op)
    seen: list[str] = []
    topi.utils.traverse_inline(again, C.op, lambda op: seen.append(op.name))
    assert again[B].attach_type == 2 and seen == ["A", B.op.name, C.op.name]


def test_sizes_of_topi() -> None:
    n = te.var("n")
    utils = topi.utils
    A = te.placeholder((3, 4), name="A")
    assert utils.get_const_tuple(A.shape) == (3, 4) and utils.get_const_int(A.shape[1]) == 4
    assert utils.get_const_tuple((n, 2))[0] is n and utils.simplify(te.const(3)) == 3
    assert utils.prod(A.shape) == 12 and utils.equal_const_int(A.shape[0], 3)
    assert not utils.equal_const_int(n, 3) and utils.get_const_float(te.const(0.5)) == 0.5
    with pytest.raises(te.ExprError, match="has no value while"):
        utils.get_const_int(n)
    assert topi.tag.is_injective("injective,x") and not topi.tag.is_injective("conv2d")
    rank0 = te.placeholder((), name="r")
    assert (rank0 + A).op.tag == topi.tag.BROADCAST and (rank0 + 1.0).op.tag == topi.tag.ELEMWISE


def test_groups_are_kept() -> None:
    x = te.compute((8, 8), lambda i, j: te.const(1.0, "float32"), name="x")
    x1 = te.compute(x.shape, lambda *i: x(*i) + 1, name="x1")
    x2 = te.compute(x.shape, lambda *i: x1(*i) + 2, name="x2")
    x3 = te.compute(x.shape, lambda *i: x2(*i) + 3, name="x3")
    s = te.create_schedule(x3.op)
    small = s.create_group(outputs=x1, inputs=x, include_inputs=True)
    assert s[x].group == s[x1].group == small and s[x2].group is None and small.group is None
    large = s.create_group(outputs=x2, inputs=x, include_inputs=True)
    assert small.group == large and large.num_child_stages == 2 and s[x].num_child_stages == 0
    assert s[x2].group == large and s[x1].group == small and s.groups == (small, large)
    large.compute_at(s[x3], x3.op.axis[0])
    small.compute_at(s[x2], s[x2].op.axis[1])
    assert small.attach_stage == s[x2] and large.attach_stage == s[x3]
    assert large.attach_ivar is x3.op.axis[0] and len(s.copy().groups) == 2


def test_the_steps_of_a_scan_are_a_group() -> None:
    x = te.placeholder((5, 4), name="x")
    state = te.placeholder((5, 4), name="state")
    init = te.compute((1, 4), lambda _, i: x[0, i], name="init")
    step1 = te.compute((5, 4), lambda t, i: state[t - 1, i] + x[t, i], name="step1")
    step2 = te.compute((5, 4), lambda t, i: step1[t, i] + 1, name="step2")
    step3 = te.compute((5, 4), lambda t, i: step2[t, i] + 1, name="step3")
    s = te.create_schedule(te.scan(init, step3, state, inputs=x).op)
    steps = s[step1].group
    assert [each.name for each in steps.members] == ["step1", "step2", "step3"]
    inner = s.create_group(outputs=step2, inputs=[state, x])
    assert inner.group == steps == s[step3].group and s[step1].group == s[step2].group == inner


def test_how_loops_run() -> None:
    IterVar = te.schedule.IterVar
    _, B, C, s = chain()
    i, j = s[C].op.axis
    outer, inner = s[C].split(j, 4)
    s[C].vectorize(inner)
    s[C].unroll(outer)
    s[C].bind(i, te.thread_axis("blockIdx.x"))
    kinds = [s[C].iter_var_attrs[each].iter_type for each in (i, outer, inner)]
    assert kinds == [IterVar.ThreadIndex, IterVar.Unrolled, IterVar.Vectorized]
    s[B].bind(s[B].op.axis[1], te.thread_axis("threadIdx.x"))
    mark = s[B].iter_var_attrs[s[B].op.axis[1]]
    assert mark.iter_type == IterVar.ThreadIndex and mark.bind_thread == "threadIdx.x"
    with pytest.warns(RuntimeWarning, match="nothing here is done by the pragma 'import_llvm'"):
        s[C].pragma(i, "import_llvm", "text")


def test_what_scripts_ask_intrinsics_and_modules() -> None:
    a = te.placeholder((8,), name="a")
    b = te.compute((8,), lambda i: a[i] * 2.0, name="b")
    intrin = te.decl_tensor_intrin(b.op, None, name="twice", binds=None)
    assert intrin.op == b.op and intrin.reduce_init is None and intrin.reduce_update is None
    with pytest.raises(te.ExprError, match=r"no part of a definition(.|\n)*tensorize"):
        intrin(a)
    with pytest.raises(AttributeError, match=r"an intrinsic has no attribute 'buffers'\n  do +\S"):
        getattr(intrin, "buffers")  # noqa: B009
    lowered = tvm.lower(te.create_schedule(b.op), [a, b])
    assert lowered["main"] is lowered and isinstance(lowered, tvm.IRModule)
    with pytest.raises(AttributeError, match=r"no attribute 'body'\n  do +print it"):
        getattr(lowered["main"], "body")  # noqa: B009
    kernel = tvm.build(lowered, target="llvm")
    assert kernel.get_function("main") is kernel and kernel.type_key == "llvm"
    assert isinstance(kernel, tvm.runtime.Module)


def test_a_group_of_one_stage_is_in_a_larger_one() -> None:
    x = te.compute((8, 8), lambda i, j: te.const(1.0, "float32"), name="x")
    x1 = te.compute(x.shape, lambda *i: x(*i) + 1, name="x1")
    x2 = te.compute(x.shape, lambda *i: x1(*i) + 2, name="x2")
    s = te.create_schedule(x2.op)
    small = s.create_group(outputs=x1, inputs=x)
    large = s.create_group(outputs=x1, inputs=x, include_inputs=True)
    assert small.group == large and large.group is None
    assert s[x].group == large and s[x1].group == small
    assert (small.num_child_stages, large.num_child_stages) == (1, 2)
