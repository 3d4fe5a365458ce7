"""Externs in built kernels: called between kernels, on every target."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from externs import (
    Arrays,
    between,
    floats,
    one,
    running_sum,
    several,
    sort_rows,
    split_even,
)
from lowering import agrees, placeholders, random_array

import tedsl as te
from tedsl.errors import TuneError
from tedsl.ir.interp import run
from tedsl.ir.nodes import HostCall

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def _cumulate(a, b):
    return a + b

@triton.jit
def running(x, y, COLUMNS: tl.constexpr = 8):
    row = tl.program_id(0)
    at = tl.arange(0, COLUMNS)
    values = tl.load(x + row * 5 + at, mask=at < 5, other=0.0)
    tl.store(y + row * 5 + at, tl.associative_scan(values, 0, _cumulate), mask=at < 5)
"""
TARGETS = ("cpu", "triton-interpret")


def runs_alike(s: te.Schedule, sizes: dict[te.Var, int] | None = None) -> bool:
    """Oracle, interpreter of the IR, and the kernels of both targets give the same numbers."""
    assert agrees(s, sizes)
    inputs = placeholders(s)
    values = [random_array(t, sizes or {}, np.random.default_rng(3)) for t in inputs]
    expected = te.evaluate(list(s.outputs), dict(zip(inputs, values, strict=True)), sizes)
    for target in TARGETS:
        made = te.build(s, target)(*values)
        for found, want in zip(made if len(expected) > 1 else [made], expected, strict=True):
            np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    return True


def cumulate(ins: Arrays, outs: Arrays) -> None:
    np.cumsum(ins[0], axis=1, out=outs[0])


def scheduled(c: te.Tensor) -> te.Schedule:
    """Loops of the stages around the extern, split."""
    s = te.create_schedule(c)
    for name in ("B", "C"):
        i, j = s[name].op.axis
        outer, _ = s[name].split(i, 3)
        s[name].bind(outer, "blockIdx.x")
        s[name].vectorize(j)
    return s


@pytest.mark.cpu
@pytest.mark.parametrize("function", [sort_rows, running_sum], ids=["python", "c"])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_between_scheduled_stages(function: Any, rows: int) -> None:
    n = te.size_var("n")
    assert runs_alike(scheduled(between(function, n)), {n: rows})


@pytest.mark.cpu
@pytest.mark.parametrize("target", TARGETS)
def test_several_outputs(target: str) -> None:
    n = te.size_var("n")
    a = te.placeholder((n, 6), name="A")
    made = te.extern([(n, 3), (n,)], [a], split_even, name="E", dtype=["float32", "float64"])
    even, total = several(made)
    scaled = te.compute((n, 3), lambda i, j: even[i, j] * 2, name="D")
    kernel = te.build(te.create_schedule([scaled, total]), target)
    x = floats(5, 6)
    doubled, sums = kernel(x)
    np.testing.assert_allclose(doubled, x[:, ::2] * 2)
    np.testing.assert_allclose(sums, x.sum(1, dtype=np.float64))
    out = np.empty((5, 3), np.float32), np.empty(5)
    assert kernel(x, out=out) is out
    np.testing.assert_array_equal(out[1], sums)


@pytest.mark.cpu
@pytest.mark.parametrize("target", TARGETS)
def test_an_extern_alone(target: str) -> None:
    a = te.placeholder((3, 5), name="A")
    kernel = te.build(te.create_schedule(one(te.extern((3, 5), [a], sort_rows))), target)
    x = floats(3, 5)
    np.testing.assert_array_equal(kernel(x), np.sort(x, axis=1))


@pytest.mark.cpu
def test_externs_after_each_other_and_twice_in_one() -> None:
    a = te.placeholder((3, 5), name="A")
    first = one(te.extern((3, 5), [a], sort_rows, name="E"))

    def both(ins: Arrays, outs: Arrays) -> None:
        np.add(ins[0], ins[1], out=outs[0])

    second = one(te.extern((3, 5), [first, first], both, name="F"))
    x = floats(3, 5)
    for target in TARGETS:
        kernel = te.build(te.create_schedule([second, first]), target)
        np.testing.assert_allclose(kernel(x)[0], np.sort(x, axis=1) * 2)


