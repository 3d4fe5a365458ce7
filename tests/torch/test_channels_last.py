"""Images of the library's convolutions with channels last: for which, and what follows."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
tt: Any = pytest.importorskip("tedsl.torch")
models: Any = pytest.importorskip("torch_models")
written: Any = pytest.importorskip("written_problems")
channels_last: Any = pytest.importorskip("tedsl.torch.backend.channels_last")
relaying: Any = pytest.importorskip("tedsl.torch.backend.relaying")
decide: Any = pytest.importorskip("tedsl.torch.backend.decisions").decide
table: Any = pytest.importorskip("tedsl.torch.decompositions").table
backend: Any = pytest.importorskip("tedsl.torch.backend.entry").tedsl
FakeTensorMode: Any = pytest.importorskip("torch._subclasses").FakeTensorMode
make_fx: Any = pytest.importorskip("torch.fx.experimental.proxy_tensor").make_fx
F: Any = torch.nn.functional
aten: Any = torch.ops.aten
pytestmark = [pytest.mark.cpu, pytest.mark.filterwarnings("ignore")]
LAST = torch.channels_last
IMAGES = [
    "bottleneck",
    "mobile",
    "unet",
    "volume",
    "residual",
    "efficient",
    "convnext",
    "vit",
    "unet_attention",
    "dense",
    "inception",
    "shuffle",
    "mixer",
    "generator",
    "upscaler",
    "pyramid",
    "pooled_descriptor",
]
"""Models with convolutions of 2 or 3 dimensions."""
WAYS = (written.Way(channels_last=True), written.Way(False, False, channels_last=True))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    yield


def traced(function: Any, *shapes: tuple[int, ...], device: str = "cuda", **more: Any) -> Any:
    """The graph of a function of tensors that are nowhere."""
    with FakeTensorMode():
        given = [torch.empty(shape, device=device, **more) for shape in shapes]
    return make_fx(function, decomposition_table=table())(*given)


def told(graph: Any, training: bool = False, asked: bool | None = None) -> list[tuple[Any, ...]]:
    """What is said of convolutions, with their number; what is chosen agrees."""
    nodes = list(graph.graph.nodes)
    found, reasons = channels_last.chosen(nodes, set(), training, asked)
    assert len(found) == sum(n for (_, why), n in reasons.items() if why == "channels last")
    return [(why, n) for (_, why), n in reasons.items()]


def convolution(*channels: int, groups: int = 1, **more: Any) -> Any:
    """A graph of convolutions one after the other."""

    def function(x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = F.conv2d(x, weight, padding=1, groups=groups)
        return x

    pairs = zip(channels[1:], channels[:-1], strict=True)
    weights = [(outer, inner // groups, 3, 3) for outer, inner in pairs]
    return traced(function, (2, channels[0], 14, 14), *weights, **more)


@pytest.mark.parametrize(
    ("made", "inference", "training"),
    [
        ({}, "channels last", "channels last"),
        (
            {"groups": 2},
            "most of the work is in groups of several channels",
            "training, with groups",
        ),
        ({"channels": (512, 128)}, "channels last", "training, with half as many channels"),
        ({"channels": (3, 64, 64)}, "channels last", "training, with at most 64 channels"),
        ({"channels": (96, 96), "groups": 96}, "channels last", "channels last"),
        ({"dtype": torch.float64}, "cuDNN takes 64-bit floats with channels first", "cuDNN takes"),
        ({"device": "cpu"}, "not on a GPU", "not on a GPU"),
        ({"channels": (0, 64)}, "nothing to compute", "nothing to compute"),
    ],
)
def test_where_it_pays(made: dict[str, Any], inference: str, training: str) -> None:
    graph = convolution(*made.pop("channels", (64, 128)), **made)
    ((reason, _),) = told(graph)
    assert reason == inference
    ((reason, _),) = told(graph, training=True)
    assert reason.startswith(training)
    assert told(graph, asked=False) == []


def test_one_dimension_has_no_such_order() -> None:
    graph = traced(F.conv1d, (2, 64, 100), (128, 64, 3))
    assert told(graph, asked=True) == [("images of 2 and 3 dimensions have channels last", 1)]


def test_few_convolutions_among_many_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(lambda x, w: F.conv2d(x, w).sin().cos(), (2, 64, 9, 9), (128, 64, 3, 3))
    assert told(graph) == [("channels last", 1)]
    monkeypatch.setattr(channels_last, "FEW", 5)
    assert told(graph) == [("few convolutions among many operators", 1)]


def test_the_backward_pass_is_asked_alike() -> None:
    def function(g: Any, x: Any, w: Any) -> Any:
        more = [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
        return aten.convolution_backward.default(g, x, w, [128], *more)[:2]

    graph = traced(function, (2, 128, 7, 7), (2, 64, 9, 9), (128, 64, 3, 3))
    assert told(graph, training=True) == [("channels last", 1)]


def test_what_is_changed_in_between_is_not_copied() -> None:
    def function(x: Any, w: Any) -> Any:
        return F.conv2d(x.relu().mul_(2), w)

    graph = traced(function, (2, 64, 9, 9), (128, 64, 3, 3))
    assert told(graph) == [("a call changes what was computed", 1)]


def test_a_bias_on_a_gpu_is_an_addition() -> None:
    shapes = (2, 64, 9, 9), (128, 64, 3, 3), (128,)
    calls = [node.target for node in traced(F.conv2d, *shapes).graph.nodes if node.op[:4] == "call"]
    assert calls == [aten.convolution.default, aten.view.default, aten.add.Tensor]
    (call,) = [n.target for n in traced(F.conv2d, *shapes, device="cpu").graph.nodes if n.args][:1]
    assert call == aten.convolution.default

    def backward(g: Any, x: Any, w: Any) -> Any:
        more = [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
        return aten.convolution_backward.default(g, x, w, [128], *more)

    graph = traced(backward, (2, 128, 7, 7), *shapes[:2])
    sums = [node for node in graph.graph.nodes if node.target is aten.sum.dim_IntList]
    assert [(node.args[1], node.meta["val"].shape) for node in sums] == [([0, 2, 3], (128,))]


def residual(x: Any, a: Any, b: Any, bias: Any) -> Any:
    x = F.relu(F.conv2d(x, a, bias, padding=1))
    return torch.sigmoid(F.conv2d(x, b, padding=1) * x.mean((2, 3), keepdim=True) + x)


def test_a_graph_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, PyTorch does not know that cuDNN's results lie as its images."""

    def lies(image: Any, *_: Any) -> Any:
        return LAST if image.is_contiguous(memory_format=LAST) else torch.contiguous_format

    monkeypatch.setattr(torch._C, "_conv_determine_backend_memory_format", lies)
    shapes = (2, 64, 8, 10), (128, 64, 3, 3), (128, 128, 3, 3), (128,)
    graph = traced(lambda *given: (residual(*given),), *shapes)
    nodes = list(graph.graph.nodes)
    library = [node for node in nodes if node.target in channels_last.IMAGES]
    taken = {node for node in nodes if node not in library and decide(node).taken}
    found, reasons = channels_last.chosen(nodes, taken, False, None)
    assert reasons == {("aten.convolution.default", "channels last"): 2}
    made = relaying.relaid(graph, taken, found, [])
    assert made.fresh == 4
    ((result,),) = next(iter(reversed(made.module.graph.nodes))).args
    assert result.target is relaying.LAY
    assert result.meta["val"].stride() == (128 * 80, 80, 10, 1)
    for node in made.module.graph.nodes:
        fake = node.meta.get("val")
        if node.op == "call_function" and node is not result and fake.dim() == 4:
            assert fake.is_contiguous(memory_format=LAST)
    given = [torch.randn(shape) / 30 for shape in shapes]
    torch.testing.assert_close(made.module(*given), (residual(*given),))


