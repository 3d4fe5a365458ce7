"""What the outputs must be: by the numpy oracle, or by a kernel that the oracle has checked.

The oracle (`reference.reference`, sums in float64) knows nothing of schedules and code, so it is
used wherever it is fast enough.  For larger computations the CPU's default kernel makes the
outputs, and the oracle checks hundreds of their elements, corners first.  Imports `build`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from tedsl.checking.array_chunks import by_pieces, drawn
from tedsl.checking.random_inputs import Array, is_elementwise
from tedsl.checking.rounding_flips import SampledSides, Sides
from tedsl.checking.sampled_outputs import affordable, evaluate_samples, sample_points
from tedsl.checking.tolerance import (
    Tolerance,
    epsilon,
    finest_epsilon,
    has_steps,
    largest_finite,
    mismatch,
    noise_between,
)
from tedsl.errors import BackendError, LowerError, ScheduleError, TuneError
from tedsl.expr.nodes import Binary, BinaryOp, Cast, Expr, Reduce, TensorRead
from tedsl.reference.reference import evaluate
from tedsl.runtime.arrays.views import NUMPY_DTYPES
from tedsl.scheduling.plan.scan_structure import inputs_of
from tedsl.tensor.tensor import ComputeOp, Tensor
from tedsl.workload.extents import Extents

WHOLE = {"cpu": 300_000_000, "cuda": 30_000_000}
"""Points up to which the oracle makes the whole reference; a GPU's host should not wait long."""
MOST = 3_000_000_000
"""Points above which the oracle is not even a way out."""
SAMPLED = 20_000_000
"""Points that checking samples may cost."""
SHAKEN = 1e-2
"""Of the largest output: what a rounding may move where inputs are difficult."""
ROUNDINGS = 4.0
"""The same as so many roundings of the inputs, where those are coarse."""
PRODUCT_GAIN = 60
"""How much faster the oracle is at a plain sum of products, which it leaves to numpy.matmul."""


