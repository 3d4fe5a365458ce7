"""`tt.op`: operators of PyTorch's own, from functions of the language and from programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import tedsl as te

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
backend: Any = pytest.importorskip("tedsl.torch.backend.entry").tedsl
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def product(x: Any, w: Any) -> Any:
    """A product and what follows, in the language."""
    n, k = x.shape
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((n, w.shape[1]), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), name="c")
    return te.compute(c.shape, lambda i, j: te.tanh(c[i, j]) * 2.0, name="d")


def by_pytorch(x: Any, w: Any) -> Any:
    return torch.tanh(x @ w) * 2


def example(*more: int) -> tuple[Any, Any]:
    return torch.randn(*more, 4, 5, requires_grad=True), torch.randn(5, 6, requires_grad=True)


@pytest.fixture(scope="module")
def ours() -> Any:
    return tt.op("tedsl_tests::product", product)


@pytest.fixture(scope="module")
def traced() -> Any:
    return tt.op("tedsl_tests::traced", tt.trace(by_pytorch, *example()))


@pytest.fixture(params=["expressions", "program"])
def operator(request: pytest.FixtureRequest, ours: Any, traced: Any) -> Iterator[Any]:
    yield ours if request.param == "expressions" else traced


def agree(call: Any, function: Any, *given: Any) -> None:
    found, wanted = call(*given), function(*given)
    torch.testing.assert_close(found, wanted)
    heads = torch.randn_like(wanted)
    pulled = (torch.autograd.grad(out, given, heads) for out in (found, wanted))
    torch.testing.assert_close(next(pulled), next(pulled))


def test_it_is_an_operator_with_a_derivative(operator: Any) -> None:
    agree(operator, by_pytorch, *example())
    agree(operator, by_pytorch, *example()[:1], example()[1][:, :3])
    torch.library.opcheck(operator, example())


def test_second_derivatives(operator: Any) -> None:
    given = [each.detach().double().requires_grad_() for each in example()]
    assert torch.autograd.gradcheck(operator, given)
    assert torch.autograd.gradgradcheck(operator, given)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", ["aot_eager", "tedsl"])
def test_it_is_compiled_around(operator: Any, name: str, dynamic: bool) -> None:
    def function(call: Any) -> Any:
        return lambda x, w: call(x + 1, w).sum(0) * 2

    chosen = backend if name == "tedsl" else name
    call = torch.compile(function(operator), backend=chosen, fullgraph=True, dynamic=dynamic)
    agree(call, function(by_pytorch), *example())
    x, w = example()
    torch.testing.assert_close(call(x[:3], w), function(by_pytorch)(x[:3], w))


def test_it_is_exported(operator: Any) -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, w: Any) -> Any:
            return operator(x, w) + 1

    x, w = (each.detach() for each in example())
    rows = torch.export.Dim("rows")
    made = torch.export.export(Model(), (x, w), dynamic_shapes=({0: rows}, None))
    assert "torch.ops.tedsl_tests" in str(made.graph)
    for n in (4, 3):
        torch.testing.assert_close(made.module()(x[:n], w), by_pytorch(x[:n], w) + 1)


def test_vmap_is_one_call(operator: Any) -> None:
    x, w = example(3)
    torch.testing.assert_close(torch.vmap(operator, (0, None))(x, w), by_pytorch(x, w))
    moved = torch.vmap(operator, (2, None), 1)(x.permute(1, 2, 0), w)
    torch.testing.assert_close(moved, by_pytorch(x, w).transpose(0, 1))
    agree(torch.vmap(operator, (0, None)), by_pytorch, x, w)


def test_derivatives_are_batched(operator: Any) -> None:
    x, w = example()
    result = by_pytorch(x, w)
    pull = getattr(torch.ops.tedsl_tests, f"{operator._name}_backward")
    heads = torch.randn(3, *result.shape)
    given = [each.detach() for each in (x, w, result)]
    found = torch.vmap(lambda head: pull([*given, head], [True, True]))(heads)
    for n, head in enumerate(heads):
        wanted = torch.autograd.grad(result, (x, w), head, retain_graph=True)
        torch.testing.assert_close([each[n] for each in found], list(wanted))


def test_a_scan_refuses_vmap() -> None:
    def running(x: Any) -> Any:
        state = te.placeholder(x.shape, "float32", name="state")
        first = te.compute((1, x.shape[1]), lambda _, j: x[0, j], name="first")
        step = te.compute(x.shape, lambda t, j: state[t - 1, j] * 0.5 + x[t, j], name="step")
        return te.scan(first, step, state, inputs=[x])

    call = tt.op("tedsl_tests::running", running)
    x = torch.randn(4, 3, requires_grad=True)
    decay = torch.tensor([[0.5 ** (t - s) if s <= t else 0.0 for s in range(4)] for t in range(4)])
    agree(call, lambda x: decay @ x, x)
    with pytest.raises(te.ExprError, match="only the whole is defined"):
        torch.vmap(call)(torch.randn(2, 4, 3))


def test_schedules_are_given() -> None:
    seen: list[Any] = []

    def forward(s: Any) -> None:
        s["c"].compute_at(s["d"], s["d"].op.axis[0])
        seen.append(s)

    def backward(s: Any) -> None:
        seen.append(s)
        for stage in s.stages:
            if stage.op.name.startswith("d_"):
                stage.parallel(stage.op.axis[0])

    call = tt.op("tedsl_tests::scheduled", product, schedule=forward, backward=backward)
    agree(call, by_pytorch, *example())
    assert len(seen) == 2
    agree(call, by_pytorch, torch.randn(7, 5, requires_grad=True), example()[1])
    assert len(seen) == 4


def test_a_schedule_of_a_program_serves_other_shapes() -> None:
    program = tt.trace(by_pytorch, *example())
    s = te.create_schedule(program)
    out = s[program.outputs[0]]
    out.parallel(out.op.axis[0])
    call = tt.op("tedsl_tests::replayed", program, schedule=s)
    agree(call, by_pytorch, *example())
    agree(call, by_pytorch, torch.randn(9, 5, requires_grad=True), example()[1])


def test_several_results_of_several_types() -> None:
    def function(x: Any, w: Any) -> Any:
        return torch.softmax(x @ w, -1), x > 0, x

    call = tt.op("tedsl_tests::several", tt.trace(function, *example()))
    x, w = example()
    found = call(x, w)
    torch.testing.assert_close(found, function(x, w))
    assert found[2].data_ptr() != x.data_ptr()
    torch.library.opcheck(call, (x, w))
    agree(lambda *given: call(*given)[0], lambda *given: function(*given)[0], x, w)
    two = tt.op(
        "tedsl_tests::two",
        lambda x: (
            te.compute(x.shape, lambda i: x[i] * 2.0, name="a"),
            te.compute(x.shape, lambda i: te.exp(x[i]), name="b"),
        ),
        results=2,
    )
    y = torch.randn(5, requires_grad=True)
    torch.testing.assert_close(two(y), (y * 2, y.exp()))
    agree(lambda y: two(y)[0] * two(y)[1], lambda y: y * 2 * y.exp(), y)


def test_arguments_that_lie_otherwise(operator: Any) -> None:
    x, w = torch.randn(5, 4), torch.randn(6, 10)
    found = operator(x.t(), w.t()[::2])
    torch.testing.assert_close(found, by_pytorch(x.t(), w.t()[::2]))
    assert found.is_contiguous()


def test_an_index_outside_is_the_error_of_pytorch() -> None:
    table = torch.randn(10, 4)
    program = tt.trace(torch.nn.functional.embedding, torch.tensor([1]), table)
    call = tt.op("tedsl_tests::rows", program)
    torch.testing.assert_close(call(torch.tensor([9]), table), table[9:])
    with pytest.raises(IndexError, match="out of range"):
        call(torch.tensor([10]), table)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="library::operator"):
        tt.op("product", product)
    with pytest.raises(ValueError, match="named arguments"):
        tt.op("tedsl_tests::any", lambda *x: x[0])
    with pytest.raises(tt.NotTaken, match="tensors of its own"):
        tt.op("tedsl_tests::model", tt.trace(torch.nn.Linear(3, 4), torch.randn(2, 3)))
    with pytest.raises(tt.NotTaken, match="structures of tensors"):
        tt.op("tedsl_tests::pair", tt.trace(lambda p: p[0] + p[1], [torch.ones(2), torch.ones(2)]))
    call = tt.op("tedsl_tests::wrong", lambda x: 3)
    with pytest.raises(te.ExprError, match="the function returned int"):
        call(torch.ones(2))