def copies(report: Any) -> list[int]:
    """How many copies in another order each graph has."""
    name = str(relaying.LAY)
    return [sum(each.nodes.count(name) for each in graph.regions) for graph in report.graphs]


def compiled(function: Any, **options: Any) -> tuple[Any, Any]:
    torch._dynamo.reset()
    report = tt.Report()
    options = {"report": report, "channels_last": True, **options}
    return torch.compile(function, backend=backend, options=options), report


def alike(found: Any, wanted: Any) -> None:
    """The same numbers, in the same order of memory."""
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


def chain(x: Any, a: Any, b: Any) -> Any:
    x = F.max_pool2d(F.relu(F.conv2d(x, a, padding=1) * 2), 2)
    return torch.tanh(F.conv2d(x, b, padding=1) + x)


def test_nothing_is_copied_between_convolutions() -> None:
    given = [torch.randn(shape) for shape in ((2, 3, 8, 10), (5, 3, 3, 3), (5, 5, 3, 3))]
    call, report = compiled(chain)
    alike(call(*given), chain(*given))
    assert copies(report) == [4]  # the image, two weights and the result
    assert not report.faults
    assert "images of aten.convolution.default (2): channels last" in str(report)
    given[0] = given[0].to(memory_format=LAST)
    call, report = compiled(chain)
    alike(call(*given), chain(*given))
    assert copies(report) == [2]  # the weights


def test_what_is_kept_for_the_backward_pass_is_not_copied() -> None:
    given = [
        torch.randn(s, requires_grad=True) for s in ((2, 3, 8, 10), (5, 3, 3, 3), (5, 5, 3, 3))
    ]
    call, report = compiled(chain)
    gradient = torch.randn(2, 5, 4, 5)
    found, wanted = call(*given), chain(*given)
    alike(found, wanted)
    pairs = (torch.autograd.grad(each, given, gradient) for each in (found, wanted))
    for own, other in zip(*pairs, strict=True):
        alike(own, other)
    # back: the image and two weights again, and what leaves the graph; the gradient that comes in
    # is read by a kernel
    assert copies(report) == [4, 6]
    assert not report.faults


