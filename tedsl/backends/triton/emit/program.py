"""The product of the Triton backend: one source file and, per kernel, how to call it.

Pure data; knows neither Triton nor PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from tedsl.dtypes import DType
from tedsl.errors import BackendError, InternalError
from tedsl.expr.nodes import Expr, Var
from tedsl.index.evaluate import EvaluationError, evaluate_int
from tedsl.ir.nodes import Buffer, HostCall, Launch, Module
from tedsl.ir.printer import print_expr
from tedsl.target import Target

ALIGNMENT = 16
GRID_LIMITS = (2**31 - 1, 65535, 65535)
DEFAULT_STAGES = 3


class Sort(StrEnum):
    """What Triton's launcher looks at in an integer argument: each sort is compiled anew."""

    ONE = "1"
    DIVISIBLE = "d"
    PLAIN = "p"
    COUNTED = "c"


def sort_of(value: int) -> Sort:
    """The sort of a size, of those that fit in 32 bits and of those that do not."""
    if value == 1:
        return Sort.ONE
    return Sort.PLAIN if value % ALIGNMENT else Sort.DIVISIBLE


def sorts_of(sizes: Mapping[str, int]) -> str:
    """The sorts of all sizes: what Triton compiles at some sizes serves all others of these."""
    wide = (("w" if value >= 2**31 else "") + sort_of(value) for _, value in sorted(sizes.items()))
    return "".join(wide)


class ParamKind(StrEnum):
    """What a kernel parameter is."""

    POINTER = "pointer"
    SIZE = "size"
    DESCRIPTOR = "descriptor"


@dataclass(frozen=True, slots=True, eq=False)
class Param:
    """One parameter of a kernel, in order.

    POINTER: the address of `buffer`.  SIZE: the value of `var`.  DESCRIPTOR: a tensor descriptor
    of `buffer` with blocks of `block` elements (its base must be 16-byte aligned).
    `as_bytes`: the text takes elements of 8 bits as uint8.
    """

    kind: ParamKind
    name: str
    buffer: Buffer | None = None
    var: Var | None = None
    block: tuple[int, ...] = ()
    as_bytes: bool = False

    @property
    def element(self) -> DType:
        """The element type that the text takes an address to be of.

        Requires: the parameter has a buffer.
        """
        if self.buffer is None:
            raise InternalError(f"parameter {self.name!r} has no elements")
        return DType.uint8 if self.as_bytes else self.buffer.dtype


@dataclass(frozen=True, slots=True, eq=False)
class KernelSpec:
    """One kernel of a program.

    `grid` has one to three extents over the sizes.  `spans` are expressions that must stay below
    2**31: the farthest element from its program's base that a 32-bit offset has to reach.
    `assumptions` are conditions on the sizes that the text relies on; `when` is one that decides
    whether the kernel is launched.
    A `cooperative` one has grid barriers: all of its programs must be resident at once.
    With a `call` it is no kernel: a function of the host is called in its place.
    `func` is what the module calls it, and `title` what it is called among the kernels of the
    program: `name` is the function in the text, which kernels that are one but for names share.
    """

    name: str
    params: tuple[Param, ...]
    grid: tuple[Expr, ...]
    launch: Launch
    spans: tuple[Expr, ...] = ()
    assumptions: tuple[Expr, ...] = ()
    when: Expr | None = None
    call: HostCall | None = None
    cooperative: bool = False
    func: str = ""
    title: str = ""

    @property
    def num_warps(self) -> int:
        """Warps per program."""
        return self.launch.warps

    def on(self, buffers: Mapping[Buffer, Buffer], func: str, title: str) -> KernelSpec:
        """The launch of the same function for another kernel, on other buffers."""
        params = [
            param if param.buffer is None else replace(param, buffer=buffers[param.buffer])
            for param in self.params
        ]
        return replace(self, params=tuple(params), func=func, title=title)

    def options(self) -> dict[str, int]:
        """Launch options for Triton; those left to its defaults are absent."""
        known = {
            "num_warps": self.num_warps,
            "enable_fp_fusion": True,
            "num_stages": self.launch.num_stages,
            "num_ctas": self.launch.num_ctas,
            "maxnreg": self.launch.maxnreg,
            "launch_cooperative_grid": True if self.cooperative else None,
        }
        return {name: value for name, value in known.items() if value is not None}

    def grid_for(self, sizes: Mapping[Var, int | float]) -> tuple[int, int, int]:
        """The grid of one call.  A 0 in it means that there is nothing to run.

        Raises:
            BackendError: an assumption does not hold, an extent is beyond what the device can
                launch, or an offset beyond 32 bits.
        """
        if self.when is not None and not evaluate(self.when, sizes):
            return (0, 1, 1)
        for condition in self.assumptions:
            if not evaluate(condition, sizes):
                raise BackendError(
                    f"kernel {self.name} was made for sizes with {print_expr(condition)}",
                    facts=[("given", ", ".join(f"{v.name} = {n}" for v, n in sizes.items()))],
                    hint="give such sizes, or build without that assumption",
                )
        extents = [max(0, int(evaluate(extent, sizes))) for extent in self.grid]
        for axis, (extent, limit) in enumerate(zip(extents, GRID_LIMITS, strict=False)):
            if extent > limit:
                raise BackendError(
                    f"kernel {self.name} needs {extent} programs on grid axis {axis}, "
                    f"the device allows {limit}",
                    hint="make each program do more: a larger split factor on the bound axis",
                )
        for span in self.spans:
            if evaluate(span, sizes) >= 2**31:
                raise BackendError(
                    f"kernel {self.name} addresses elements {evaluate(span, sizes)} apart in one "
                    "tile, beyond a 32-bit offset",
                    hint="use fewer rows per tile, or build with constant shapes",
                )
        return (*extents, 1, 1)[:3]  # pyright: ignore[reportReturnType]


@dataclass(frozen=True, slots=True, eq=False)
class TritonProgram:
    """A whole source file and its kernels in launch order."""

    source: str
    kernels: tuple[KernelSpec, ...]
    module: Module
    target: Target

    @property
    def compiled(self) -> tuple[KernelSpec, ...]:
        """What Triton compiles: all but calls of the host."""
        return tuple(spec for spec in self.kernels if spec.call is None)

    def launches(
        self, sizes: Mapping[Var, int | float]
    ) -> Iterator[tuple[int, dict[Var, int | float], list[KernelSpec]]]:
        """Of a call: repetitions, sizes with the last repetition's number, and kernels, in order.

        Raises:
            BackendError: a number of repetitions has no value.
        """
        for repeat, places in self.module.launches():
            specs = [self.kernels[place] for place in places]
            if repeat is None:
                yield 1, dict(sizes), specs
                continue
            times = int(evaluate(repeat.extent, sizes))
            if times > 0:
                yield times, {**sizes, repeat.step: times - 1}, specs


def described(buffer: Buffer | None) -> list[int]:
    """The extents that a descriptor of `buffer` has where its rows are longer than what they hold;
    else nothing, for those of the array."""
    if buffer is None or buffer.held is None:
        return []
    return [evaluate(extent, {}) for extent in buffer.held]


def evaluate(expr: Expr, sizes: Mapping[Var, int | float]) -> int:
    """An integer expression over sizes, exactly.

    Raises:
        BackendError: a size without a value, a division by zero, or a node that is no size.
    """
    try:
        return evaluate_int(expr, {var: int(value) for var, value in sizes.items()})
    except EvaluationError as error:
        raise BackendError(
            f"the size {expr} has no value: {error.reason}", hint="pass all runtime sizes"
        ) from error
