"""Functions written outside of the language, and how they are called on host memory.

What `te.extern` calls: a Python function of NumPy arrays or PyTorch tensors, a C function, or a
Triton kernel given as text.  Imports nothing of tedsl but `dtypes` and `errors`; PyTorch is loaded
when a function of its tensors is called.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from tedsl.errors import BackendError, ExprError

Call: TypeAlias = Callable[[Sequence[Any], Sequence[Any]], Any]
_C_FUNCTION: type = ctypes.CFUNCTYPE(None).__mro__[1]  # what every ctypes function pointer is
_INT64 = np.dtype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class PythonFunction:
    """`call(ins, outs)` on arrays: of NumPy, or of PyTorch when `torch`."""

    call: Call
    torch: bool
    label: str

    @property
    def fingerprint(self) -> str:
        """No generated code depends on it."""
        return f"Python function of {'torch' if self.torch else 'numpy'}"


@dataclass(frozen=True, slots=True, eq=False)
class CFunction:
    """`int32_t f(void **arrays, const int64_t *shape)` at an address.

    `arrays` are the addresses of the inputs, then of the outputs, row-major; `shape` is all their
    extents in the same order, one array's after the other's.  A result other than 0 is an error.
    `keep` is what must live as long as the address is used.
    """

    address: int
    label: str
    keep: object = None

    @property
    def fingerprint(self) -> str:
        """No generated code depends on it."""
        return "C function"


@dataclass(frozen=True, slots=True, eq=False)
class TritonKernel:
    """The text of a `@triton.jit` function and the grid it is launched on.

    Its parameters are a pointer for each input, one for each output, then runtime sizes by their
    names: `params`, without those that have a default.
    """

    source: str
    name: str
    grid: tuple[Any, ...]
    params: tuple[str, ...]
    num_warps: int | None = None
    num_stages: int | None = None

    @property
    def label(self) -> str:
        """The name of the function."""
        return self.name


Foreign: TypeAlias = PythonFunction | CFunction | TritonKernel


def torch_function(call: Call) -> PythonFunction:
    """A function of PyTorch tensors for `te.extern`.

    Args:
        call: takes `(ins, outs)`, tuples of tensors, on the GPU at PyTorch's current stream; fills
            `outs` in place, or returns what they are to hold.
    """
    return PythonFunction(_callable("torch_function", call), True, _label(call))


def c_function(pointer: Any, name: str = "") -> CFunction:
    """A C function for `te.extern`, `int32_t f(void **arrays, const int64_t *shape)`.

    Args:
        pointer: a ctypes function pointer, or an address (of cffi:
            `int(ffi.cast("uintptr_t", f))`); whoever made the address keeps the code alive.
        name: what it prints as.

    `arrays` are the addresses of the inputs, then of the outputs, all row-major; `shape` is their
    extents in the same order, one array's after the other's.  It returns 0, or the number of an
    error.
    """
    if isinstance(pointer, _C_FUNCTION):
        address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
        return CFunction(address, name or _c_name(pointer), pointer)
    if isinstance(pointer, int) and not isinstance(pointer, bool) and pointer > 0:
        return CFunction(pointer, name or "C function")
    raise ExprError(
        f"{pointer!r} is no C function",
        subject="c_function",
        facts=[("allowed", "a ctypes function pointer, or an address as an int above 0")],
        hint="ctypes.CFUNCTYPE(...)(f), library.f, or engine.get_function_address(name)",
    )


def triton_kernel(
    source: str,
    grid: Any,
    name: str | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
) -> TritonKernel:
    """A Triton kernel for `te.extern(..., gpu=)`.

    Args:
        source: the text of a `@triton.jit` function, and of functions that it calls.  Its
            parameters are a pointer for each input, one for each output, then runtime sizes by
            their names; parameters with a default (`BLOCK: tl.constexpr = 128`) keep it.
        grid: one to three extents, ints or expressions over sizes.
        name: which function of the text is the kernel; by default its last one.
        num_warps: launch option.
        num_stages: launch option.
    """
    extents = _listed(grid)
    if not 1 <= len(extents) <= 3:
        raise _kernel_error("the grid has not 1 to 3 extents", "give grid=(n,) or (n, m)")
    try:
        module = ast.parse(source)
    except SyntaxError as error:
        raise _kernel_error(
            f"the text of the kernel is no Python: {error}", "give it without indentation"
        ) from error
    found = {each.name: each for each in module.body if isinstance(each, ast.FunctionDef)}
    jitted = [each for each in found.values() if any(map(_is_jit, each.decorator_list))]
    chosen = found.get(name) if name is not None else (jitted[-1] if jitted else None)
    if chosen is None or not any(chosen is each for each in jitted):
        which = "" if name is None else f" {name!r}"
        raise _kernel_error(
            f"the text has no @triton.jit function{which}",
            'give the text of one: "@triton.jit\\ndef f(...): ..."',
        )
    given = chosen.args
    if given.vararg or given.kwarg or given.kwonlyargs:
        raise _kernel_error(f"{chosen.name} has * parameters", "give each parameter a name")
    plain = [each.arg for each in (*given.posonlyargs, *given.args)]
    needed = tuple(plain[: len(plain) - len(given.defaults)])
    text = source.strip("\n") + "\n"
    return TritonKernel(text, chosen.name, extents, needed, num_warps, num_stages)


def _listed(given: object) -> tuple[Any, ...]:
    """What was given, as a tuple."""
    return tuple(cast("Sequence[Any]", given if isinstance(given, (tuple, list)) else (given,)))


def _is_jit(decorator: ast.expr) -> bool:
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(target) in ("triton.jit", "jit")


def _kernel_error(reason: str, hint: str) -> ExprError:
    return ExprError(reason, subject="triton_kernel", hint=hint)


def as_foreign(subject: str, function: object) -> PythonFunction | CFunction:
    """What `fcompute` of `te.extern` stands for."""
    if isinstance(function, (PythonFunction, CFunction)):
        return function
    if isinstance(function, _C_FUNCTION):
        return c_function(function)
    if isinstance(function, TritonKernel):
        raise ExprError(
            f"the Triton kernel {function.name} was given as fcompute",
            subject=subject,
            hint="give it as gpu=, and as fcompute a function of NumPy arrays that does the same: "
            "it runs on the CPU, and is what results are compared with",
        )
    call = _callable(subject, function)
    _check_no_statement(subject, call)
    return PythonFunction(call, False, _label(call))


_STATEMENTS = frozenset({"call_extern", "call_intrin", "ir_builder"})


def _callable(subject: str, function: object) -> Call:
    if not callable(function):
        raise ExprError(
            f"{function!r} is no function",
            subject=subject,
            facts=[("allowed", "a Python function (ins, outs), te.c_function, te.torch_function")],
            hint="lambda ins, outs: np.sort(ins[0]), or def f(ins, outs): outs[0][...] = ...",
        )
    return cast("Call", function)


def _check_no_statement(subject: str, call: Call) -> None:
    """Refuse TVM's functions that build statements: nothing here would run them."""
    code: Any = getattr(call, "__code__", None)
    used = _STATEMENTS.intersection(getattr(code, "co_names", ()))
    if not used:
        return
    raise ExprError(
        f"fcompute builds statements ({', '.join(sorted(used))}); here it is called when the "
        "kernel runs, on arrays",
        subject=subject,
        hint="call a Python function: def f(ins, outs): outs[0][...] = ...; a C function is "
        "te.c_function(address); loops of ir_builder are te.compute or te.scan, or a Triton kernel "
        "as gpu=te.triton_kernel(source, grid)",
    )


