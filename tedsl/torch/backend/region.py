"""One region: its kernel, and PyTorch in its place where that is not to be had.

Imports the importer and `program`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tedsl.scheduling.handles.schedule import Schedule
from tedsl.torch import precision
from tedsl.torch.backend.report import RegionReport
from tedsl.torch.compiled import Compiled, Failed
from tedsl.torch.importer.graph import Imported, import_nodes
from tedsl.torch.lib import pytree, torch
from tedsl.torch.refusals import FAULTS, CompilerFault, first_line

Origin = tuple[int, int, int, int]
"""Where the value of a symbol is found: an argument, and its dimension or -1 for the argument
itself, which is a factor times the symbol plus an offset."""

MOST_SIZES = 8
"""Kernels that a region is specialised to before PyTorch runs it."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """Nodes of a graph as a function.

    Attributes:
        inputs: what they read from outside, tensors and sizes.
        nodes: in order.
        results: those of them that are read outside, each one tensor.
    """

    inputs: tuple[Any, ...]
    nodes: tuple[Any, ...]
    results: tuple[Any, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The operators in it."""
        return tuple(str(node.target) for node in self.nodes if hasattr(node.target, "_schema"))

    def origins(self) -> dict[str, Origin]:
        """Where the values of symbols are found."""
        found: dict[str, Origin] = {}
        for place, node in enumerate(self.inputs):
            fake = node.meta.get("val")
            sizes = fake.shape if isinstance(fake, torch.Tensor) else (fake,)
            for d, size in enumerate(sizes):
                if not isinstance(size, torch.SymInt):
                    continue
                offset, rest = size.node.expr.as_coeff_Add()
                factor, symbol = rest.as_coeff_Mul()
                if symbol.is_Symbol:
                    where = d if isinstance(fake, torch.Tensor) else -1
                    found.setdefault(str(symbol), (place, where, int(factor), int(offset)))
        return found


def with_sizes(part: Part, nodes: Sequence[Any]) -> Part:
    """The part with one input more for each symbol that follows from none of its own: the first of
    the graph's nodes that has it, which all others come from."""
    used: dict[str, None] = {}
    for fake in pytree.tree_leaves([node.meta.get("val") for node in (*part.inputs, *part.nodes)]):
        sizes = fake.shape if isinstance(fake, torch.Tensor) else (fake,)
        for size in sizes:
            if isinstance(size, torch.SymInt):
                used.update((str(each), None) for each in size.node.expr.free_symbols)
    inputs = list(part.inputs)
    for name in sorted(set(used) - set(part.origins())):
        inputs += [node for node in nodes if name in Part((node,), (), ()).origins()][:1]
    return Part(tuple(dict.fromkeys(inputs)), part.nodes, part.results)


