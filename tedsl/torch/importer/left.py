"""Operators that are left to PyTorch on purpose, and why; the others simply have no converter.

Read by the table of the documentation and by reports.
"""

from __future__ import annotations

from tedsl.torch.lib import aten

_COUNT = "counts at places that are data, among as many as the data say"
_SORT = "sorts: no tensor expression has the order of data"
_RANDOM = "draws random numbers, whose bits are those of PyTorch's generator"
_LINEAR = "factorises or solves: a library"
_SHAPE = "the shape of its result depends on data"
_FUNCTION = "no function of the language"
_SIGN = "no operator of the language takes the sign of a NaN"
_BITS = "no operator of the language takes the bits of a float"
_FOURIER = "Fourier transforms: complex numbers, and a library"
_COMPLEX = "complex numbers"
_FUSED = "a fused library kernel; `tedsl.torch.trace` writes it as products and a softmax"
_BAGS = "bags that begin where the data say, with tables of them among the results"
_SPREADS = "adds at places that are data"
_STEPS = "steps whose number depends on data"


def _each(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


LEFT: dict[str, str] = {
    **_each(_COUNT, "histc bincount"),
    **_each(_SORT, "sort kthvalue median nanmedian mode unique_dim _unique2 unique_consecutive"),
    **_each(
        _RANDOM,
        "bernoulli cauchy exponential geometric log_normal multinomial native_dropout normal "
        "normal_functional rand rand_like randint randint_like randn randn_like randperm "
        "rrelu_with_noise uniform",
    ),
    **_each(
        _LINEAR,
        "_linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex _linalg_svd cholesky "
        "linalg_cholesky_ex linalg_eig linalg_inv_ex linalg_lu_factor_ex linalg_qr "
        "linalg_solve_triangular linalg_matrix_exp",
    ),
    **_each(_SHAPE, "nonzero nonzero_static masked_select _ctc_loss repeat_interleave"),
    **_each(_FOURIER, "_fft_r2c _fft_c2c _fft_c2r"),
    **_each(_COMPLEX, "complex polar view_as_complex view_as_real"),
    **_each(
        _FUNCTION,
        "erfinv lgamma digamma polygamma igamma igammac i0 special_erfcx special_i0e special_i1 "
        "special_i1e special_ndtri special_zeta",
    ),
    **_each(_SIGN, "copysign signbit"),
    **_each(_BITS, "nextafter frexp hash_tensor"),
    **_each(_STEPS, "gcd lcm segment_reduce"),
    **_each(
        _FUSED,
        "_scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_flash_attention "
        "_scaled_dot_product_flash_attention_backward _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_cudnn_attention_backward",
    ),
    "convolution_backward": "a library is faster",
    "erfc": "no function of the language has its small values",
    **_each(_BAGS, "_embedding_bag _embedding_bag_forward_only"),
    **_each(_SPREADS, "grid_sampler_2d_backward grid_sampler_3d_backward"),
    "embedding_renorm": "changes the table that it reads",
    "fractional_max_pool2d": "windows at places that are drawn",
    "fractional_max_pool3d": "windows at places that are drawn",
}
"""From the name of an operator of ATen to the reason."""


def left_reason(target: object) -> str:
    """Why an operator without a converter is PyTorch's."""
    packet = getattr(target, "overloadpacket", None)
    name = str(getattr(packet, "__name__", ""))
    if hasattr(aten, name) and name in LEFT:
        return LEFT[name]
    return "no converter"
