"""Converters of ATen operators, one file for a family; importing this registers them all."""

from tedsl.torch.operators import (
    arithmetic,
    casts,
    convolutions,
    creation,
    extremes,
    indexing,
    joins,
    pointwise,
    pools,
    products,
    quotients,
    reductions,
    sampling,
    scans,
    scatters,
    views,
)

__all__ = [
    "arithmetic",
    "casts",
    "convolutions",
    "creation",
    "extremes",
    "indexing",
    "joins",
    "pointwise",
    "pools",
    "products",
    "quotients",
    "reductions",
    "sampling",
    "scans",
    "scatters",
    "views",
]
