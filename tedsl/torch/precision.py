"""PyTorch's settings of the precision of float32 products on NVIDIA GPUs.  Imports `lib`."""

from __future__ import annotations

from tedsl.torch.lib import torch


def rounds(convolution: bool) -> bool:
    """True where the factors of float32 products may be rounded to TF32: of convolutions
    (`torch.backends.cudnn`, by default) or of other products (`torch.backends.cuda.matmul`,
    `torch.set_float32_matmul_precision`, not by default)."""
    if convolution:
        return bool(torch.backends.cudnn.allow_tf32)
    return bool(torch.get_float32_matmul_precision() != "highest")


def settings() -> str:
    """The settings, of which other kernels come."""
    return f"tf32 {rounds(True)} {rounds(False)}"
