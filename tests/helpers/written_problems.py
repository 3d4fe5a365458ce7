"""Small problems of PyTorch as users write them, by the backend and by eager.

A problem is two texts.  The first says what is given, one name after the other: `r` are floats by
which is differentiated, `c` floats that are not, `i` integers below a number, `b` bools, `p` a
permutation; what begins with `kw_` is passed by keyword, and modules belong to the function.  The
second is the body of the function, of which the last line is returned.
"""

from __future__ import annotations

import importlib
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from problems_of_layers import LAYERS
from problems_of_models import MODELS
from problems_of_tensors import TENSORS

import tedsl.torch as tt
from tedsl.torch.backend.entry import tedsl as backend

torch: Any = importlib.import_module("torch")
importlib.import_module("torch.utils.checkpoint")
pytree: Any = torch.utils._pytree
PROBLEMS = {**LAYERS, **TENSORS, **MODELS}
APART = "numbers: "
CLOSE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class Pair(NamedTuple):
    """Two results."""

    left: Any
    right: Any


class Counter(torch.nn.Module):
    """A module that counts its calls and keeps a mean of what it saw."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Any) -> Any:
        self.calls.add_(1)
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.mean


def _floats(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, dtype=dtype)


def _bools(*shape: int) -> Any:
    return torch.rand(shape) > 0.4


NAMES: dict[str, Any] = {
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "Counter": Counter,
    "Pair": Pair,
    "r": lambda *shape, **given: _floats(*shape, **given).requires_grad_(),
    "c": _floats,
    "i": lambda high, *shape: torch.randint(0, high, shape),
    "b": _bools,
    "p": torch.randperm,
}


class Written(torch.nn.Module):
    """The function of a problem, with the modules that are given."""

    def __init__(self, given: dict[str, Any], body: str) -> None:
        super().__init__()
        held = {name: each for name, each in given.items() if isinstance(each, torch.nn.Module)}
        for name, each in held.items():
            self.add_module(name, each)
        positional = [n for n in given if n not in held and not n.startswith("kw_")]
        keywords = [n for n in given if n.startswith("kw_")]
        names = ", ".join(["self", *positional, *(["*", *keywords] if keywords else [])])
        lines = [*(f"{name} = self.{name}" for name in held), *_returning(body)]
        code = "\n".join([f"def forward({names}):", *(f"    {line}" for line in lines)])
        scope = dict(NAMES)
        exec(compile(code, f"<written {hash(code)}>", "exec"), scope)
        self.run = scope["forward"]

    def forward(self, *given: Any, **keywords: Any) -> Any:
        return self.run(self, *given, **keywords)


def _returning(body: str) -> list[str]:
    lines = textwrap.dedent(body).strip().split("\n")
    if len(lines) == 1:
        *lines, last = lines[0].split("; ")
        lines.append(f"return {last}")
    return lines


@dataclass(frozen=True)
class Way:
    """How a problem is run.

    Attributes:
        grads: with gradients.
        train: modules as they are made; else in evaluation.
        dynamic: sizes are open.
        products: products and convolutions are kernels too.
        channels_last: the option.
    """

    grads: bool = True
    train: bool = True
    dynamic: bool | None = None
    products: bool = False
    channels_last: bool | None = None


TRAINING = Way()
WAYS = (TRAINING, Way(grads=False, train=False, products=True), Way(grads=False, dynamic=True))


@dataclass
class Outcome:
    """All that a call leaves: results, gradients, what is given, buffers."""

    structure: Any
    results: list[Any]
    grads: list[Any]
    after: list[Any]

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Each with what it is."""
        for kind in ("results", "grads", "after"):
            for n, each in enumerate(getattr(self, kind)):
                yield f"{kind}[{n}]", each


def given_of(
    problem: str, problems: Mapping[str, tuple[str, str]] = PROBLEMS
) -> tuple[Written, list[Any], dict[str, Any]]:
    """A fresh module, and what it is called with."""
    torch.manual_seed(len(problem))
    text, body = problems[problem]
    scope, names = dict(NAMES), list[str]()
    for line in text.split("; "):
        exec(line, scope)
        names.append(line.split(" = ")[0].strip())
    given = {name: scope[name] for name in names}
    module = Written(given, body)
    passed = {n: each for n, each in given.items() if not isinstance(each, torch.nn.Module)}
    leaves = {id(each): _leaf(each) for each in _tensors(passed)}
    passed = pytree.tree_map_only(torch.Tensor, lambda each: leaves[id(each)], passed)
    keywords = {n: each for n, each in passed.items() if n.startswith("kw_")}
    return module, [each for n, each in passed.items() if n not in keywords], keywords


