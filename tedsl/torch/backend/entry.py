"""`torch.compile(model, backend="tedsl")`, and `explain`.

Found by PyTorch through the entry point `torch_dynamo_backends`.  Forward and backward graphs come
from AOTAutograd: functionalised, decomposed, with the saved tensors that PyTorch chooses.  Imports
everything of the folder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tedsl.torch.attention import AsFused
from tedsl.torch.backend.options import Options, options_of
from tedsl.torch.backend.report import GraphReport, RegionReport, Report
from tedsl.torch.backend.rewrite import rewritten
from tedsl.torch.backend.whole import GraphCode, keeping
from tedsl.torch.decompositions import table
from tedsl.torch.lib import load, torch
from tedsl.torch.refusals import FAULTS, first_line

_backends: Any = load("torch._dynamo.backends.common")
_partitioners: Any = load("torch._functorch.partitioners")
_guards: Any = load("torch._guards")
_shapes: Any = load("torch.fx.experimental.symbolic_shapes")
_restart: Any = getattr(load("torch._dynamo.exc"), "TensorifyScalarRestartAnalysis", None)
_floats: Any = getattr(load("torch._dynamo.symbolic_convert"), "TensorifyState", None)


def tedsl(module: Any, example: Sequence[Any], **settings: Any) -> Callable[..., Any]:
    """The backend, as PyTorch calls it.

    Args:
        module: a graph of Dynamo.
        example: its arguments.
        settings: `options={...}` of `torch.compile`, see `Options`.

    Raises:
        BackendError: an option that there is not, or one of a value that it does not take.
    """
    options = options_of(settings)
    report = options.report
    with keeping(options) as keeps, AsFused(wide=True):
        compiled = _backends.aot_autograd(
            fw_compiler=keeps(_compiler("forward of training", report, options)),
            bw_compiler=keeps(_compiler("backward", report, options)),
            inference_compiler=keeps(_compiler("forward", report, options)),
            decompositions=table(),
            partition_fn=_partitioners.min_cut_rematerialization_partition,
            keep_inference_input_mutations=True,
        )
        return compiled(module, example)


def _compiler(kind: str, report: Report, options: Options) -> Callable[[Any, Any], Any]:
    """What AOTAutograd calls with an ATen graph."""

    def compile_graph(module: Any, given: Any) -> Any:
        if kind != "backward":
            _restart_with_constants()
        graph = GraphReport(kind)
        report.graphs.append(graph)
        try:
            promised = _promised() if kind == "forward of training" else None
            _take_no_memory()
            made = rewritten(module, graph, options, given, promised)
            if graph.relaid:
                _tell_strides(made)
        except FAULTS as error:
            fault = RegionReport("the graph", (), fault=first_line(error))
            graph.regions[:] = [fault]
            made = module
        if options.explain is not None:
            options.explain(str(graph))
        return GraphCode(made, graph)

    return compile_graph


def _restart_with_constants() -> None:
    """Have Dynamo trace again where a float that is an argument of the graph is a constant in it.

    A float that an operator takes as a tensor and another, say `beta=`, as a number: PyTorch writes
    the number into the graph, and does not guard the call.
    """
    context = _guards.TracingContext.try_get()
    sizes = getattr(getattr(context, "fake_mode", None), "shape_env", None)
    if sizes is None or _restart is None or _floats is None:
        return
    written = {
        str(symbol)
        for symbol, value in sizes.replacements.items()
        if value.is_number and _shapes.symbol_is_type(symbol, _shapes.SymT.FLOAT)
    }
    fresh = [name for name in written if not _floats.should_specialize(name)]
    for name in fresh:
        _floats.specialize(name)
    if fresh:
        raise _restart


def _promised() -> int | None:
    """How many results of a forward pass are not only for the backward pass; None where PyTorch
    does not say it."""
    context = _guards.TracingContext.try_get()
    meta = None if context is None else context.fw_metadata
    return None if meta is None else int(meta.num_forward) + len(meta.tokens)


def _take_no_memory() -> None:
    """Tell AOTAutograd that a backward pass leaves what was saved for it as it is: it may be called
    again (`retain_graph=True`)."""
    context = _guards.TracingContext.try_get()
    meta = None if context is None else context.fw_metadata
    if meta is not None:
        meta.bw_donated_idxs = []


def _tell_strides(module: Any) -> None:
    """Tell AOTAutograd how results lie: the backward pass is compiled for it."""
    context = _guards.TracingContext.try_get()
    if context is not None and context.output_strides is not None:
        (results,) = next(iter(reversed(module.graph.nodes))).args
        context.output_strides += map(_strides_of, results)


def _strides_of(result: Any) -> tuple[int, ...] | None:
    fake: Any = getattr(result, "meta", {}).get("val")
    return tuple(fake.stride()) if isinstance(fake, torch.Tensor) else None


def explain(model: Callable[..., Any], *arguments: Any, **keywords: Any) -> Report:
    """What `torch.compile(model, backend="tedsl")` makes of one call.

    Args:
        model: a function or module.
        arguments, keywords: of the call.

    Returns:
        The graphs with their regions, and what was left to PyTorch and why; it prints.
    """
    report = Report()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=tedsl, options={"report": report})
    compiled(*arguments, **keywords)
    return report