def _label(call: object) -> str:
    name = getattr(call, "__qualname__", None) or type(call).__qualname__
    return str(name).rsplit(".", 1)[-1]


def _c_name(pointer: object) -> str:
    return str(getattr(pointer, "__name__", None) or "C function")


class Named:
    """A block in which errors say which extern they come from."""

    def __init__(self, name: str, label: str) -> None:
        self._note = f"in the extern {name}, which calls {label}"

    def __enter__(self) -> Named:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: object
    ) -> None:
        if error is not None and self._note not in getattr(error, "__notes__", ()):
            error.add_note(self._note)


def run_on_host(function: Foreign, name: str, ins: Sequence[Any], outs: Sequence[Any]) -> None:
    """Call `function` of the extern `name` on NumPy arrays: row-major, inputs read-only.

    Raises:
        BackendError: a C function that failed, results that do not fit, or a kernel of the GPU.
    """
    match function:
        case PythonFunction(torch=False):
            run_on_arrays(function, name, tuple(map(_read_only, ins)), tuple(outs))
        case PythonFunction():
            run_on_arrays(function, name, tuple(map(_tensor, ins)), tuple(map(_tensor, outs)))
        case CFunction(address=address):
            _run_c(address, f"extern {name}", function.label, ins, outs)
        case TritonKernel():
            raise BackendError(f"the Triton kernel {function.name} cannot run on the host")