def _tensors(tree: Any) -> list[Any]:
    return [each for each in pytree.tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _leaf(tensor: Any) -> Any:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def outcome(call: Any, module: Any, given: list[Any], named: dict[str, Any], way: Way) -> Outcome:
    """What a call leaves, with the derivative by everything that is differentiated by."""
    torch.manual_seed(1)
    module.train() if way.train and not _fixed(module) else module.eval() if not way.train else None
    with torch.set_grad_enabled(way.grads):
        made = call(*given, **named)
    results, structure = pytree.tree_flatten(made)
    tensors, leaves = _tensors(results), _tensors((given, named))
    sources = [t for t in (*leaves, *module.parameters()) if t.requires_grad and t.is_leaf]
    total: Any = torch.zeros(())
    for each in tensors:
        total = total + _weighed(each) if each.requires_grad else total
    grads: list[Any] = []
    if total.requires_grad and sources:
        grads = list(torch.autograd.grad(total, sources, allow_unused=True))
    after = [each.detach() for each in (*leaves, *module.buffers())]
    return Outcome(structure, results, grads, after)


def _fixed(module: Any) -> bool:
    """True where a module is in evaluation by its text."""
    return not all(each.training for each in module.modules())


def _weighed(result: Any) -> Any:
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=torch.float64)
    return (result.double() * weights.reshape(result.shape)).sum()


def compared(problem: str, way: Way = TRAINING) -> tuple[str, Any]:
    """How a problem by the backend differs from eager, "" where it does not; and the report."""
    torch._dynamo.reset()
    report = tt.Report()
    options = {
        "report": report,
        "products": way.products,
        "channels_last": way.channels_last,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own, given, named = given_of(problem)
        wanted = outcome(own, own, given, named, way)
        module, given, named = given_of(problem)
        call = torch.compile(module, backend=backend, options=options, dynamic=way.dynamic)
        found = outcome(call, module, given, named, way)
    return difference(found, wanted, lambda: _exact(problem, way)), report


def _exact(problem: str, way: Way) -> list[Any]:
    """What a call leaves in double precision; nothing where its text says otherwise."""
    module, given, named = given_of(problem)
    given, named = pytree.tree_map_only(torch.Tensor, _doubled, (given, named))
    try:
        made = outcome(module.double(), module, given, named, way)
    except RuntimeError:
        return []
    return [each for _, each in made.parts()]


def _doubled(tensor: Any) -> Any:
    return (
        _leaf(tensor.double().requires_grad_(tensor.requires_grad))
        if tensor.is_floating_point()
        else tensor
    )


def difference(found: Outcome, wanted: Outcome, exact: Callable[[], list[Any]]) -> str:
    if found.structure != wanted.structure:
        return f"{found.structure} for {wanted.structure}"
    if [len(found.grads), len(found.after)] != [len(wanted.grads), len(wanted.after)]:
        return "another number of gradients"
    for n, ((name, ours), (_, theirs)) in enumerate(
        zip(found.parts(), wanted.parts(), strict=True)
    ):
        fault = _unlike(ours, theirs, lies=not name.startswith("grads"))
        if fault.startswith(APART) and _near(ours, theirs, exact()[n : n + 1]):
            continue  # a chain may enlarge the roundings of its first step
        if fault:
            return f"{name}: {fault}"
    return ""


def _near(ours: Any, theirs: Any, exact: list[Any]) -> bool:
    """True where ours is off by at most eight times what eager is, and by little."""
    if not exact or exact[0].shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    own, off = (float((each.double() - exact[0]).abs().max()) for each in (ours, theirs))
    return own <= 8 * off + 1e-5 * float(exact[0].abs().max())


def _unlike(ours: Any, theirs: Any, lies: bool) -> str:
    if not isinstance(theirs, torch.Tensor) or not isinstance(ours, torch.Tensor):
        return "" if type(ours) is type(theirs) and ours == theirs else f"{ours!r}, not {theirs!r}"
    if ours.requires_grad != theirs.requires_grad:
        return f"requires_grad is {ours.requires_grad}"
    if lies and ours.numel() > 1 and _steps(ours) != _steps(theirs):
        return f"strides {ours.stride()}, not {theirs.stride()}"
    close = CLOSE.get(theirs.dtype, 0.0)
    try:
        torch.testing.assert_close(
            ours.detach(), theirs.detach(), equal_nan=True, rtol=close, atol=close / 10
        )
    except AssertionError as error:
        return f"{APART}{' '.join(str(error).split())[:300]}"
    return ""


def _steps(tensor: Any) -> list[int]:
    return [step for step, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


def share(report: Any) -> str:
    """Whether kernels compute all of a problem, part of it, or nothing."""
    taken = sum(graph.taken for graph in report.graphs)
    nodes = sum(graph.nodes for graph in report.graphs)
    return "left" if not taken else "whole" if taken == nodes else "partly"