def test_views_of_what_lies_otherwise() -> None:
    def function(x: Any, a: Any, b: Any) -> tuple[Any, ...]:
        x = F.conv2d(x, a, padding=1)
        left, right = x.chunk(2, 1)
        mixed = x.view(2, 2, 3, 8, 10).transpose(1, 2).reshape(2, 6, 8, 10)
        lines = x.as_strided((4, 5), (3, 7), 2)
        return F.conv2d(mixed, b), x.view(2, -1), right, left.sigmoid(), lines * 2, x.sort(1)[0]

    given = [torch.randn(shape) for shape in ((2, 3, 8, 10), (6, 3, 3, 3), (4, 6, 3, 3))]
    call, report = compiled(function)
    for found, wanted in zip(call(*given), function(*given), strict=True):
        alike(found, wanted)
    assert not report.faults


def test_random_numbers_are_those_of_the_order_that_eager_has() -> None:
    def function(x: Any, w: Any) -> Any:
        return F.dropout(F.conv2d(x, w).relu(), 0.4)

    given = torch.randn(2, 3, 8, 10), torch.randn(5, 3, 3, 3)
    call, _ = compiled(function)
    torch.manual_seed(3)
    found = call(*given)
    torch.manual_seed(3)
    alike(found, function(*given))


def test_open_sizes_stay_as_they_lie() -> None:
    call, report = compiled(lambda x, w: F.conv2d(x, w).relu())
    weight = torch.randn(5, 3, 3, 3)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, 8, 10)
        alike(call(x, weight), F.conv2d(x, weight).relu())
    assert [why for graph in report.graphs for _, why in graph.images] == [
        "channels last",
        "sizes that are known at the call only",
    ]


def test_pytorch_in_the_place_of_a_kernel_keeps_to_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    region = pytest.importorskip("tedsl.torch.backend.region")

    def broken(*_: Any) -> Any:
        raise KeyError("a table of the compiler")

    monkeypatch.setattr(region, "Compiled", broken)
    given = [torch.randn(shape) for shape in ((2, 3, 8, 10), (5, 3, 3, 3), (5, 5, 3, 3))]
    call, report = compiled(chain)
    alike(call(*given), chain(*given))
    assert report.faults


def test_exact_strides() -> None:
    x = torch.randn(3, 4, 1, 1).as_strided((3, 4, 1, 1), (4, 1, 4, 4))
    assert relaying.exactly(x, (4, 1, 4, 4)) is x
    found = relaying.exactly(x, (4, 1, 1, 1))
    torch.testing.assert_close(found, x)
    assert (found.stride(), found.data_ptr()) == ((4, 1, 1, 1), x.data_ptr())
    x = torch.randn(2, 3, 4, 5)
    alike(relaying.exactly(x, (60, 1, 15, 3)), x.to(memory_format=LAST))


def every(light: str) -> list[Any]:
    """Models, all but one as slow."""
    slow = pytest.mark.slow
    return [name if name == light else pytest.param(name, marks=slow) for name in IMAGES]


@pytest.mark.parametrize("name", every("mobile"))
def test_training_step(name: str) -> None:
    model, arguments = models.MODELS[name]()
    twin = copy.deepcopy(model)
    call, report = compiled(twin)
    results: list[Any] = []
    for function in (model, call):
        torch.manual_seed(1)
        results.append(function(*arguments))
        results[-1].square().mean().backward()
    alike(results[1], results[0])
    for one, other in zip(twin.parameters(), model.parameters(), strict=True):
        alike(one.grad, other.grad)
    for one, other in zip(twin.buffers(), model.buffers(), strict=True):
        alike(one, other)
    assert not report.faults
    assert not any(each.eager_calls for graph in report.graphs for each in graph.regions)
    for graph in report.graphs:
        assert {why for _, why in graph.images} == {"channels last"}


@pytest.mark.parametrize("name", every("volume"))
def test_inference(name: str) -> None:
    model, arguments = models.MODELS[name]()
    call, report = compiled(model.eval())
    with torch.no_grad():
        alike(call(*arguments), model(*arguments))
    assert not report.faults


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "problem", [name for name, texts in written.PROBLEMS.items() if "onv" in "".join(texts)]
)
def test_written(problem: str, way: Any) -> None:
    fault, report = written.compared(problem, way)
    assert not fault, f"{written.PROBLEMS[problem]}\n{fault}"
    assert not report.faults


@pytest.mark.parametrize("memory_format", [LAST, torch.contiguous_format])
def test_shuffled_channels_lie_as_before(memory_format: Any) -> None:
    x = torch.randn(2, 12, 3, 5).contiguous(memory_format=memory_format)
    torch._dynamo.reset()
    report = tt.Report()
    shuffled = torch.compile(
        lambda x: F.channel_shuffle(x * 2, 4), backend="tedsl", options={"report": report}
    )(x)
    wanted = F.channel_shuffle(x * 2, 4)
    assert shuffled.stride() == wanted.stride()
    torch.testing.assert_close(shuffled, wanted, rtol=0, atol=0)
    assert sum(graph.taken for graph in report.graphs)
