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
        )
        return compiled(module, example)


def _compiler(kind: str, report: Report, options: Options) -> Callable[[Any, Any], Any]:
    """What AOTAutograd calls with an ATen graph."""

    def compile_graph(module: Any, _: Any) -> Any:
        graph = GraphReport(kind)
        report.graphs.append(graph)
        try:
            made = rewritten(module, graph, options)
        except FAULTS as error:
            fault = RegionReport("the graph", (), fault=first_line(error))
            graph.regions[:] = [fault]
            made = module
        if options.explain is not None:
            options.explain(str(graph))
        return GraphCode(made, graph)

    return compile_graph


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
