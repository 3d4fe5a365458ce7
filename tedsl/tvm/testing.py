"""TVM's module `testing`: comparisons, and tests that need a device."""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tedsl.expr.nodes import Expr
from tedsl.expr.visit import structural_equal
from tedsl.target import Target
from tedsl.tvm.arith import Analyzer
from tedsl.tvm.devices import Device, cpu, cuda, device
from tedsl.tvm.modules import of_te

__all__ = [
    "assert_allclose",
    "assert_prim_expr_equal",
    "assert_structural_equal",
    "check_numerical_grads",
    "device_enabled",
    "enabled_targets",
    "fixture",
    "main",
    "parameter",
    "parametrize_targets",
]


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """Fail unless both have one shape and are near: |actual - desired| <= atol + rtol |desired|."""
    got, want = (x.numpy() if hasattr(x, "numpy") else np.asarray(x) for x in (actual, desired))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, verbose=True)


def assert_prim_expr_equal(lhs: Any, rhs: Any) -> None:
    """Fail unless two expressions are known to have one value."""
    assert Analyzer().can_prove_equal(lhs, rhs), f"{lhs} and {rhs} are not known to be equal"


def assert_structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> None:
    """Fail unless two expressions are built alike, or two lowered modules print alike."""
    both = isinstance(lhs, Expr) and isinstance(rhs, Expr)
    alike = structural_equal(lhs, rhs) if both else str(lhs) == str(rhs)
    assert alike, f"these differ:\n{lhs}\n{rhs}"


def check_numerical_grads(
    function: Callable[..., Any],
    input_values: Sequence[Any],
    grad_values: Sequence[Any],
    function_value: Any = None,
    delta: float = 1e-3,
    atol: float = 1e-2,
    rtol: float = 0.1,
) -> None:
    """Fail unless derivatives are near differences of a function of arrays.

    Args:
        function: from arrays to a number.
        input_values: where it is derived.
        grad_values: its derivative by each of these; by others it is not asked for.
        function_value: what it is there, which is not needed.
        delta: half the step of a difference.
        atol: how far from the square root of its size times it the derivative may be.
        rtol: how far, as a part of the largest.
    """
    for place, found in enumerate(grad_values):
        values = [np.array(each) for each in input_values]
        wanted = np.zeros(values[place].shape, "float64")
        for at in np.ndindex(wanted.shape):
            middle, ends = values[place][at], list[float]()
            for step in (delta, -delta):
                values[place][at] = middle + step
                ends.append(float(np.sum(function(*values))))
            values[place][at] = middle
            wanted[at] = (ends[0] - ends[1]) / (2 * delta)
        off = float(np.linalg.norm(found - wanted))
        allowed = atol * wanted.size**0.5 + rtol * float(np.linalg.norm(wanted))
        assert off <= allowed, f"derivative {place} is {off} from differences: {found}, {wanted}"


def enabled_targets() -> list[tuple[str, Device]]:
    """The targets that can run here, with their devices."""
    return [("llvm", cpu()), *([("cuda", cuda())] if cuda().exist else [])]


def device_enabled(target: str | Target) -> bool:
    """Whether a target can run here; one that there is not cannot."""
    known = str(target).split(" ")[0] in ("c", "cpu", "cuda", "llvm", "nvptx")
    return known and device(str(target)).exist


def main() -> None:
    """Run the tests of the script by pytest, as TVM's own test files end."""
    pytest: Any = importlib.import_module("pytest")
    sys.exit(pytest.main([sys.argv[0]]))


def parametrize_targets(*targets: Any) -> Any:
    """A test for each of these targets, or for all that can run here: `target` and `dev` are its
    arguments."""
    given = [str(each) for each in targets if not callable(each)]
    chosen = [(each, device(each)) for each in given] or enabled_targets()
    pytest: Any = importlib.import_module("pytest")
    mark = pytest.mark.parametrize(("target", "dev"), [each for each in chosen if each[1].exist])
    return mark(targets[0]) if targets and callable(targets[0]) else mark


def parameter(*values: Any, ids: Any = None, by_dict: Mapping[str, Any] | None = None) -> Any:
    """What a test that names it as an argument is run with, one after the other."""
    given = list((by_dict or {}).values()) or list(values)
    names = list(by_dict or {}) or ids
    pytest: Any = importlib.import_module("pytest")

    def value(request: Any) -> Any:
        return request.param

    return pytest.fixture(params=given, ids=names)(value)


def fixture(func: Any = None, *, cache_return_value: bool = False) -> Any:
    """`pytest.fixture`; what it makes is made for each test."""
    pytest: Any = importlib.import_module("pytest")
    return pytest.fixture(func) if func is not None else pytest.fixture


_MARKS = ("exclude_targets", "known_failing_targets", "skip_if_wheel_test", "slow", "uses_gpu")


def __getattr__(name: str) -> Any:
    """`requires_gpu`, `requires_cuda` and their like: a test is skipped where there is none."""
    if name in _MARKS:
        return _marked
    if not name.startswith("requires_"):
        return of_te(name)
    missing = name in ("requires_gpu", "requires_cuda", "requires_cudagraph")
    return _skipped if missing and not cuda().exist else _kept


def _kept(*test: Any) -> Any:
    return test[0] if test and callable(test[0]) else _kept


def _marked(*given: Any, **options: Any) -> Any:
    """A test with a remark that only TVM's own runs look at."""
    return given[0] if len(given) == 1 and callable(given[0]) else _kept


def _skipped(*test: Callable[..., Any]) -> Any:
    return unittest.skip("there is no GPU here")(test[0]) if test else _skipped
