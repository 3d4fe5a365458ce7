"""Programs as functions: gradients, arguments that are unused, repeated, passed on or misfit."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import tedsl as te

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def gradients_agree(function: Any, call: Any, *given: Any) -> None:
    """Results and derivatives by what requires them, as eager has them."""
    found, wanted = call(*given), function(*given)
    torch.testing.assert_close(found, wanted)
    heads = torch.randn_like(wanted)
    asked = [each for each in given if each.requires_grad]
    ours, theirs = (torch.autograd.grad(out, asked, heads) for out in (found, wanted))
    torch.testing.assert_close(ours, theirs)


def needing(*shapes: Any) -> list[Any]:
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


FUNCTIONS = {
    "linear": (lambda x, w, b: torch.relu(x @ w + b), ((8, 16), (16, 32), (32,))),
    "ties": (lambda x: x.round().amax(-1) + x.round().clamp(-1, 1).sum(-1), ((5, 7),)),
    "norm": (lambda x, g: torch.nn.functional.layer_norm(x, (9,), g), ((4, 9), (9,))),
    "conv": (lambda x, w: torch.conv2d(x, w, padding=1), ((2, 3, 5, 5), (4, 3, 3, 3))),
    "gather": (lambda x: x[torch.tensor([0, 2, 2])] * 2, ((3, 4),)),
}  # fmt: skip


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_gradients_are_those_of_eager(name: str) -> None:
    function, shapes = FUNCTIONS[name]
    given = needing(*shapes)
    gradients_agree(function, tt.trace(function, *given).build(target="cpu"), *given)


def test_a_slip_names_what_was_meant() -> None:
    program = tt.trace(lambda x: x * 2, torch.ones(3))
    for holder, slip, meant in (
        (program, "output", "outputs"),
        (program.build(target="cpu"), "kernl", "kernel"),
    ):
        with pytest.raises(AttributeError, match=rf"no attribute '{slip}'\n  do .*{meant}") as told:
            getattr(holder, slip)
        assert isinstance(told.value, te.TedslError)


def test_the_derivative_reads_results_and_is_scheduled_by_hand() -> None:
    given = needing((8, 16), (16, 32), (32,))
    program = tt.trace(lambda x, w, b: torch.relu(x @ w + b), *given)
    names = [tensor.name for tensor in program.backward.inputs]
    assert names == ["x", "w", "b", "result", "d_result"]
    called = [str(node.target) for node in program.backward.traced.called]
    assert called.count("aten.mm.default") == 2  # not the function's product again
    s = te.create_schedule(program.backward)
    for stage in s.stages:
        if stage.op.name.startswith("mm"):
            stage.parallel(stage.op.axis[0])
    call = program.build(target="cpu", backward=s)
    gradients_agree(program.function, call, *given)
    text = str(call._scheduled.kernel.schedule.as_python())
    assert "parallel" in text


def ways_to_schedule(program: Any) -> list[Any]:
    return [
        te.create_schedule(program),
        te.schedule_for(program, "cpu"),
        te.autotune(program, "cpu", trials=2, records=False),
    ]


def test_a_program_is_scheduled_searched_and_built_as_its_outputs_are() -> None:
    given = needing((8, 16), (16, 32), (32,))
    program = tt.trace(lambda x, w, b: torch.relu(x @ w + b), *given)
    forward, backward = ways_to_schedule(program), ways_to_schedule(program.backward)
    for schedule, derivative in zip(forward, backward, strict=True):
        call = program.build(schedule, target="cpu", backward=derivative)
        gradients_agree(program.function, call, *given)
    assert program.build(forward[-1]).kernel.target == te.Target.parse("cpu")
    x, w, b = (each.detach().numpy() for each in given)
    kernel = te.build(program, "cpu")
    torch.testing.assert_close(torch.from_numpy(kernel(x, w, b)), program.function(*given).detach())
    assert [t.name for t in te.lower(program, "cpu").inputs] == ["x", "w", "b"]
    assert te.explain(program, "cpu").name == "relu"
    assert te.space(program, "cpu", samples=1).target == "cpu"


def test_a_schedule_of_something_else_is_refused() -> None:
    program = tt.trace(lambda x, w: torch.relu(x @ w), *needing((3, 4), (4, 5)))
    with pytest.raises(te.BackendError, match=r"mm_2, mm_1(.|\n)*create_schedule\(program"):
        program.build(te.create_schedule(program.backward))


def test_only_what_is_asked_for_is_computed() -> None:
    x, w = torch.randn(4, 5), torch.randn(5, 6, requires_grad=True)
    program = tt.trace(lambda x, w: torch.tanh(x @ w), x, w)
    assert len(program.backward.outputs) == 1
    call = program.build(target="cpu")
    gradients_agree(program.function, call, x, w)
    gradients_agree(program.function, call, x.clone().requires_grad_(), w.detach())


def test_second_derivatives() -> None:
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    call = tt.trace(lambda x: torch.softmax(x, -1) * x.exp(), x).build(target="cpu")
    assert torch.autograd.gradcheck(call, (x,))
    assert torch.autograd.gradgradcheck(call, (x,))


def test_parameters_of_a_module_learn() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    x = torch.randn(16, 5)
    call = tt.trace(model, x).build(target="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = (call(x) - x.sum(-1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.testing.assert_close(call(x), model(x))
    assert losses[-1] < losses[0] / 2


def test_a_derivative_that_is_not_taken_is_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = pytest.importorskip("tedsl.torch.importer.registry").REGISTRY
    monkeypatch.delitem(registry, torch.ops.aten.where.self)
    x = torch.randn(2, 3, 8, requires_grad=True)

    def function(x: Any) -> Any:
        return torch.relu(x * 2)

    program = tt.trace(function, x)
    with pytest.raises(tt.NotTaken, match=r"aten.where.self has no converter"):
        _ = program.backward
    gradients_agree(function, program.build(target="cpu"), x)


def test_unused_repeated_and_passed_arguments() -> None:
    def function(a: Any, b: Any, unused: Any) -> Any:
        c = a + b
        return c, a, c, (b, a * b)

    x, y = needing((3, 4), (5,))
    call = tt.trace(function, x, x, y).build(target="cpu")
    found = call(x, x, y)
    torch.testing.assert_close(found, function(x, x, y))
    assert found[1] is x
    assert found[3][0] is x
    found[3][1].sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    assert y.grad is None


def test_an_argument_by_its_name() -> None:
    x, y = torch.randn(4), torch.randn(4)
    call = tt.trace(lambda x, y: x - y, x, y).build(target="cpu")
    torch.testing.assert_close(call(x, y=y), x - y)


def test_gradients_of_strided_arguments() -> None:
    base = torch.randn(9, 12, requires_grad=True)

    def function(x: Any) -> Any:
        return torch.sin(x) * 2

    call = tt.trace(function, base[1::2, ::3]).build(target="cpu")
    for view in (base[1::2, ::3], base[:4, :4].t(), base[0, :4].expand(4, 4)):
        ours, theirs = (torch.autograd.grad(f(view).sum(), base)[0] for f in (call, function))
        torch.testing.assert_close(ours, theirs)


def test_misfits_are_told() -> None:
    x = torch.randn(4, 5)
    call = tt.trace(lambda x, y: x * y, x, x).build(target="cpu")
    with pytest.raises(
        te.BackendError, match=r"y is torch.float32 \[4, 6\](?s:.*)as in the example"
    ):
        call(x, torch.randn(4, 6))
    with pytest.raises(te.BackendError, match=r"x is torch.float64 \[4, 5\]"):
        call(x.double(), x)
    with pytest.raises(te.BackendError, match="y is int"):
        call(x, 3)
    with pytest.raises(TypeError, match="1 arguments given, 2 expected"):
        call(x)


def test_what_a_program_does_not_do_is_told() -> None:
    with pytest.raises(tt.NotTaken, match="changes an argument"):
        tt.trace(lambda x: x.add_(1), torch.ones(3))
    with pytest.raises(tt.NotTaken, match="every result is an argument"):
        tt.trace(lambda x: x, torch.ones(3))
    with pytest.raises(tt.NotTaken, match="no result depends on a float argument"):
        _ = tt.trace(lambda x: x > 0, torch.ones(3)).backward


def test_memory_does_not_grow() -> None:
    program = tt.trace(lambda x, w: torch.relu(x @ w), *needing((4, 5), (5, 6)))
    call = program.build(target="cpu")
    given = needing((4, 5), (5, 6))
    for _ in range(3):
        call(*given).sum().backward()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(500):
        call(*given).sum().backward()
    gc.collect()
    assert len(gc.get_objects()) < before + 100
