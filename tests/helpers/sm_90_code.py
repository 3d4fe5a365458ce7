"""PTX and cubins for sm_90 as instructions."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tedsl.backends.triton.compile.offline import tool


def assembly(cubin: bytes, folder: Path) -> str:
    """The instructions of a cubin."""
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    nvdisasm = tool("nvdisasm")
    if nvdisasm is None:
        pytest.skip("Triton's wheel has no nvdisasm")
    return subprocess.run([nvdisasm, "-c", path], capture_output=True, text=True, check=True).stdout


def assembled(ptx: str, folder: Path) -> str:
    """The instructions that ptxas makes of PTX for sm_90."""
    path, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
    path.write_text(ptx)
    ptxas = tool("ptxas")
    assert ptxas is not None
    subprocess.run([ptxas, "--gpu-name=sm_90a", "-O3", path, "-o", cubin], check=True)
    return assembly(cubin.read_bytes(), folder)
