"""Converters of ATen operators, one file for a family; importing this registers them all."""

from tedsl.torch.operators import (
    arithmetic,
    casts,
    convolutions,
    creation,
    indexing,
    joins,
    pointwise,
    pools,
    products,
    reductions,
    scans,
    views,
)

__all__ = [
    "arithmetic",
    "casts",
    "convolutions",
    "creation",
    "indexing",
    "joins",
    "pointwise",
    "pools",
    "products",
    "reductions",
    "scans",
    "views",
]
