"""A Gaussian process over the columns of candidates: what is expected where nothing was measured.

Covariance is Matern 5/2 with one length scale per column, chosen with the noise by the marginal
likelihood under a weak prior, a few steps of coordinate search at a time.  numpy alone, in fixed
order, so equal data give equal answers.  Features that are tiny (a time in seconds) are scaled by
the catalogue before they come here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tedsl.autotune.search.candidate_table import Floats

ABSENT = -0.25
"""Where a knob that a candidate does not meet is put; present ones lie between 0 and 1."""
SPREAD = (0.0, 1.0)
NOISE = (-6.0, 1.5)
"""Mean and deviation of the logarithms of inverse length scales and of the noise, a priori."""
MOST = 400
"""Of more observations the fastest are kept."""


@dataclass(slots=True)
class Scales:
    """Logarithms of the inverse length scale of each column and, last, of the noise."""

    logs: Floats
    observations: int = 0

    @staticmethod
    def start(columns: int) -> Scales:
        return Scales(np.r_[np.full(columns, SPREAD[0]), -5.0])

    def widened(self, columns: int) -> Scales:
        """The same with columns that came later at their prior."""
        missing = columns + 1 - len(self.logs)
        if not missing:
            return self
        more = np.full(missing, SPREAD[0])
        return Scales(np.r_[self.logs[:-1], more, self.logs[-1:]])


class Posterior:
    """What observations say of the rest.

    Args:
        columns: of the observed rows, without NaN.
        values: observed, of any scale.
        scales: of the covariance.
    """

    def __init__(self, columns: Floats, values: Floats, scales: Scales) -> None:
        self.centre = float(values.mean())
        self.unit = float(values.std()) + 1e-12
        target = (values - self.centre) / self.unit
        self.columns = columns
        self.weights = np.exp(scales.logs[:-1])
        matrix = covariance(columns, columns, self.weights)
        matrix[np.diag_indices(len(target))] += math.exp(scales.logs[-1])
        self._inverse = np.linalg.inv(np.linalg.cholesky(matrix))
        whitened = self._inverse @ target
        self._solution = self._inverse.T @ whitened
        self.variance = float(whitened @ whitened) / len(target) + 1e-12

    def over(self, columns: Floats) -> Belief:
        """Mean and variance of other rows, in units of `values`."""
        cross = covariance(columns, self.columns, self.weights)
        roots = cross @ self._inverse.T
        mean = cross @ self._solution * self.unit + self.centre
        left = self.variance * np.maximum(1.0 - np.einsum("ij,ij->i", roots, roots), 1e-9)
        return Belief(self, columns, mean, left, roots, [])


@dataclass(slots=True, eq=False)
class Belief:
    """Mean and variance (in squared standard units) of rows; `expect` adds what is under way."""

    posterior: Posterior
    columns: Floats
    mean: Floats
    left: Floats
    roots: Floats
    extra: list[Floats]

    def expect(self, row: int) -> None:
        """Lessen the variance of all rows as if one of them were measured already."""
        own = self.posterior
        shared = covariance(self.columns, self.columns[row : row + 1], own.weights)[:, 0]
        shared = own.variance * (shared - self.roots @ self.roots[row])
        for known in self.extra:
            shared -= known * known[row]
        root = shared / math.sqrt(self.left[row] + 1e-6 * own.variance)
        self.extra.append(root)
        self.left = np.maximum(self.left - root * root, 1e-12)

    def gain(self, best: float) -> Floats:
        """How much each row is expected to lie below `best`, in units of the values."""
        sd = np.sqrt(self.left) * self.posterior.unit
        z = (best - self.mean) / sd
        below = 0.5 * (1.0 + np.tanh(0.7978845608 * (z + 0.044715 * z**3)))
        density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
        return np.maximum(sd * (z * below + density), 0.0)


def covariance(a: Floats, b: Floats, weights: Floats) -> Floats:
    """Matern 5/2 between the rows of `a` and of `b`."""
    a, b = a * weights, b * weights
    square = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None, :] - 2.0 * (a @ b.T)
    apart = np.sqrt(5.0 * np.maximum(square, 0.0))
    return (1.0 + apart + apart * apart / 3.0) * np.exp(-apart)


def fit_scales(columns: Floats, values: Floats, scales: Scales) -> Scales:
    """Better scales for these observations, found by a few coordinate steps from given ones."""
    scales = scales.widened(columns.shape[1])
    if len(values) < 1.15 * scales.observations:
        return scales
    target = (values - values.mean()) / (values.std() + 1e-12)
    logs, best = scales.logs, misfit(columns, target, scales.logs)
    step = 0.7
    for _ in range(2 if scales.observations else 3):
        for place in range(len(logs)):
            for change in (step, -step):
                other = logs.copy()
                other[place] += change
                found = misfit(columns, target, other)
                if found < best - 1e-9:
                    best, logs = found, other
                    break
        step *= 0.7
    return Scales(logs, len(values))


def misfit(columns: Floats, target: Floats, logs: Floats) -> float:
    """Negative logarithm of the likelihood times the prior, the amplitude at its best."""
    matrix = covariance(columns, columns, np.exp(logs[:-1]))
    matrix[np.diag_indices(len(target))] += math.exp(logs[-1])
    try:
        root = np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        return math.inf
    whitened = np.linalg.solve(root, target)
    fit = 0.5 * len(target) * math.log(float(whitened @ whitened) / len(target) + 1e-12)
    fit += float(np.log(np.diag(root)).sum())
    prior = 0.5 * float((((logs[:-1] - SPREAD[0]) / SPREAD[1]) ** 2).sum())
    return fit + prior + 0.5 * ((float(logs[-1]) - NOISE[0]) / NOISE[1]) ** 2


def filled(columns: Floats) -> Floats:
    """Columns without NaN."""
    return np.where(np.isfinite(columns), columns, ABSENT)


def keep_fastest(values: Floats) -> npt.NDArray[np.int64]:
    """Positions of the observations to learn from, in order."""
    return np.sort(np.argsort(values, kind="stable")[:MOST])
