"""Operators that are left to PyTorch on purpose, and why; the others simply have no converter.

Read by the table of the documentation and by reports.
"""

from __future__ import annotations

from tedsl.torch.lib import aten

_SCATTER = "writes at places that are data: several may meet in one"
_SORT = "sorts: no tensor expression has the order of data"
_RANDOM = "draws random numbers, whose bits are those of PyTorch's generator"
_LINEAR = "factorises or solves: a library"
_SHAPE = "the shape of its result depends on data"

LEFT: dict[str, str] = {
    **dict.fromkeys(
        (
            "index_put",
            "_unsafe_index_put",
            "index_add",
            "index_reduce",
            "scatter_add",
            "scatter_reduce",
            "embedding_dense_backward",
            "masked_scatter",
            "put",
            "histc",
            "bincount",
        ),
        _SCATTER,
    ),
    **dict.fromkeys(
        ("sort", "topk", "kthvalue", "median", "nanmedian", "mode", "unique_dim", "_unique2"),
        _SORT,
    ),
    **dict.fromkeys(
        (
            "bernoulli",
            "exponential",
            "geometric",
            "multinomial",
            "native_dropout",
            "normal",
            "normal_functional",
            "rand",
            "rand_like",
            "randint",
            "randint_like",
            "randn",
            "randn_like",
            "randperm",
            "rrelu_with_noise",
        ),
        _RANDOM,
    ),
    **dict.fromkeys(
        (
            "_linalg_det",
            "_linalg_eigh",
            "_linalg_slogdet",
            "_linalg_solve_ex",
            "_linalg_svd",
            "cholesky",
            "linalg_cholesky_ex",
            "linalg_eig",
            "linalg_inv_ex",
            "linalg_lu_factor_ex",
            "linalg_qr",
            "linalg_solve_triangular",
            "linalg_matrix_exp",
        ),
        _LINEAR,
    ),
    **dict.fromkeys(("nonzero", "masked_select", "_ctc_loss"), _SHAPE),
    "_fft_r2c": "Fourier transforms: complex numbers, and a library",
    "_fft_c2c": "Fourier transforms: complex numbers, and a library",
    "_fft_c2r": "Fourier transforms: complex numbers, and a library",
    "_scaled_dot_product_flash_attention_for_cpu": "a fused library kernel",
    "convolution_backward": "a library is faster",
    "max_pool2d_with_indices_backward": "adds at places that are data",
    "addbmm": "a library is faster",
    "grid_sampler_2d": "its expression takes seconds to compile",
    "grid_sampler_3d": "its expression takes seconds to compile",
    "upsample_trilinear3d": "its expression takes seconds to compile",
    "erfc": "no function of the language has its small values",
    "erfinv": "no function of the language",
    "lgamma": "no function of the language",
    "digamma": "no function of the language",
    "polygamma": "no function of the language",
    "i0": "no function of the language",
    "copysign": "no operator of the language takes the sign of a NaN",
    "signbit": "no operator of the language takes the sign of a NaN",
    "nextafter": "no operator of the language takes the bits of a float",
    "cummax": "keeps places along a scan: not said yet",
    "cummin": "keeps places along a scan: not said yet",
    "logcumsumexp": "a scan of pairs: not said yet",
}
"""From the name of an operator of ATen to the reason."""


def left_reason(target: object) -> str:
    """Why an operator without a converter is PyTorch's."""
    packet = getattr(target, "overloadpacket", None)
    name = str(getattr(packet, "__name__", ""))
    if hasattr(aten, name) and name in LEFT:
        return LEFT[name]
    return "no converter"