class Oracle:
    """The wanted outputs of one problem.

    Attributes:
        source: how they were made, in words.
        factor: by how much the tolerance must grow, for a reference that has rounding of its own.
    """

    def __init__(self, size: Extents, target: str) -> None:
        self.size = size
        self.limit = WHOLE.get(target, WHOLE["cpu"])
        self.work = sum(_work(size, op) for op in size.workload.computes)
        whole = self.work <= self.limit
        self.source = "numpy oracle" if whole else "default CPU kernel, checked by the oracle"
        self.factor = 1.0 if whole else 2.0

    def outputs(self, inputs: dict[Tensor, Array], seed: int) -> list[Array]:
        """The wanted outputs for `inputs`.

        Raises:
            TuneError: too large for the oracle, and the default CPU kernel fails or is wrong.
        """
        if self.factor == 1.0:
            return self._evaluate(inputs)
        try:
            found = run_kernel(self.size, inputs)
            wrong = self._check(inputs, found, seed)
        except (ScheduleError, LowerError, BackendError) as error:
            wrong = str(error)
            found = []
        if wrong is None:
            return found
        if self.work <= MOST:
            self.source = "numpy oracle"
            return self._evaluate(inputs)
        raise TuneError(
            "there is no reference to check candidates against",
            facts=[("cpu", wrong.replace("\n", " "))],
            hint="tune a smaller size of the same computation, and report this",
        )

    def adverse(
        self, inputs: dict[Tensor, Array], tolerances: Sequence[Tolerance], seed: int
    ) -> tuple[list[Array], list[float]] | None:
        """The wanted outputs for inputs made to be difficult, and their noise.

        None where they ask for what has no one answer: outputs of reductions that are not finite
        though the inputs are, outputs that roundings of the inputs or of the terms of sums change
        by much, or that either the definition itself, evaluated in the types it says, or the
        default CPU kernel does not reach.
        """
        try:
            kernel = run_kernel(self.size, inputs)
        except (ScheduleError, LowerError, BackendError):
            return None
        whole = self.factor == 1.0
        found = self._evaluate(inputs) if whole else kernel
        plain = all(map(_is_finite, inputs.values())) and not is_elementwise(self.size.workload)
        if plain and not all(map(_is_finite, found)):
            return None
        if not whole and self._check(inputs, found, seed) is not None:
            return None
        noises = self.noise(inputs, found, seed, keep_equal=True)
        noises = [max(pair) for pair in zip(noises, self._order_noise(inputs, seed), strict=True)]
        shaken = max(SHAKEN, ROUNDINGS * max((epsilon(t.dtype) for t in inputs), default=0.0))
        for noise, want in zip(noises, found, strict=True):
            if noise > shaken * max(by_pieces(largest_finite, want.reshape(-1)), default=0.0):
                return None
        noisy = [replace(t, noise=n) for t, n in zip(tolerances, noises, strict=True)]
        if not whole:
            wrong = self._check(inputs, found, seed, noisy)
            return None if wrong else (found, noises)
        plain = evaluate(self.size.workload.outputs, inputs, self.size.values)
        for reached in (plain, kernel):
            for got, want, tolerance, excuse in zip(
                reached, found, noisy, self._excuses(inputs), strict=True
            ):
                if mismatch(np.asarray(got), want, tolerance, "", excuse):
                    return None
        return found, noises

    def noise(
        self,
        inputs: dict[Tensor, Array],
        found: list[Array],
        seed: int,
        keep_equal: bool = False,
    ) -> list[float]:
        """How far each output moves when every float input moves by a rounding: of its own type, or
        of the finest in use where that is coarser.

        0 where a small change may flip a result (a comparison or a conversion of a computed float).
        With `keep_equal`, elements that are equal move alike.
        """
        step = finest_epsilon(self.size)
        if has_steps(self.size) or not step:
            return [0.0 for _ in found]
        moved = dict(inputs)
        for number, (t, a) in enumerate(inputs.items()):
            if t.dtype.is_float:
                signs = _signs_of(a) if keep_equal else _drawn_signs(a, [seed, number])
                moved[t] = _moved(a, max(step, epsilon(t.dtype)), signs)
        whole = self.source == "numpy oracle"
        other = self._evaluate(moved) if whole else run_kernel(self.size, moved)
        return [noise_between(a, b) for a, b in zip(found, other, strict=True)]

    def _order_noise(self, inputs: dict[Tensor, Array], seed: int) -> list[float]:
        """How far sampled elements of each output move when the terms of sums do."""
        noises: list[float] = []
        for tensor in self.size.workload.outputs:
            count = affordable(self.size, tensor, SAMPLED)
            if has_steps(self.size) or not count or not tensor.dtype.is_float:
                noises.append(0.0)
                continue
            points = sample_points(self.size.shape(tensor), count, seed)
            still, moved = (
                evaluate_samples(self.size, inputs, tensor, points, shaken=shaken)
                for shaken in (False, True)
            )
            noises.append(noise_between(still, moved))
        return noises

    def _excuses(self, inputs: dict[Tensor, Array]) -> list[Sides]:
        return [Sides(self.size, t, lambda: inputs) for t in self.size.workload.outputs]

    def _evaluate(self, inputs: dict[Tensor, Array]) -> list[Array]:
        found = evaluate(self.size.workload.outputs, inputs, self.size.values, precise=True)
        return [np.asarray(array) for array in found]

    def _check(
        self,
        inputs: dict[Tensor, Array],
        found: list[Array],
        seed: int,
        plainly: Sequence[Tolerance] = (),
    ) -> str | None:
        """What is wrong with the kernel's outputs at sampled elements: against sums in float64, or,
        with a tolerance for each output, against the definition in the types it says."""
        for number, (tensor, array) in enumerate(
            zip(self.size.workload.outputs, found, strict=True)
        ):
            count = affordable(self.size, tensor, SAMPLED)
            if not count:
                self.source = "default CPU kernel"
                continue
            points = sample_points(array.shape, count, seed)
            tolerance = plainly[number] if plainly else Tolerance.of(self.size, tensor)
            want = evaluate_samples(self.size, inputs, tensor, points, precise=not plainly)
            got = np.asarray(array[tuple(points)]).reshape(want.shape)
            excuse = SampledSides(Sides(self.size, tensor, lambda: inputs), points, array.shape)
            wrong = mismatch(got, want, tolerance, f"sample of {tensor.name}", excuse)
            if wrong is not None:
                return wrong
        return None


