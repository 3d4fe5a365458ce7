"""TVM's module `testing`: comparisons, and tests that need a device."""

from __future__ import annotations

import importlib
import sys
import unittest
from collections.abc import Callable
from typing import Any

import numpy as np

from tedsl.target import Target
from tedsl.tvm.devices import Device, cpu, cuda, device
from tedsl.tvm.modules import of_te

__all__ = ["assert_allclose", "device_enabled", "enabled_targets", "main", "parametrize_targets"]


def assert_allclose(actual: Any, desired: Any, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    """Fail unless both have one shape and are near: |actual - desired| <= atol + rtol |desired|."""
    got, want = (x.numpy() if hasattr(x, "numpy") else np.asarray(x) for x in (actual, desired))
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, verbose=True)


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


def __getattr__(name: str) -> Any:
    """`requires_gpu`, `requires_cuda` and their like: a test is skipped where there is none."""
    if not name.startswith("requires_"):
        return of_te(name)
    missing = name in ("requires_gpu", "requires_cuda", "requires_cudagraph")
    return _skipped if missing and not cuda().exist else _kept


def _kept(*test: Callable[..., Any]) -> Any:
    return test[0] if test else _kept


def _skipped(*test: Callable[..., Any]) -> Any:
    return unittest.skip("there is no GPU here")(test[0]) if test else _skipped
