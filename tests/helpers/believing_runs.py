"""Run Triton's interpreter as `interpret_believing` does: with Triton's analysis, to refuse it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tedsl.backends.triton.interpret import client as interpret

HERE = Path(__file__).with_name("interpret_believing.py")
NAMES: Any = vars(interpret)


@contextlib.contextmanager
def believing() -> Generator[None]:
    """Inside, an access that is wider than its addresses or its mask allow is a `BackendError`."""
    before = {name: NAMES[name] for name in ("CHILD", "_CHILD")}
    child = NAMES["_Child"]()
    NAMES.update(CHILD=HERE, _CHILD=child)
    try:
        yield
    finally:
        child.close()
        NAMES.update(before)


def run_alone(path: Path, kernel: str, arrays: Sequence[np.ndarray], number: int) -> np.ndarray:
    """The last of `arrays` after one program of a kernel in a file, called with all and a number.

    Raises:
        BackendError: an access of it is wider than it may be.
    """
    entries = [
        {"name": f"a{n}", "dtype": str(a.dtype), "shape": a.shape, "nbytes": a.nbytes}
        for n, a in enumerate(arrays)
    ]
    args: list[dict[str, Any]] = [{"kind": "pointer", "array": n} for n in range(len(arrays))]
    args.append({"kind": "size", "value": number})
    call = {"name": kernel, "grid": [1, 1, 1], "args": args, "together": False}
    request: dict[str, Any] = {
        "path": str(path), "kernels": [call], "arrays": entries, "results": [len(arrays) - 1]
    }  # fmt: skip
    (content,) = NAMES["_CHILD"].call(request, [a.tobytes() for a in arrays], 60.0)
    return np.frombuffer(content, arrays[-1].dtype).reshape(arrays[-1].shape)
