"""tedsl: tensor expressions, schedules for them, and kernels for the CPU and the GPU.

`import tedsl as te` gives the names of TVM's tensor expressions.  Only public names live here.
"""

import importlib
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tedsl import counterparts, errors, slips
from tedsl.autotune import autotune, space
from tedsl.build import build, lower, schedule_for
from tedsl.checking.checked import checked
from tedsl.dtypes import DType
from tedsl.errors import (
    BackendError,
    ExprError,
    InternalError,
    LowerError,
    ScheduleError,
    TedslError,
    TuneError,
)
from tedsl.expr.build import const
from tedsl.expr.nodes import Axis, Expr, Var
from tedsl.expr.visit import structural_equal
from tedsl.scheduling.handles.auto import auto
from tedsl.scheduling.handles.schedule import Schedule, create_schedule, diff
from tedsl.scheduling.handles.stage import Stage
from tedsl.scheduling.handles.thread_axis import program_id, thread_axis
from tedsl.scheduling.trace.trace import Trace
from tedsl.target import Target
from tedsl.tensor.axis import reduce_axis, size_var, var
from tedsl.tensor.compute import compute, placeholder
from tedsl.tensor.math import (
    abs,
    acos,
    acosh,
    add,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    bits,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cast,
    ceil,
    clip,
    cos,
    cosh,
    div,
    divide,
    equal,
    erf,
    exp,
    exp2,
    exp10,
    expm1,
    floor,
    floordiv,
    floormod,
    fmod,
    greater,
    greater_equal,
    if_then_else,
    indexdiv,
    indexmod,
    isfinite,
    isinf,
    isnan,
    left_shift,
    less,
    less_equal,
    log,
    log1p,
    log2,
    log10,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    multiply,
    nearbyint,
    negative,
    not_equal,
    popcount,
    pow,
    power,
    reinterpret,
    relu,
    right_shift,
    round,
    rsqrt,
    select,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    sqrt,
    subtract,
    tan,
    tanh,
    trunc,
    truncdiv,
    truncmod,
    where,
)
from tedsl.tensor.reduce import all, any, comm_reducer, max, min, prod, sum
from tedsl.tensor.signatures import explained
from tedsl.tensor.tags import tag_scope
from tedsl.tensor.tensor import Tensor

if TYPE_CHECKING:
    __version__: str
    from tedsl import nn, runtime
    from tedsl.autotune.frontend import sizes
    from tedsl.checking.minimise import minimise
    from tedsl.explaining.chart import roofline
    from tedsl.explaining.explain import explain
    from tedsl.expr.limits import infinity, max_value, min_value
    from tedsl.gradient.api import gradient
    from tedsl.nn.positions import argmax, argmin
    from tedsl.reference.reference import evaluate
    from tedsl.retarget import replay
    from tedsl.runtime.kernel import Kernel
    from tedsl.scheduling.handles import tvm_schedule as schedule
    from tedsl.tensor.extern import extern
    from tedsl.tensor.foreign import c_function, torch_function, triton_kernel
    from tedsl.tensor.intrin import decl_tensor_intrin, llvm_function, triton_snippet
    from tedsl.tensor.scan import scan
    from tedsl.tvm.refused_names import create_prim_func, extern_primfunc, hybrid

__all__ = [
    "Axis",
    "BackendError",
    "DType",
    "Expr",
    "ExprError",
    "InternalError",
    "Kernel",
    "LowerError",
    "Schedule",
    "ScheduleError",
    "Stage",
    "Target",
    "TedslError",
    "Tensor",
    "Trace",
    "TuneError",
    "Var",
    "abs",
    "acos",
    "acosh",
    "add",
    "all",
    "any",
    "argmax",
    "argmin",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "auto",
    "autotune",
    "bits",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "build",
    "c_function",
    "cast",
    "ceil",
    "checked",
    "clip",
    "comm_reducer",
    "compute",
    "const",
    "cos",
    "cosh",
    "create_prim_func",
    "create_schedule",
    "decl_tensor_intrin",
    "diff",
    "div",
    "divide",
    "equal",
    "erf",
    "errors",
    "evaluate",
    "exp",
    "exp2",
    "exp10",
    "explain",
    "expm1",
    "extern",
    "extern_primfunc",
    "floor",
    "floordiv",
    "floormod",
    "fmod",
    "gradient",
    "greater",
    "greater_equal",
    "hybrid",
    "if_then_else",
    "indexdiv",
    "indexmod",
    "infinity",
    "isfinite",
    "isinf",
    "isnan",
    "left_shift",
    "less",
    "less_equal",
    "llvm_function",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_and",
    "logical_not",
    "logical_or",
    "lower",
    "max",
    "max_value",
    "maximum",
    "min",
    "min_value",
    "minimise",
    "minimum",
    "multiply",
    "nearbyint",
    "negative",
    "nn",
    "not_equal",
    "placeholder",
    "popcount",
    "pow",
    "power",
    "prod",
    "program_id",
    "reduce_axis",
    "reinterpret",
    "relu",
    "replay",
    "right_shift",
    "roofline",
    "round",
    "rsqrt",
    "runtime",
    "scan",
    "schedule",
    "schedule_for",
    "select",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "size_var",
    "sizes",
    "space",
    "sqrt",
    "structural_equal",
    "subtract",
    "sum",
    "tag_scope",
    "tan",
    "tanh",
    "thread_axis",
    "torch_function",
    "triton_kernel",
    "triton_snippet",
    "trunc",
    "truncdiv",
    "truncmod",
    "var",
    "where",
]

