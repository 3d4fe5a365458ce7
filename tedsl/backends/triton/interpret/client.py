"""Run a program on NumPy arrays in Triton's interpreter, in a child process without PyTorch.

One child per parent process, started at the first call, restarted after a crash, ended at exit.
Requests are a JSON header and the raw bytes of the arrays; nothing is pickled.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tedsl.backends.triton.compile.source_files import source_file
from tedsl.backends.triton.emit.program import (
    KernelSpec,
    ParamKind,
    TritonProgram,
    described,
    evaluate,
)
from tedsl.errors import BackendError, InternalError
from tedsl.expr.nodes import Var
from tedsl.expr.numerics import numpy_dtype
from tedsl.ir.nodes import Buffer

CHILD = Path(__file__).with_name("server.py")
Array = NDArray[Any]


def run(
    program: TritonProgram,
    arrays: Mapping[Buffer, Array],
    sizes: Mapping[Var, int | float] | None = None,
    timeout: float = 120.0,
    places: Sequence[int] | None = None,
) -> None:
    """Run the kernels of a program, in order, and write the results into `arrays` in place.

    Args:
        program: made by `emit`.
        arrays: one contiguous array per buffer that a kernel touches (inputs, outputs, workspaces).
            Counters are made here.
        sizes: values of the runtime sizes.
        timeout: seconds after which the child is ended.
        places: which of the kernels; by default all.

    Raises:
        BackendError: an array or size is missing, or the interpreter failed.
    """
    sizes = sizes or {}
    counters = _cleared(program.module.counters, sizes)
    arrays = {**arrays, **counters}
    order = list(arrays)
    kernels: list[dict[str, Any]] = []
    for repeat, group in program.module.launches():
        specs = [program.kernels[n] for n in group if places is None or n in places]
        if repeat is None:
            kernels += [_kernel(spec, order, sizes) for spec in specs]
            continue
        for step in range(evaluate(repeat.extent, sizes)):
            known = {**sizes, repeat.step: step}
            kernels += [_kernel(spec, order, known) for spec in specs]
    for buffer, array in arrays.items():
        if not array.flags.c_contiguous or array.dtype != numpy_dtype(buffer.dtype):
            raise BackendError(
                f"array for {buffer.name!r} is {array.dtype}"
                f"{'' if array.flags.c_contiguous else ', not contiguous'}",
                hint=f"pass a C-contiguous array of {buffer.dtype.value}",
            )
    request: dict[str, Any] = {
        "path": str(source_file(program.source)),
        "kernels": kernels,
        "arrays": _array_entries(program, arrays),
        "results": list(range(len(order))),
    }
    contents = [array.tobytes() for array in arrays.values()]
    for array, content in zip(
        arrays.values(), _CHILD.call(request, contents, timeout), strict=True
    ):
        array[...] = np.frombuffer(content, array.dtype).reshape(array.shape)
    _require_cleared(counters)


def _cleared(counters: Sequence[Buffer], sizes: Mapping[Var, int | float]) -> dict[Buffer, Array]:
    """Memory for counters, which every launch finds cleared."""
    return {b: np.zeros([evaluate(n, sizes) for n in b.shape], np.int32) for b in counters}


def _require_cleared(counters: Mapping[Buffer, Array]) -> None:
    for buffer, counter in counters.items():
        if counter.any():
            raise InternalError(
                f"the kernels left {buffer.name!r} at {counter}, where the next call goes on"
            )


def _array_entries(program: TritonProgram, arrays: Mapping[Buffer, Array]) -> list[dict[str, Any]]:
    """The arrays, with the element types that the text takes them to be of."""
    elements = {p.buffer: p.element for spec in program.compiled for p in spec.params if p.buffer}
    return [
        {
            "name": buffer.name,
            "dtype": elements.get(buffer, buffer.dtype).value,
            "shape": array.shape,
            "nbytes": array.nbytes,
        }
        for buffer, array in arrays.items()
    ]


def _kernel(
    spec: KernelSpec, order: Sequence[Buffer], sizes: Mapping[Var, int | float]
) -> dict[str, Any]:
    args: list[dict[str, Any]] = []
    for param in spec.params:
        if param.kind is ParamKind.SIZE and param.var is not None:
            if param.var not in sizes:
                raise BackendError(f"size {param.name!r} has no value", hint="pass all sizes")
            args.append({"kind": "size", "value": sizes[param.var]})
            continue
        places = [n for n, buffer in enumerate(order) if buffer is param.buffer]
        if not places:
            raise BackendError(f"no array for buffer {param.name!r} of kernel {spec.name}")
        arg = {"kind": param.kind.value, "array": places[0], "block": list(param.block)}
        held = described(param.buffer) if param.kind is ParamKind.DESCRIPTOR else []
        args.append({**arg, "held": held})
    grid = list(spec.grid_for(sizes))
    return {"name": spec.name, "grid": grid, "args": args, "together": spec.cooperative}


class _Child:
    """The interpreter process; one request at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: Any = None
        self._lock = threading.Lock()
        self._owner = 0

    def call(
        self, request: Mapping[str, Any], contents: Sequence[bytes], timeout: float
    ) -> list[bytes]:
        """Send one request; the contents of the result arrays."""
        with self._lock:
            process = self._started()
            timer = threading.Timer(timeout, process.kill)
            timer.start()
            try:
                answer, results = self._exchange(process, request, contents)
            except (OSError, struct.error, ValueError) as error:
                process.kill()
                code, text = process.wait(), self._tail()
                self._forget()
                raise BackendError(
                    f"Triton's interpreter ended with status {code}",
                    facts=[("stderr", text)],
                    hint="a load outside of an array, or more than the time allowed "
                    f"({timeout:g} s); try a smaller problem",
                ) from error
            finally:
                timer.cancel()
        if not answer["ok"]:
            raise BackendError(
                f"Triton's interpreter refused the kernel: {answer['error']}",
                facts=[("file", str(request["path"])), ("trace", str(answer["trace"])[-2000:])],
            )
        return results

    def _exchange(
        self,
        process: subprocess.Popen[bytes],
        request: Mapping[str, Any],
        contents: Sequence[bytes],
    ) -> tuple[dict[str, Any], list[bytes]]:
        source, target = process.stdout, process.stdin
        if source is None or target is None:
            raise ValueError("the child has no pipes")
        text = json.dumps(request).encode()
        target.write(struct.pack("<Q", len(text)) + text)
        for content in contents:
            target.write(content)
        target.flush()
        answer: dict[str, Any] = json.loads(source.read(struct.unpack("<Q", source.read(8))[0]))
        results = [source.read(size) for size in answer["sizes"]]
        if [len(r) for r in results] != answer["sizes"]:
            raise ValueError("the child's answer is cut short")
        return answer, results

    def _started(self) -> subprocess.Popen[bytes]:
        alive = self._process is not None and self._process.poll() is None
        if alive and self._owner == os.getpid() and self._process is not None:
            return self._process
        self._forget()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child
        self._owner = os.getpid()
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(CHILD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "TRITON_INTERPRET": "1"},
        )
        return self._process

    def _tail(self) -> str:
        if self._errors is None:
            return ""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]

    def _forget(self) -> None:
        """Close what belongs to a child that ended."""
        process, errors = self._process, self._errors
        self._process = self._errors = None
        for file in (process and process.stdin, process and process.stdout, errors):
            if file is not None:
                with contextlib.suppress(OSError):
                    file.close()

    def close(self) -> None:
        """End the child, if this process started one."""
        process = self._process
        if process is None or self._owner != os.getpid():
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()


_CHILD = _Child()
atexit.register(_CHILD.close)
