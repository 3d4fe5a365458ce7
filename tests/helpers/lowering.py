"""Lower a schedule pass by pass, and run any level against the numpy oracle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tedsl.expr.index_arith import sub
from tedsl.expr.nodes import Const, Expr, Var
from tedsl.ir.interp import run
from tedsl.ir.nodes import For, LoopKind, Module, Stmt
from tedsl.ir.printer import print_module
from tedsl.ir.visit import rewrite_stmts, substitute
from tedsl.lower.pipeline import Nests, lower
from tedsl.reference.reference import evaluate
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.scheduling.plan.scan_structure import inputs_of
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

Sizes = Mapping[Var, int]


def after_passes(s: Schedule, target: str) -> dict[str, str]:
    """The printed nests or module after each pass, by the pass's name; each level is verified."""
    seen: dict[str, str] = {}

    def note(name: str, left: Nests | Module) -> None:
        seen[name] = str(left) if isinstance(left, Nests) else print_module(left)

    lower(s.plan, Target.parse(target), dump=note, check=True)
    return seen


def placeholders(s: Schedule) -> list[Tensor]:
    """The inputs of a schedule."""
    return list(inputs_of(s.plan))


def _extent(extent: Expr, sizes: Sizes) -> int:
    if isinstance(extent, Const):
        return int(extent.value)
    assert isinstance(extent, Var)
    return sizes[extent]


def random_array(tensor: Tensor, sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
    """Normal floats, or small integers that may index."""
    shape = [_extent(e, sizes) for e in tensor.shape]
    if tensor.dtype.is_float:
        return rng.standard_normal(shape).astype(tensor.dtype.value)
    return rng.integers(0, 5, shape).astype(tensor.dtype.value)


def agrees(
    s: Schedule,
    sizes: Sizes | None = None,
    targets: tuple[str, ...] = ("cpu", "triton-interpret"),
    bound: float = 1e-5,
) -> bool:
    """The interpreter gives the oracle's numbers of the definition, for the first nests and for the
    final tiles."""
    sizes = sizes or {}
    rng = np.random.default_rng(7)
    inputs = placeholders(s)
    values = [random_array(t, sizes, rng) for t in inputs]
    expected = evaluate(list(s.definition), dict(zip(inputs, values, strict=True)), sizes)
    for target in targets:
        seen: list[Nests | Module] = []
        lower(s.plan, Target.parse(target), dump=lambda _, m, seen=seen: seen.append(m), check=True)
        modules = [each for each in seen if isinstance(each, Module)]
        for module in (modules[0], modules[-1]):
            found = run(module, dict(zip(module.inputs, values, strict=True)), sizes)
            for buffer, want in zip(module.outputs, expected, strict=True):
                np.testing.assert_allclose(
                    np.asarray(found[buffer], dtype=np.float64),
                    np.asarray(want, dtype=np.float64),
                    rtol=bound,
                    atol=bound,
                )
    return True


def backwards(module: Module) -> Module:
    """The module with the programs of its kernels in the opposite order, the last one first."""

    def turned(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.kind is not LoopKind.PROGRAM:
            return None
        return replace(
            stmt, body=substitute(stmt.body, {stmt.axis: sub(sub(stmt.end, 1), stmt.axis)})
        )

    funcs = (replace(func, body=rewrite_stmts(func.body, turned)) for func in module.funcs)
    return replace(module, funcs=tuple(funcs))


def same_in_any_order(s: Schedule, sizes: Sizes | None = None) -> bool:
    """The interpreter gives the same bits when the programs run in the opposite order."""
    sizes = sizes or {}
    rng = np.random.default_rng(7)
    module = lower(s.plan, Target.parse("triton-interpret"), check=True)
    values = [random_array(t, sizes, rng) for t in placeholders(s)]
    inputs = dict(zip(module.inputs, values, strict=True))
    found, again = run(module, inputs, sizes), run(backwards(module), inputs, sizes)
    for buffer in module.outputs:
        assert found[buffer].tobytes() == again[buffer].tobytes(), buffer.name
    return True
