"""Compiled graphs on disk, where AOTAutograd keeps its own: a second process traces no derivative,
looks at no operator and schedules nothing.

AOTAutograd finds a graph of Dynamo by a digest, to which the sources of tedsl and the options
belong, and keeps forward and backward together, which are compiled at once.  What is kept is the
code between the kernels, and under what each kernel is found.  Graphs of which something is not
compiled, for open sizes where they are open, are not kept.  Imports `region`.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from tedsl.runtime.cache.disk import disk_cache
from tedsl.torch import kept, precision
from tedsl.torch.backend.options import Options
from tedsl.torch.backend.region import Origin, Part, Region
from tedsl.torch.backend.report import GraphReport, RegionReport
from tedsl.torch.compiled import Compiled
from tedsl.torch.lib import load, torch

_aot: Any = load("torch._functorch.aot_autograd")
_cache: Any = load("torch._functorch._aot_autograd.autograd_cache")
_config: Any = load("torch._functorch.config")
_codes: Any = load("torch._inductor.output_code")
_settings: Any = load("torch.compiler.config")
Compile = Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class _Loading:
    """For whom graphs are loaded, and how many his report had before."""

    options: Options
    before: int


_LOADING: ContextVar[_Loading] = ContextVar("loading")
"""AOTAutograd calls what it loads without saying for whom."""


@contextlib.contextmanager
def keeping(options: Options) -> Generator[Callable[[Compile], Compile]]:
    """Within, AOTAutograd finds graphs on disk and keeps them.

    Yields:
        What makes of a compiler one whose graphs are kept, as far as this PyTorch can keep them.
    """
    known = hasattr(_config, "bundled_autograd_cache") and hasattr(_settings, "cache_key_tag")
    disk = disk_cache() if known else None
    if disk is None:
        yield lambda compiler: compiler
        return
    asked = (
        options.products,
        options.channels_last,
        options.search,
        options.seconds,
        options.records,
        precision.settings(),
    )
    tag = f"{_settings.cache_key_tag} tedsl {kept.tools()} {disk.root} {asked}"
    token = _LOADING.set(_Loading(options, len(options.report.graphs)))
    try:
        with (
            _config.patch(bundled_autograd_cache=True, force_non_lazy_backward_lowering=True),
            _settings.patch(cache_key_tag=tag),
        ):
            yield functools.partial(_aot.SerializableAOTDispatchCompiler, GraphCode)
    finally:
        _LOADING.reset(token)


class GraphCode(_codes.OutputCode):
    """What AOTAutograd calls for a graph, and keeps.

    Args:
        module: with its regions as submodules.
        report: of the graph.
    """

    def __init__(self, module: Any, report: GraphReport) -> None:
        _codes.OutputCode.__init__(self)
        self._boxed_call = True  # of the instance: PyTorch's wrappers copy what that has
        self._module, self._report = module, report
        self._kept: _Code | None = None
        self._run: Any = _lean(module)

    def __call__(self, inputs: Any) -> Any:
        return self._run(*inputs)

    def prepare_for_serialization(self) -> None:
        """Leave what is data in this copy.

        Raises:
            BypassAOTAutogradCache: it is not to be kept.
        """
        if any(region.fault for region in self._report.regions):
            raise _cache.BypassAOTAutogradCache("a region is not compiled")
        self._kept = _Code.of(self._module)
        self._module = self._run = None

    def post_compile(self, *_: Any) -> None:
        """Make this copy, which was found on disk, one that runs.

        Raises:
            FXGraphCacheMiss: a kernel is not there any more.
        """
        assert self._kept is not None
        loading = _LOADING.get()
        graphs = loading.options.report.graphs
        if not all(each.compiled.found() for each in self._kept.regions.values()):
            del graphs[loading.before :]
            raise _cache.FXGraphCacheMiss("a kernel is not on disk")
        self._run = self._kept.function()
        graphs.append(self._report)
        if loading.options.explain is not None:
            loading.options.explain(str(self._report))

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Kernels are kept elsewhere."""


def _lean(module: Any) -> Callable[..., Any]:
    """What a graph module computes, without what PyTorch does around calls of submodules."""
    held: dict[str, Any] = {}
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            name = str(node.target)
            each = operator.attrgetter(name)(module)
            if "." in name:
                return module.forward
            held[name] = getattr(each, "forward", each) if node.op == "call_module" else each
    code = module.graph.python_code("self")
    return _bound(code.src, dict(code.globals), held)


def _bound(source: str, scope: dict[str, Any], held: Mapping[str, Any]) -> Callable[..., Any]:
    """The function `forward` of a source, in which `self` has what is held."""
    exec(compile(source, "<graph>", "exec"), scope)
    return functools.partial(scope["forward"], SimpleNamespace(**held))


@dataclass(frozen=True, slots=True)
class _Code:
    """A graph module as data.

    Attributes:
        source: of its function `forward`.
        names: what the source calls by name; modules under `modules`.
        modules: modules by the name that the source has for them.
        tensors: that the graph holds.
        regions: its kernels, by the name of the submodule.
    """

    source: str
    names: dict[str, Any]
    modules: dict[str, str]
    tensors: dict[str, Any]
    regions: dict[str, _Kernel]

    @staticmethod
    def of(module: Any) -> _Code:
        """The data of a module.

        Raises:
            BypassAOTAutogradCache: it holds something else than tensors and kernels.
        """
        code = module.graph.python_code("self")
        modules = {n: e.__name__ for n, e in code.globals.items() if isinstance(e, ModuleType)}
        names = {name: each for name, each in code.globals.items() if name not in modules}
        tensors, regions = dict[str, Any](), dict[str, _Kernel]()
        for node in module.graph.nodes:
            if node.op not in ("get_attr", "call_module"):
                continue
            held = getattr(module, str(node.target), None)
            region = getattr(held, "forward", None)
            if isinstance(held, torch.Tensor):
                tensors[str(node.target)] = held
            elif isinstance(region, Region):
                regions[str(node.target)] = _Kernel.of(region)
            else:
                raise _cache.BypassAOTAutogradCache(f"the graph holds {node.target}")
        return _Code(code.src, names, modules, tensors, regions)

    def function(self) -> Callable[..., Any]:
        """What the module computes."""
        scope = {**self.names, **{name: load(each) for name, each in self.modules.items()}}
        regions = {name: each.region() for name, each in self.regions.items()}
        return _bound(self.source, scope, {**self.tensors, **regions})


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A region as data."""

    eager: _Code
    report: RegionReport
    target: str
    compiled: Compiled
    origins: dict[str, Origin]

    @staticmethod
    def of(region: Region) -> _Kernel:
        """The data of a region.

        Raises:
            BypassAOTAutogradCache: without a kernel on disk.
        """
        compiled = region.compiled
        if compiled is None or compiled.key is None:
            raise _cache.BypassAOTAutogradCache("a region has no kernel on disk for all sizes")
        eager = _Code.of(region.eager)
        return _Kernel(eager, region.report, region.target, compiled, region.origins)

    def region(self) -> Region:
        """What runs."""
        self.report.calls = self.report.eager_calls = 0
        part, eager = Part((), (), ()), self.eager.function()
        made = Region(part, eager, self.report, self.target, self.origins)
        made.adopt(self.compiled)
        return made
