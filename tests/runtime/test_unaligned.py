"""Arrays that begin at any of their elements, as slices and views do, are computed with."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from red_zones import displaced

import tedsl as te
from tedsl.dtypes import DType
from tedsl.errors import BackendError

pytestmark = pytest.mark.cpu
PROGRAM = Path(__file__).parents[1] / "helpers" / "unaligned_calls.py"
GROUPS = [
    ["float32", "bool", "int8", "uint8"],
    ["float16", "bfloat16", "int16", "uint16"],
    ["float64", "int64", "uint64"],
    ["int32", "uint32", "float8_e4m3fn", "float8_e5m2"],
    ["threads"],
]


def test_every_dtype_is_in_a_group() -> None:
    assert {d.value for d in DType} == {name for group in GROUPS for name in group} - {"threads"}


@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_arrays_may_begin_at_any_element(names: list[str]) -> None:
    """In a process of its own: an access that asks for more alignment ends it."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *names], capture_output=True, text=True, timeout=280
    )
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr[-2000:]


def copy_of(n: int, dtype: str = "float32") -> te.Kernel:
    a = te.placeholder((n,), dtype, name="A")
    return te.build(te.compute((n,), lambda i: a[i] + 1, name="B"), target="cpu")


def test_generated_code_asks_for_the_alignment_of_elements() -> None:
    """What crashed in a process is told from the text too."""
    source = copy_of(100).source
    assert "align 4 %" in source and "align 16 %" not in source


def test_between_elements_is_refused() -> None:
    """What is not even at an element is told apart, also after a call that was right."""
    kernel = copy_of(4)
    kernel(np.zeros(4, np.float32))
    odd = np.frombuffer(bytes(21), np.uint8)[1:17].view(np.float32)
    with pytest.raises(BackendError, match=r"is not aligned: [^?]*multiple of 4 bytes"):
        kernel(odd)
    kernel(np.array(odd))


class _Shifted:
    """An array whose capsule says so many bytes of offset, as some libraries' do."""

    def __init__(self, array: np.ndarray, offset: int) -> None:
        self.array, self.offset = array, offset

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> object:
        capsule = self.array.__dlpack__()
        read = ctypes.pythonapi.PyCapsule_GetPointer
        read.restype, read.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        at: Any = read(capsule, b"dltensor")
        ctypes.c_uint64.from_address(at + 40).value = self.offset
        return capsule


def test_an_offset_in_bytes_of_dlpack_counts() -> None:
    data = displaced(np.arange(12, dtype=np.float32), 0)
    kernel = copy_of(6)
    for first in range(6):
        got = kernel(_Shifted(data[:6], 4 * first))
        np.testing.assert_array_equal(got, data[first : first + 6] + 1)
    with pytest.raises(BackendError, match=r"is not aligned: [^?]*multiple of 4 bytes"):
        kernel(_Shifted(data[:6], 2))


def test_views_of_pytorch_tensors() -> None:
    torch = pytest.importorskip("torch")
    a = te.placeholder((4, 100), "float32", name="A")
    kernel = te.build(te.nn.softmax(a), target="cpu")
    long = torch.rand(420)
    for first in range(18):
        view, out = long[first : first + 400].reshape(4, 100), torch.empty(420)[first + 1 :]
        out = out[:400].reshape(4, 100)
        assert kernel(view, out=out) is out
        np.testing.assert_allclose(out.numpy(), torch.softmax(view, 1).numpy(), rtol=1e-5)
