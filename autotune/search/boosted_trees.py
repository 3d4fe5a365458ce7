"""Gradient-boosted trees through LightGBM's native interface, where it is installed.

One thread, a fixed seed and its deterministic mode: equal data give equal trees.  LightGBM comes
with `pip install lightgbm`; without it the search does with what numpy can do.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import numpy as np

from tedsl.autotune.search.candidate_table import Floats

ROUNDS = 80
LEAST = 8
"""Fewer values than that grow no trees."""
SETTINGS = {
    "num_leaves": 15,
    "min_data_in_leaf": 3,
    "min_data_in_bin": 1,
    "learning_rate": 0.1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbose": -1,
}


@functools.cache
def lightgbm() -> Any | None:
    """The LightGBM module; None where it is not installed or does not load."""
    try:
        return importlib.import_module("lightgbm")
    except (ImportError, OSError):  # OSError: its library needs one of the system that is not there
        return None


@functools.cache
def installed() -> bool:
    """True where LightGBM is there; whether it loads is seen when there is enough to learn from,
    since that takes a second, in which a short search is over."""
    return importlib.util.find_spec("lightgbm") is not None


def regress(columns: Floats, values: Floats, wanted: Floats) -> Floats:
    """Values expected at the rows `wanted`."""
    return _fit("regression", columns, values, wanted)


def classify(columns: Floats, good: Floats, wanted: Floats) -> Floats:
    """Probability that the rows `wanted` are good, where 1 stands for good."""
    return _fit("binary", columns, good, wanted)


def _fit(objective: str, columns: Floats, values: Floats, wanted: Floats) -> Floats:
    module = lightgbm() if len(values) >= LEAST else None
    if module is None:
        return np.full(len(wanted), float(values.mean()))
    settings = {**SETTINGS, "objective": objective}
    data = module.Dataset(columns, values, params=settings)
    booster = module.train(settings, data, ROUNDS)
    return np.asarray(booster.predict(wanted, num_threads=1), np.float64)