@pytest.mark.cpu
def test_the_default_rules_keep_what_externs_read() -> None:
    n = te.size_var("n")
    c = between(sort_rows, n)
    x = floats(6, 5)
    b = x * 2 + 1
    for target in TARGETS:
        np.testing.assert_allclose(te.build(c, target)(x), np.sort(b, axis=1) - b, rtol=1e-5)


@pytest.mark.cpu
def test_an_extern_reads_what_a_scan_starts_with() -> None:
    x, state = te.placeholder((6, 3), name="A"), te.placeholder((6, 3), name="S")
    first = te.compute((1, 3), lambda t, i: x[0, i] * 2, name="first")
    update = te.compute((6, 3), lambda t, i: state[t - 1, i] + x[t, i], name="U")
    total = one(te.scan(first, update, state, name="total"))
    e = one(te.extern((1, 3), [first], sort_rows, name="E"))
    f = one(te.extern((6, 3), [total], sort_rows, name="F"))
    d = te.compute((6, 3), lambda i, j: e[0, j] + f[i, j], name="D")
    assert runs_alike(te.create_schedule(d))


@pytest.mark.cpu
def test_the_cache_keeps_the_parts(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    c = between(sort_rows)
    x = floats(4, 5)
    expected = te.build(te.create_schedule(c), "cpu")(x)

    def other(ins: Arrays, outs: Arrays) -> None:
        outs[0][...] = -np.sort(-ins[0], axis=1)

    again = te.build(te.create_schedule(between(sort_rows)), "cpu")
    np.testing.assert_array_equal(again(x), expected)
    changed = te.build(te.create_schedule(between(other)), "cpu")
    b = x * 2 + 1
    np.testing.assert_allclose(changed(x), -np.sort(-b, axis=1) - b, rtol=1e-6)


@pytest.mark.cpu
def test_torch_tensors_on_the_cpu() -> None:
    torch = pytest.importorskip("torch")
    seen: list[Any] = []

    def sorted_rows(ins: Arrays, outs: Arrays) -> None:
        seen.extend((*ins, *outs))
        outs[0].copy_(torch.sort(ins[0], dim=1).values)

    n = te.size_var("n")
    kernel = te.build(scheduled(between(te.torch_function(sorted_rows), n)), "cpu")
    x = floats(6, 5)
    b = x * 2 + 1
    expected = np.sort(b, axis=1) - b
    np.testing.assert_allclose(kernel(x), expected, rtol=1e-6)
    np.testing.assert_allclose(kernel(torch.from_numpy(x)).numpy(), expected, rtol=1e-6)
    assert all(isinstance(each, torch.Tensor) and each.dtype == torch.float32 for each in seen)


@pytest.mark.cpu
def test_torch_tensors_of_sixteen_bits() -> None:
    torch = pytest.importorskip("torch")

    def negated(ins: Arrays, outs: Arrays) -> Any:
        assert ins[0].dtype == torch.bfloat16
        return -ins[0]

    a = te.placeholder((3, 5), "bfloat16", name="A")
    e = one(te.extern((3, 5), [a], te.torch_function(negated), name="E"))
    x = torch.randn(3, 5).to(torch.bfloat16)
    assert torch.equal(te.build(te.create_schedule(e), "cpu")(x), -x)


def test_errors_say_where_they_come_from() -> None:
    def failing(ins: Arrays, outs: Arrays) -> None:
        raise RuntimeError("no luck")

    for target in TARGETS:
        kernel = te.build(te.create_schedule(between(failing)), target)
        with pytest.raises(RuntimeError, match="no luck") as caught:
            kernel(floats(2, 5))
        assert caught.value.__notes__ == ["in the extern E, which calls failing"]
    wrong = te.build(te.create_schedule(between(lambda ins, outs: ins[0][:1])), "cpu")
    with pytest.raises(te.BackendError, match="returned float32"):
        wrong(floats(2, 5))


@pytest.mark.cpu
@pytest.mark.parametrize("rows", [1, 7])
def test_a_triton_kernel_in_the_interpreter(rows: int) -> None:
    n = te.size_var("n")
    c = between(cumulate, n, gpu=te.triton_kernel(KERNEL, n))
    s = scheduled(c)
    assert runs_alike(s, {n: rows})
    source = te.build(s, "triton-interpret").source
    assert "def running(" in source and "running(B, E_1)" in source.replace("E)", "E_1)")
    module = te.lower(s, "triton-interpret", check=True)
    calls = [func.host_call for func in module.funcs if func.host_call is not None]
    assert [call.on_host for call in calls] == [False]
    assert "E = launch running(B)" in str(module)
    assert "E = call cumulate(B)" in str(te.lower(s, "cpu", check=True))


@pytest.mark.ptxas
def test_a_triton_kernel_compiles() -> None:
    n = te.size_var("n")
    kernel = te.build(
        scheduled(between(cumulate, n, gpu=te.triton_kernel(KERNEL, n))), "cuda:sm_90"
    )
    assert [name for name in kernel.resources if name.startswith("E")] == ["E"]


def test_two_kernels_of_one_name() -> None:
    a = te.placeholder((3, 5), name="A")
    first = one(te.extern((3, 5), [a], cumulate, name="E", gpu=te.triton_kernel(KERNEL, 3)))
    other = KERNEL.replace("a + b", "a * b")
    f = one(te.extern((3, 5), [first], cumulate, name="F", gpu=te.triton_kernel(other, 3)))
    with pytest.raises(te.LowerError, match="define '_cumulate' differently"):
        te.build(te.create_schedule(f), "triton-interpret")


def test_the_gpu_needs_a_function_for_it() -> None:
    s = te.create_schedule(between(sort_rows))
    with pytest.raises(te.LowerError, match="sort_rows, which runs on the CPU only") as caught:
        te.lower(s, "cuda")
    assert "gpu=" in caught.value.hint
    with pytest.raises(te.LowerError, match="calls C function"):
        te.lower(te.create_schedule(between(running_sum)), "cuda:sm_90")


def test_printed(golden: Any) -> None:
    s = scheduled(between(sort_rows))
    kernel = te.build(s, "cpu")
    told = [
        f"{k.name} {k.calls or 'computes'}: reads {dict(k.reads)}, writes {dict(k.writes)}"
        for k in kernel.explain(n=6).kernels
    ]
    golden("\n".join([str(s), "", str(te.lower(s, "cpu")), *told]))


@pytest.mark.gpu
def test_on_the_gpu() -> None:
    torch = pytest.importorskip("torch")
    n = te.size_var("n")
    x = torch.from_numpy(floats(70, 5)).cuda()
    b = x * 2 + 1

    def summed(ins: Arrays, outs: Arrays) -> None:
        torch.cumsum(ins[0], dim=1, out=outs[0])

    def failing(ins: Arrays, outs: Arrays) -> None:
        raise RuntimeError("no luck")

    for gpu in (summed, te.triton_kernel(KERNEL, n)):
        kernel = te.build(scheduled(between(cumulate, n, gpu=gpu)), "cuda")
        for _ in range(2):
            torch.testing.assert_close(kernel(x), torch.cumsum(b, dim=1) - b)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            torch.testing.assert_close(kernel(x), torch.cumsum(b, dim=1) - b)
    kernel = te.build(scheduled(between(cumulate, n, gpu=failing)), "cuda")
    with pytest.raises(RuntimeError, match="no luck"):
        kernel(x)


def test_tuning_is_refused() -> None:
    with pytest.raises(TuneError, match="E is an extern: the function that it calls"):
        te.autotune(between(sort_rows, 4), target="cpu", trials=1)


def test_the_statement() -> None:
    module = te.lower(te.create_schedule(between(sort_rows, 4)), "cpu")
    call = module.funcs[1].host_call
    assert isinstance(call, HostCall)
    assert [buffer.name for buffer in (*call.inputs, *call.outputs)] == ["B", "E"]
    assert [run if isinstance(run, tuple) else run.name for run in module.runs()] == [
        (0,),
        "E",
        (2,),
    ]


@pytest.mark.parametrize("target", ["cpu", "triton-interpret"])
def test_outputs_of_different_ranks(target: str) -> None:
    """Found by drawing: a read of the longer one was lowered with the dimensions of the first."""
    a = te.placeholder((3, 4), name="A")
    _, longer = several(
        te.extern([(3, 4), (1, 3, 4)], [a], lambda ins, outs: (ins[0], ins[0][None]), name="E")
    )
    b = te.compute((1, 3, 4), lambda h, i, j: longer[h, i, j] * 2.0, name="B")
    module = te.lower(te.create_schedule(b), target, check=True)
    data = floats(3, 4)
    found = run(module, {module.inputs[0]: data}, {})[module.outputs[0]]
    np.testing.assert_array_equal(found, data[None] * 2)
