"""TVM's module `contrib`, as far as scripts over tensors use it: folders, what is kept between
runs, products by libraries, which are expressions here, and what a GPU has.

Imports `topi`.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tedsl.errors import BackendError
from tedsl.nn.matmul import matmul as product
from tedsl.tensor.tensor import Tensor
from tedsl.tvm import topi
from tedsl.tvm.modules import Absent

__path__: Sequence[str] = ()


class TempDirectory:
    """A folder that is removed with the object."""

    def __init__(self) -> None:
        self._made = tempfile.TemporaryDirectory()
        self.temp_dir = self._made.name

    path = property(lambda self: self.temp_dir)

    def relpath(self, name: str) -> str:
        """The path of a file in it."""
        return str(Path(self.temp_dir) / name)

    def listdir(self) -> list[str]:
        """The names of what is in it."""
        return [each.name for each in Path(self.temp_dir).iterdir()]

    def remove(self) -> None:
        """Remove it now."""
        self._made.cleanup()


def create_shared(output: str, objects: Any, options: object = None, cc: object = None) -> None:
    """What `kernel.save("x.o")` wrote, under another name: nothing is linked."""
    files = [objects] if isinstance(objects, str) else list(objects)
    if len(files) != 1:
        raise BackendError(
            f"{len(files)} files are given",
            subject="create_shared",
            hint="give the one that kernel.save wrote; files of a C compiler run by te.c_function",
        )
    shutil.copyfile(files[0], output)


def memoize(key: str, save_at_exit: bool = False) -> Callable[[Any], Any]:
    """The function itself, which is called each time: nothing is kept between runs."""
    return lambda function: function


def matmul(lhs: Tensor, rhs: Tensor, transa: bool = False, transb: bool = False, **_: Any) -> Any:
    """The product of matrices, or of many, each transposed before if asked, by no library."""
    swapped = [*range(lhs.ndim - 2), lhs.ndim - 1, lhs.ndim - 2]
    left = topi.transpose(lhs, swapped) if transa else lhs
    return product(left, topi.transpose(rhs, swapped) if transb else rhs)


def _there(*_: Any) -> bool:
    return True


_OTHERWISE = "call other code with te.extern; kernels run where they are built"
_LIBRARY = SimpleNamespace(matmul=matmul, batch_matmul=matmul)
_MODULES: dict[str, Any] = {
    "cc": SimpleNamespace(create_shared=create_shared),
    **dict.fromkeys(("util", "utils"), SimpleNamespace(tempdir=TempDirectory)),
    "pickle_memoize": SimpleNamespace(memoize=memoize),
    **dict.fromkeys(("cblas", "cublas", "mkl", "dnnl", "rocblas"), _LIBRARY),
    "nvcc": SimpleNamespace(
        **dict.fromkeys(("have_fp16", "have_bf16", "have_int8", "have_tensorcore"), _there)
    ),
}


def __getattr__(name: str) -> Any:
    """A module of it."""
    if name.startswith("__"):
        raise AttributeError(f"module 'tedsl.tvm.contrib' has no attribute {name!r}")
    if name in _MODULES:
        return _MODULES[name]
    return Absent(f"contrib.{name}", f"there is none: {_OTHERWISE}")