def run_on_arrays(
    function: PythonFunction, name: str, ins: tuple[Any, ...], outs: tuple[Any, ...]
) -> None:
    """Call a Python function on arrays of its kind; what it returns goes to the outputs.

    Raises:
        BackendError: results that do not fit.
    """
    with Named(name, function.label):
        results = function.call(ins, outs)
    if results is None:
        return
    given = _listed(results)
    _check_results(function, name, given, outs)
    for out, result in zip(outs, given, strict=True):
        if result is not out:
            out[...] = result


def _check_results(
    function: PythonFunction, name: str, given: tuple[Any, ...], outs: tuple[Any, ...]
) -> None:
    subject = f"extern {name}, which calls {function.label}"
    hint = "fill the outputs in place (outs[0][...] = ...) and return nothing, or return arrays of "
    hint += "exactly these types"
    allowed = ", ".join(map(_type_text, outs))
    if not all(hasattr(each, "shape") and hasattr(each, "dtype") for each in given):
        shown = ", ".join(type(each).__name__ for each in given)
        raise BackendError(
            f"the function returned {shown}",
            subject=subject,
            facts=[("allowed", f"nothing, or {allowed}")],
            hint=f"{hint}; statements of TVM's IR are not run",
        )
    if len(given) != len(outs) or any(map(_differ, given, outs)):
        raise BackendError(
            f"the function returned {', '.join(map(_type_text, given))}",
            subject=subject,
            facts=[("allowed", allowed)],
            hint=hint,
        )


def _differ(a: Any, b: Any) -> bool:
    return tuple(a.shape) != tuple(b.shape) or a.dtype != b.dtype


def _type_text(array: Any) -> str:
    dtype = str(array.dtype).removeprefix("torch.")
    return f"{dtype}[{', '.join(map(str, array.shape))}]"


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _tensor(array: Any) -> Any:
    """A PyTorch tensor over the memory of a NumPy array."""
    torch = importlib.import_module("torch")
    flat = array.reshape(-1).view(np.uint8)
    if not flat.flags.writeable:
        flat = flat.copy()  # PyTorch has no read-only tensors
    dtype = getattr(torch, array.dtype.name)
    return torch.from_numpy(flat).view(dtype).reshape(array.shape)


def _run_c(address: int, subject: str, label: str, ins: Sequence[Any], outs: Sequence[Any]) -> None:
    arrays = [array if array.flags.c_contiguous else array.copy() for array in (*ins, *outs)]
    extents = np.array([n for array in arrays for n in array.shape] or [0], _INT64)
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    run = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)(address)
    status = run(ctypes.addressof(pointers), extents.ctypes.data)
    if status:
        raise BackendError(
            f"the C function {label} returned {status}",
            subject=subject,
            hint="0 means that it succeeded; other numbers are its own",
        )
