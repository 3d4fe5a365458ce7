"""The public names by subject, in the order in which a reader meets them.

`tests/tutorials/test_site.py` asks that every public name stands here exactly once.
"""

from __future__ import annotations

LANGUAGE = {
    "Tensors and definitions": (
        "placeholder compute reduce_axis var size_var const cast tag_scope Tensor Axis Var Expr "
        "DType"
    ),
    "Reductions": "sum prod max min all any argmax argmin comm_reducer",
    "Scans": "scan",
    "Conditions": (
        "if_then_else where select equal not_equal less less_equal greater greater_equal "
        "logical_and logical_or logical_not"
    ),
    "Arithmetic": (
        "add subtract multiply divide div floordiv floormod truncdiv truncmod negative abs sign "
        "pow power maximum minimum clip floor ceil round trunc nearbyint fmod "
        "indexdiv indexmod"
    ),
    "Functions": (
        "exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan atan2 "
        "sinh cosh tanh asinh acosh atanh erf sigmoid relu silu"
    ),
    "Bits": "bitwise_and bitwise_or bitwise_xor bitwise_not left_shift right_shift popcount bits "
    "reinterpret",
    "Limits of a type": "min_value max_value infinity isnan isinf isfinite",
    "Code of your own": (
        "extern triton_kernel c_function torch_function decl_tensor_intrin llvm_function "
        "triton_snippet"
    ),
    "Derivatives and meaning": "gradient evaluate structural_equal",
}
RUNNING = {
    "Building": "build lower Target Kernel runtime",
    "Schedules": (
        "create_schedule schedule_for Schedule Stage auto thread_axis program_id Trace replay diff "
        "schedule"
    ),
    "Searching": "autotune space sizes",
    "Looking": "explain roofline checked minimise",
    "Errors": (
        "TedslError ExprError ScheduleError LowerError BackendError TuneError InternalError errors"
    ),
    "Names of TVM that are answered, not taken": "create_prim_func extern_primfunc hybrid",
    "Operators": "nn",
}