float16, bfloat16, float32, float64 = DType.float16, DType.bfloat16, DType.float32, DType.float64
float8_e4m3fn, float8_e5m2 = DType.float8_e4m3fn, DType.float8_e5m2
int8, int16, int32, int64 = DType.int8, DType.int16, DType.int32, DType.int64
uint8, uint16, uint32, uint64 = DType.uint8, DType.uint16, DType.uint32, DType.uint64

_LATE = {
    "Kernel": "tedsl.runtime.kernel:Kernel",
    "argmax": "tedsl.nn.positions:argmax",
    "argmin": "tedsl.nn.positions:argmin",
    "c_function": "tedsl.tensor.foreign:c_function",
    "create_prim_func": "tedsl.tvm.refused_names:create_prim_func",
    "decl_tensor_intrin": "tedsl.tensor.intrin:decl_tensor_intrin",
    "evaluate": "tedsl.reference.reference:evaluate",
    "explain": "tedsl.explaining.explain:explain",
    "extern": "tedsl.tensor.extern:extern",
    "extern_primfunc": "tedsl.tvm.refused_names:extern_primfunc",
    "gradient": "tedsl.gradient.api:gradient",
    "hybrid": "tedsl.tvm.refused_names:hybrid",
    "infinity": "tedsl.expr.limits:infinity",
    "llvm_function": "tedsl.tensor.intrin:llvm_function",
    "max_value": "tedsl.expr.limits:max_value",
    "minimise": "tedsl.checking.minimise:minimise",
    "min_value": "tedsl.expr.limits:min_value",
    "nn": "tedsl.nn",
    "replay": "tedsl.retarget:replay",
    "roofline": "tedsl.explaining.chart:roofline",
    "runtime": "tedsl.runtime",
    "scan": "tedsl.tensor.scan:scan",
    "schedule": "tedsl.scheduling.handles.tvm_schedule",
    "sizes": "tedsl.autotune.frontend.sizes",
    "torch_function": "tedsl.tensor.foreign:torch_function",
    "triton_kernel": "tedsl.tensor.foreign:triton_kernel",
    "triton_snippet": "tedsl.tensor.intrin:triton_snippet",
}
"""Public names that a first script does not use: where each is, loaded when first asked for."""

if not TYPE_CHECKING:  # a type checker knows the names there are

    def _exported(name: str, function: FunctionType) -> FunctionType:
        """The function as users have it: `pickle` and `help` find it under its public name."""
        made = explained(function)
        made.__module__, made.__qualname__ = __name__, name
        return made

    importlib.import_module("tedsl.gradient")  # loaded once: the name is then the function's
    del globals()["gradient"]

    for _name in __all__:
        if isinstance(globals().get(_name), FunctionType):
            globals()[_name] = _exported(_name, globals()[_name])

    def __getattr__(name: str) -> Any:
        """Load a name of `_LATE`; refuse others with what was meant, or stands for them here."""
        places = _LATE if name in _LATE else counterparts.PLACES
        if name in places:
            module, _, attribute = places[name].partition(":")
            loaded = importlib.import_module(module)
            value = getattr(loaded, attribute) if attribute else loaded
            is_function = isinstance(value, FunctionType)
            globals()[name] = _exported(name, value) if is_function else value
            return globals()[name]
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("tedsl")
        if name.startswith("_"):
            raise AttributeError(f"module 'tedsl' has no attribute {name!r}")
        operators = importlib.import_module("tedsl.nn").__all__
        known = [*__all__, *(f"nn.{each}" for each in operators if each not in __all__)]
        told = {**slips.TENSOR, **counterparts.PACKAGE}
        other = "dir(te) lists what there is; what a function computes is written as te.compute"
        listed = [f"te.{each}" for each in known]
        raise slips.no_attribute("tedsl", name, lambda: listed, told, otherwise=other)

    def __dir__() -> list[str]:
        """The public names, loaded or not, those of types, and what every module has."""
        own = [n for n, value in globals().items() if n[:2] == "__" or isinstance(value, DType)]
        return sorted({*own, *__all__})