class Region:
    """What runs in the place of a part of a graph.

    Args:
        part: the nodes.
        eager: the same by PyTorch.
        report: written as things happen.
        target: `cpu` or `cuda`.
        origins: of the sizes, where the part does not say it.

    Attributes:
        origins: where the values of symbols are found.
        compiled: the kernel for all sizes, None where there is none.
    """

    def __init__(
        self,
        part: Part,
        eager: Any,
        report: RegionReport,
        target: str,
        origins: dict[str, Origin] | None = None,
    ) -> None:
        self.part = part
        self.eager = eager
        self.report = report
        self.target = target
        self.origins = part.origins() if origins is None else origins
        self._own: dict[tuple[tuple[str, int], ...], Compiled | None] = {}
        self.compiled: Compiled | None = None

    def compile(
        self, text: str, imported: Imported | CompilerFault, schedule: Schedule | None = None
    ) -> Compiled | None:
        """The kernel for all sizes; None where there is none, which the report then says.

        Args:
            text: under which it is kept on disk.
            imported: the part, for all sizes.
            schedule: of `imported`, that a search found.
        """
        self.compiled, fault = compiled_or_fault(self.part, self.target, text, imported, schedule)
        if self.compiled is not None:
            self.report.kernels = len(self.compiled.kernel.module.funcs)
        elif not self.origins:
            self.report.fault = fault
        return self.compiled

    def adopt(self, compiled: Compiled) -> None:
        """Use the kernel of another region of the same structure."""
        self.compiled = compiled
        self.report.shared = True
        self.report.kernels = len(compiled.kernel.module.funcs)

    def __call__(self, *arguments: Any) -> Any:
        sizes = self._sizes(arguments)
        compiled = self.compiled or self._specialised(sizes)
        if compiled is None:
            self.report.eager_calls += 1
            return self.eager(*arguments)
        try:
            results = compiled(arguments, sizes)
        except Failed:
            self.report.eager_calls += 1
            return self.eager(*arguments)
        except FAULTS as error:
            self.report.fault = f"at a call: {first_line(error)}"
            self.report.eager_calls += 1
            return self.eager(*arguments)
        self.report.calls += 1
        return results

    def _sizes(self, arguments: Sequence[Any]) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, (place, d, factor, offset) in self.origins.items():
            given = arguments[place]
            found[name] = (int(given if d < 0 else given.shape[d]) - offset) // factor
        return found

    def _specialised(self, sizes: Mapping[str, int]) -> Compiled | None:
        """A kernel for these sizes alone, where there is none for all."""
        if not sizes or self.report.fault:
            return None
        key = tuple(sizes.items())
        if key not in self._own:
            if len(self._own) >= MOST_SIZES:
                self.report.fault = f"more than {MOST_SIZES} sizes, each with a kernel of its own"
                return None
            text, imported = f"{structure(self.part)}\n{sizes}", imports_of(self.part, sizes)
            self._own[key], fault = compiled_or_fault(self.part, self.target, text, imported)
            if fault:
                self.report.fault = fault
            told = ", ".join(f"{name}={value}" for name, value in key)
            self.report.specialised.append(told)
        return self._own[key]


def imports_of(part: Part, given: Mapping[str, int]) -> Imported | CompilerFault:
    """The part in the language, or why it is not to be had."""
    try:
        return import_nodes(part.inputs, part.nodes, part.results, given)
    except FAULTS as error:
        return CompilerFault(f"import: {first_line(error)}")


def compiled_or_fault(
    part: Part,
    target: str,
    text: str,
    imported: Imported | CompilerFault,
    schedule: Schedule | None = None,
) -> tuple[Compiled | None, str]:
    """The kernel of a part, or why there is none: with `imports_of` the place where a fault of the
    importer or the compiler becomes a refusal."""
    if isinstance(imported, CompilerFault):
        return None, imported.reason
    try:
        compiled = Compiled(imported, schedule, target, text)
    except FAULTS as error:
        return None, f"build: {first_line(error)}"
    if missing := set(compiled.kernel.signature.keywords) - set(part.origins()):
        return None, f"nothing in the graph has the size {min(missing)}"
    return compiled, ""


def structure(part: Part) -> str:
    """A text that is the same for parts that have the same kernel."""
    names = {node: f"i{n}" for n, node in enumerate(part.inputs)}
    lines = [f"{name} {_form(node.meta.get('val'))}" for node, name in names.items()]
    for n, node in enumerate(part.nodes):
        names[node] = f"n{n}"
        lines.append(
            f"n{n} {node.target} {_text(node.args, names)} {_text(node.kwargs, names)} "
            f"{_form(node.meta.get('val'))}"
        )
    lines += [" ".join(names[node] for node in part.results), precision.settings()]
    return "\n".join(lines)


def _form(fake: Any) -> str:
    if isinstance(fake, (tuple, list)):
        return " ".join(map(_form, fake))  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(fake, torch.Tensor):
        return f"{fake.dtype} {tuple(fake.shape)} {tuple(fake.stride())} {fake.device}"  # pyright: ignore[reportUnknownMemberType]
    return str(fake)


def _text(value: Any, names: Mapping[Any, str]) -> str:
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_text(each, names) for each in value)}]"  # pyright: ignore
    if isinstance(value, dict):
        return f"{{{', '.join(f'{k}: {_text(v, names)}' for k, v in value.items())}}}"  # pyright: ignore
    return names.get(value, "") or repr(value) if hasattr(value, "meta") else repr(value)