def _moved(array: Array, step: float, signs: Array) -> Array:
    """Every element times 1 + step or 1 - step, by its sign."""
    made = np.empty(array.shape, array.dtype)

    def move(to: Array, of: Array, sign: Array) -> None:
        to[...] = (of.astype(np.float64) * (1.0 + step * sign)).astype(of.dtype)

    by_pieces(move, made.reshape(-1), array.reshape(-1), signs)
    return made


def _drawn_signs(array: Array, seed: Sequence[int]) -> Array:
    """1 or -1 for each element."""

    def draw(rng: np.random.Generator, count: int) -> Array:
        return rng.integers(0, 2, count, np.int8) * 2 - 1

    return drawn(draw, array.size, np.dtype(np.int8), seed)


def _signs_of(array: Array) -> Array:
    """1 or -1 for each element, the same for equal ones: a bit of a product of its bits."""
    signs = np.empty(array.size, np.int8)

    def sign(to: Array, of: Array) -> None:
        bits = of.astype(np.float64).view(np.uint64)
        mixed = (bits >> np.uint64(29)) * np.uint64(0x9E3779B97F4A7C15)
        to[...] = ((mixed >> np.uint64(62)) & np.uint64(1)).astype(np.int8) * 2 - 1

    by_pieces(sign, signs, array.reshape(-1))
    return signs


def _is_finite(array: Array) -> bool:
    if array.dtype.kind in "iub":
        return True

    def is_finite(piece: Array) -> bool:
        return bool(np.isfinite(piece.astype(np.float64)).all())

    return all(by_pieces(is_finite, array.reshape(-1)))


@lru_cache(maxsize=1)
def _default_kernel(outputs: tuple[Tensor, ...]) -> Any:
    """The CPU's default kernel, for all kinds of inputs."""
    build: Callable[..., Any] = importlib.import_module("tedsl.build").build
    return build(list(outputs), "cpu")


def run_kernel(size: Extents, inputs: dict[Tensor, Array]) -> list[Array]:
    """The outputs by the CPU's default kernel."""
    kernel = _default_kernel(size.workload.outputs)
    out = [np.empty(size.shape(t), NUMPY_DTYPES[t.dtype]) for t in size.workload.outputs]
    arguments = [inputs[t] for t in argument_order(kernel)]
    kernel(*arguments, out=tuple(out), **scalars_of(kernel, size))
    return out


def argument_order(kernel: Any) -> list[Tensor]:
    """The placeholders in the order of the kernel's arguments, which carry stage names."""
    plan = kernel.schedule.plan
    known = {plan.stage_of(tensor.op).name: tensor for tensor in inputs_of(plan)}
    return [known[buffer.name] for buffer in kernel.signature.inputs]


def scalars_of(kernel: Any, size: Extents) -> dict[str, int]:
    """Values of the runtime scalars that a call of the kernel must name."""
    known = {var.name: value for var, value in size.values.items()}
    return {name: known[name] for name in kernel.signature.keywords}


def _work(size: Extents, op: ComputeOp) -> int:
    """Points of an operation, fewer for what numpy.matmul does."""
    return size.points(op) // (PRODUCT_GAIN if _is_product(op.bodies[0]) else 1)


def _is_product(body: Expr) -> bool:
    """True for a plain sum of products of two reads."""

    def is_read(expr: Expr) -> bool:
        return isinstance(expr.a if isinstance(expr, Cast) else expr, TensorRead)

    if not isinstance(body, Reduce) or body.where is not None or body.init is not None:
        return False
    source = body.sources[0]
    times = isinstance(source, Binary) and source.op is BinaryOp.MUL
    return (
        body.reducer.operator is BinaryOp.ADD
        and body.dtype.is_float
        and isinstance(source, Binary)
        and times
        and is_read(source.a)
        and is_read(source.b)
    )
