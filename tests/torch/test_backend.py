"""The backend: what is a region, what is left, what a call does that does not fit."""

from __future__ import annotations

import gc
import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from sources import run_python

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
backend: Any = pytest.importorskip("tedsl.torch.backend.entry").tedsl
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function: Any, **options: Any) -> tuple[Any, Any]:
    report = tt.Report()
    made = torch.compile(function, backend=backend, options={"report": report, **options})
    return made, report


def test_products_are_the_librarys_and_what_follows_is_one_region() -> None:
    def function(x: Any, w: Any, b: Any) -> Any:
        return torch.softmax(torch.relu(x @ w + b), -1)

    given = torch.randn(4, 5), torch.randn(5, 6), torch.randn(6)
    call, report = compiled(function)
    torch.testing.assert_close(call(*given), function(*given))
    (graph,) = report.graphs
    assert len(graph.regions) == 1
    assert graph.left["aten.mm.default", "a library is faster"] == 1
    torch._dynamo.reset()
    call, report = compiled(function, products=True)
    torch.testing.assert_close(call(*given), function(*given))
    assert not report.graphs[0].left


def test_one_structure_is_compiled_once() -> None:
    def function(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = torch.tanh(x @ w) + 1
        return x

    given = torch.randn(4, 5), torch.randn(5, 5)
    call, report = compiled(function)
    torch.testing.assert_close(call(*given), function(*given))
    assert [region.shared for region in report.graphs[0].regions] == [False, True, True, True]


def test_nodes_that_are_alike_are_converted_once_to_decide(monkeypatch: Any) -> None:
    def function(x: Any) -> Any:
        for _ in range(6):
            x = torch.tanh(x) + 1
        return x.sum(1)

    decisions: Any = importlib.import_module("tedsl.torch.backend.decisions")
    tried, met = decisions._tried, list[str]()
    monkeypatch.setattr(decisions, "_tried", lambda node: (met.append(node.name), tried(node)))
    call, report = compiled(function)
    torch.testing.assert_close(call(x := torch.randn(4, 5)), function(x))
    assert len(met) == 3
    assert report.graphs[0].taken == 13


def test_a_new_batch_size_runs_the_same_kernel() -> None:
    def function(x: Any) -> Any:
        return torch.softmax(x * 2, -1).sum(0)

    call, report = compiled(function)
    for rows in (4, 7, 9, 33, 2):
        x = torch.randn(rows, 6)
        torch.testing.assert_close(call(x), function(x))
    assert len(report.graphs) == 2  # the first size, and all others
    assert not report.graphs[1].regions[0].specialised


@pytest.mark.parametrize("transposed", [False, True])
def test_as_many_channels_of_a_convolution_as_a_call_says(transposed: bool) -> None:
    """An open number of channels was taken for 1: only the first was summed."""

    def function(x: Any, w: Any) -> Any:
        return (torch.conv_transpose2d if transposed else torch.conv2d)(x, w).relu()

    call, _ = compiled(function, products=True)
    for count in (5, 3, 7):
        x = torch.randn(2, 4, 7, 6)
        w = torch.randn(4, count, 3, 3) if transposed else torch.randn(count, 4, 3, 3)
        torch.testing.assert_close(call(x, w), function(x, w))


@pytest.mark.parametrize("warm", [False, True])
def test_a_backward_pass_is_called_again(warm: bool) -> None:
    """Also one that is found on disk."""

    def function(x: Any) -> Any:
        return (x.exp() * x).sum()

    call, _ = compiled(function)
    for _ in range(1 + warm):
        torch._dynamo.reset()
        x = torch.randn(3, 4, requires_grad=True)
        loss = call(x)
        loss.backward(retain_graph=True)
        loss.backward()
        torch.testing.assert_close(x.grad, (2 * x.exp() * (x + 1)).detach())


def test_a_size_that_is_an_argument() -> None:
    def function(x: Any, n: int) -> Any:
        return (x * n).reshape(n, -1).sum(0)

    call, report = compiled(function)
    for n in (2, 3, 4, 6):
        x = torch.randn(12)
        torch.testing.assert_close(call(x, n), function(x, n))
    assert not report.faults


def counted_twice(x: Any) -> Any:
    """As many elements as data say, twice: 2 * u of a size u that is nowhere by itself."""
    positive = x[x > 0]
    return torch.cat([positive, positive])


@pytest.fixture
def twice() -> Any:
    library = torch.library.Library("tedsl_tests", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", counted_twice, "CPU")

    @torch.library.register_fake("tedsl_tests::twice", lib=library)
    def fake(x: Any) -> Any:
        return x.new_empty(2 * torch.library.get_ctx().new_dynamic_size())

    del fake
    yield
    library._destroy()


def rows(x: Any) -> Any:
    return torch.cat([torch.nonzero(x > 0)[:, 0]] * 2).sort()[0].float().exp().cumsum(0)


def number(x: Any) -> Any:
    count = (x > 0).sum().item()
    return (torch.arange(count * 2 + 1) + x.sum()).sort()[0].exp()


def doubled(x: Any) -> Any:
    return torch.ops.tedsl_tests.twice(x).exp().cumsum(0)


def several(x: Any) -> Any:
    values, places = torch.unique(x.round(), return_inverse=True)
    return torch.cat([values, places.reshape(-1)]).sort()[0] * 2


@pytest.mark.usefixtures("twice")
@pytest.mark.parametrize("function", [rows, number, doubled, several])
def test_sizes_that_data_say(function: Any) -> None:
    report = tt.Report()
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        call = torch.compile(
            function, backend=backend, dynamic=True, fullgraph=True, options={"report": report}
        )
        for count in (8, 11, 5):
            x = torch.randn(count)
            torch.testing.assert_close(call(x), function(x))
    assert not report.faults
    assert len(report.graphs) == 1
    assert sum(region.calls for region in report.graphs[0].regions) >= 3


def test_regions_do_not_depend_on_each_other() -> None:
    def function(x: Any) -> Any:
        a = x.exp()
        b = a.sort(-1)[0]
        return (a + b).sin() * a, b.cos()

    x = torch.randn(3, 7)
    call, report = compiled(function)
    torch.testing.assert_close(call(x), function(x))
    assert len(report.graphs[0].regions) == 3


def test_an_index_outside_raises_as_in_eager() -> None:
    table = torch.randn(10, 4)
    call, report = compiled(lambda i: torch.nn.functional.embedding(i, table) * 2)
    torch.testing.assert_close(call(torch.tensor([9, 0])), table[[9, 0]] * 2)
    with pytest.raises(IndexError, match="out of range"):
        call(torch.tensor([10, 0]))
    assert report.graphs[0].regions[0].eager_calls == 1


def test_inputs_are_changed_in_place() -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(1).mul_(y)
        y[1:] = x[:-1]
        return x.t() + y.t(), x

    call, _ = compiled(function)
    ours, theirs = ([torch.ones(3, 3), torch.full((3, 3), 2.0)] for _ in range(2))
    torch.testing.assert_close(call(*ours), function(*theirs))
    torch.testing.assert_close(ours, theirs)


def test_results_lie_as_in_eager() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)

    def function(x: Any) -> Any:
        return (x + 1), (x * 2).transpose(1, 3), x.mean((2, 3), keepdim=True).expand(2, 3, 4, 5)

    call, _ = compiled(function)
    for found, wanted in zip(call(x), function(x), strict=True):
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


def test_open_sizes_in_another_order_of_memory() -> None:
    def function(x: Any) -> Any:
        return (x.transpose(0, 1) * 2), torch.softmax(x.permute(1, 2, 0), -1)

    report = tt.Report()
    options = {"report": report}
    call = torch.compile(function, backend=backend, dynamic=True, options=options)
    for shape in ((3, 4, 5), (2, 7, 3), (6, 5, 4)):
        x = torch.randn(shape)
        for found, wanted in zip(call(x), function(x), strict=True):
            torch.testing.assert_close(found, wanted)
            assert found.stride() == wanted.stride()
    assert not report.faults
    assert report.graphs[0].regions[0].calls == 3


@pytest.mark.parametrize("expanded", [False, True])
def test_gradients_lie_as_they_come(expanded: bool) -> None:
    x = torch.randn(4, requires_grad=True)
    call, _ = compiled(lambda x: (x * 2).expand(3, 4))
    gradient = torch.randn(4).expand(3, 4) if expanded else torch.randn(3, 4)
    found, wanted = (
        torch.autograd.grad(f(x), x, gradient)[0] for f in (call, lambda x: (x * 2).expand(3, 4))
    )
    torch.testing.assert_close(found, wanted)


def test_dropout_draws_the_bits_of_eager() -> None:
    x = torch.randn(50)
    call, _ = compiled(lambda x: torch.nn.functional.dropout(x * 2, 0.4) + 1)
    torch.manual_seed(3)
    found = call(x)
    torch.manual_seed(3)
    torch.testing.assert_close(found, torch.nn.functional.dropout(x * 2, 0.4) + 1)


def test_a_fault_of_the_compiler_is_pytorchs_call_and_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = pytest.importorskip("tedsl.torch.backend.region")

    def broken(*_: Any) -> Any:
        raise KeyError("a table of the compiler")

    monkeypatch.setattr(region, "Compiled", broken)
    x = torch.randn(5)
    call, report = compiled(lambda x: x.exp() + 1)
    torch.testing.assert_close(call(x), x.exp() + 1)
    (fault,) = report.faults
    assert fault == "build: KeyError: 'a table of the compiler'"
    assert "left to PyTorch: build: KeyError" in str(report)


def test_an_unknown_option_is_refused() -> None:
    call = torch.compile(lambda x: x + 1, backend=backend, options={"serach": "quick"})
    with pytest.raises(Exception, match="unknown option 'serach'"):
        call(torch.ones(2))


def test_memory_does_not_grow() -> None:
    call, _ = compiled(lambda x: torch.relu(x * 2).sum(-1))
    x = torch.randn(64, 64)
    call(x)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(2000):
        call(x)
    gc.collect()
    assert len(gc.get_objects()) < before + 200


def test_explain_prints() -> None:
    text = str(tt.explain(lambda x: torch.cumsum(x, 0).sort()[0] + 1, torch.randn(6)))
    assert "operators in tedsl's kernels" in text
    assert "aten.sort" in text


def test_importing_tedsl_does_not_load_it() -> None:
    code = "import tedsl, sys; print([m for m in sys.modules if 'torch' in m])"
    assert run_python(code).strip() == "[]"


def test_pytorch_finds_it_by_name() -> None:
    if "tedsl" not in torch._dynamo.list_backends():
        pytest.skip("tedsl was not installed with its entry points")
    x = torch.randn(4)
    torch.testing.assert_close(torch.compile(lambda x: x.exp(), backend="tedsl")(x), x.exp())


@pytest.mark.parametrize(
    ("device", "strides", "taken"),
    [("cuda", (6, 1, 2), True), ("cuda", (6, 2, 1), False), ("cpu", (6, 1, 2), False)],
)
def test_copies_into_another_order_are_kernels_on_a_gpu(
    device: str, strides: tuple[int, ...], taken: bool
) -> None:
    """PyTorch copies them element by element there."""
    decisions: Any = importlib.import_module("tedsl.torch.backend.decisions")

    class On(torch.Tensor):
        pass

    On.device = property(lambda _: torch.device(device))
    fake = torch.empty_strided((4, 3, 2), (6, 2, 1)).as_subclass(On)
    source = SimpleNamespace(meta={"val": torch.empty_strided((4, 3, 2), strides)})
    clone = SimpleNamespace(
        target=torch.ops.aten.clone.default, all_input_nodes=[source], meta={"val": fake}
    )
    assert decisions.pays([clone]) is taken


TWICE: dict[str, Any] = {
    "a product and beta": lambda x, k: (x * k, torch.addmm(x, x, x, beta=k)),
    "a sum and alpha": lambda x, k: (x + k, torch.addmm(x, x, x, alpha=k)),
    "a branch": lambda x, k: x * k if k > 2.5 else x - k,
    "a quotient and a slope": lambda x, k: (x / (k + 2), torch.nn.functional.leaky_relu(x, k)),
    "a power and a bound": lambda x, k: (x * x * k, x.clamp(-k, k), torch.full_like(x, k)),
}


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("name", TWICE)
def test_a_float_that_changes_from_call_to_call(name: str, grads: bool) -> None:
    """From the second call on PyTorch passes it as a tensor; what takes a number is compiled anew
    for each, also where the same float is used as a tensor."""
    call, _ = compiled(TWICE[name])
    for k in (1.0, 2.0, 3.0, 0.0):
        x = torch.randn(4, 4, requires_grad=grads)
        found, wanted = call(x, k), TWICE[name](x, k)
        torch.testing.assert_close(found, wanted)
