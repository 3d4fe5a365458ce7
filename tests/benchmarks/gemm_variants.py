"""Candidate schedules of matrix products by name, each timed in turn with PyTorch.

    python tests/benchmarks/gemm_variants.py --out FOLDER --seconds 240
    python tests/benchmarks/gemm_variants.py --out FOLDER --only float8 int8 8192x8192x128

A candidate is the default rules with some knobs decided.  Each is built and checked in a process of
its own that may hang or die; one at a time has the device.  Prints a table and writes
`gemm_variants.json`.  It is also a suite for `run.py`:

    python tests/benchmarks/run.py --static --suite gemm_variants --only 4095
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import written
from runner import Plan, Row, Runner
from workload import COMPILED, COPY, EAGER, OURS, SCALED, TUNED, B, F, Workload

import tedsl as te
from tedsl.schedules import schedule_for

Knobs = Mapping[str, Any]
Make = Callable[..., Any]
SHARE = 0.7
"""Of the processors, that children which compile may use."""

PRODUCTS: Mapping[tuple[int, int, int], Mapping[str, Knobs]] = {
    (4096, 4096, 4096): {
        "rules": {},
        "4 steps ahead, plain stores": {"stages": 4, "descriptor_store": False},
        "tile by tile": {"resident": 0},
        "tile by tile, 4 ahead": {"resident": 0, "stages": 4, "descriptor_store": False},
        "128x128, two programs": {"bm": 128, "bn": 128, "resident": 2, "stages": 3, "warps": 4},
        "128x128, 4 warps": {"bm": 128, "bn": 128, "resident": 0, "stages": 4, "warps": 4},
        "256x128": {"bm": 256, "bn": 128},
        "no flatten": {"flatten": False},
        "groups of 16": {"group": 16},
    },
    (8192, 8192, 8192): {
        "rules": {},
        "4 steps ahead, plain stores": {"stages": 4, "descriptor_store": False},
        "128x128, two programs": {"bm": 128, "bn": 128, "resident": 2, "stages": 3, "warps": 4},
        "128x128, 4 warps": {"bm": 128, "bn": 128, "resident": 0, "stages": 4, "warps": 4},
        "256x128": {"bm": 256, "bn": 128},
        "groups of 16": {"group": 16},
    },
    (4095, 4095, 4095): {
        "rules": {},
        "tile by tile": {"resident": 0},
        "groups of 8": {"group": 8},
        "128x128, two programs": {"bm": 128, "bn": 128, "resident": 2, "stages": 3, "warps": 4},
        "no copies": {"align_a": False, "align_b": False, "bm": 128, "bn": 128},
        "copies of 512 by 4": {
            "a.global.columns": 512,
            "a.global.rows": 4,
            "b.global.columns": 512,
            "b.global.rows": 4,
        },
        "copies of 512 by 16": {
            "a.global.columns": 512,
            "a.global.rows": 16,
            "b.global.columns": 512,
            "b.global.rows": 16,
        },
    },
    (2047, 8191, 1025): {
        "rules": {},
        "tile by tile": {"resident": 0},
        "128x128, two programs": {"bm": 128, "bn": 128, "resident": 2, "stages": 3, "warps": 4},
        "128x128": {"bm": 128, "bn": 128, "resident": 0, "stages": 3, "warps": 4},
        "no copies": {"align_a": False, "align_b": False, "bm": 128, "bn": 128},
    },
    (1000, 3000, 2000): {
        "rules": {},
        "128x128, 3 ahead": {"bm": 128, "bn": 128, "stages": 3, "warps": 4},
        "128x128, 8 warps": {"bm": 128, "bn": 128, "stages": 3, "warps": 8},
        "256x128": {"bm": 256, "bn": 128, "stages": 4},
        "64x256": {"bm": 64, "bn": 256, "stages": 4, "warps": 4},
        "128x64": {"bm": 128, "bn": 64, "stages": 4, "warps": 4},
        "stores of the copy engine": {"descriptor_store": True},
        "128x128, tail in 2": {"bm": 128, "bn": 128, "stages": 3, "warps": 4, "tail": 2},
        "128x128, tail in 2, 5 ahead": {"bm": 128, "bn": 128, "stages": 5, "warps": 4, "tail": 2},
        "128x128, 8 warps, tail in 2": {"bm": 128, "bn": 128, "stages": 3, "warps": 8, "tail": 2},
    },
    (2048, 11008, 4096): {
        "rules": {},
        "tail in 2": {"tail": 2},
        "tail in 4": {"tail": 4},
        "128x256, tail in 4": {"bm": 128, "bn": 256, "stages": 3, "warps": 8, "tail": 4},
        "128x256, tail in 3": {"bm": 128, "bn": 256, "stages": 3, "warps": 8, "tail": 3},
        "128x256, tile by tile, tail in 4": {
            "bm": 128,
            "bn": 256,
            "resident": 0,
            "stages": 4,
            "warps": 8,
            "tail": 4,
        },
        "256x128, tail in 4": {"bm": 256, "bn": 128, "stages": 3, "warps": 8, "tail": 4},
        "128x256": {"bm": 128, "bn": 256, "stages": 3, "warps": 8},
        "128x256, tile by tile": {"bm": 128, "bn": 256, "resident": 0, "stages": 4, "warps": 8},
        "128x128, two programs": {"bm": 128, "bn": 128, "resident": 2, "stages": 3, "warps": 4},
        "128x128, tile by tile": {"bm": 128, "bn": 128, "resident": 0, "stages": 3, "warps": 4},
        "256x128": {"bm": 256, "bn": 128, "stages": 3, "warps": 8},
        "groups of 16": {"group": 16},
        "plain stores": {"descriptor_store": False},
    },
    (512, 512, 32768): {
        "rules": {},
        "16 parts": {"parts": 16},
        "16 parts of 128x256": {"parts": 16, "bm": 128, "bn": 256, "warps": 8, "stages": 4},
        "4 parts of 128x64": {"parts": 4, "bm": 128, "bn": 64},
        "16 parts of 128x128": {"parts": 16, "bm": 128, "bn": 128, "stages": 3, "warps": 4},
        "one launch": {"matmul.one_launch": True},
        "one launch, 16 parts": {"matmul.one_launch": True, "parts": 16},
    },
    (512, 512, 8192): {
        "rules": {},
        "4 parts": {"parts": 4},
        "8 parts of 128x64": {"parts": 8, "bm": 128, "bn": 64},
        "one kernel": {"parts": 1},
    },
    (256, 256, 65536): {
        "rules": {},
        "16 parts": {"parts": 16},
        "64 parts": {"parts": 64},
        "one launch": {"matmul.one_launch": True},
        "one launch, 64 parts": {"matmul.one_launch": True, "parts": 64},
    },
    (1024, 1024, 1024): {
        "rules": {},
        "64 deep (before)": {"bk": 64, "stages": 5},
        "rows by columns": {"turned": False},
        "64x128": {"bm": 64, "bn": 128, "bk": 128, "stages": 4},
        "64x128, 8 warps": {"bm": 64, "bn": 128, "bk": 128, "stages": 4, "warps": 8},
        "64x64": {"bm": 64, "bn": 64, "bk": 128, "stages": 3},
        "8 warps": {"warps": 8},
        "3 ahead": {"stages": 3},
        "groups of 4": {"group": 4},
        "stores of the copy engine": {"descriptor_store": True},
    },
    (4096, 64, 4096): {
        "rules": {},
        "64x32 (before)": {"parts": 1, "bm": 64, "bn": 32, "bk": 128, "stages": 5},
        "4 ahead": {"parts": 1, "stages": 4},
        "64 deep": {"parts": 1, "bk": 64, "stages": 5},
        "8 warps": {"parts": 1, "warps": 8},
        "2 parts, 64x64": {"parts": 2, "bm": 64, "bn": 64},
        "2 parts, 64x64, 128 deep": {"parts": 2, "bm": 64, "bn": 64, "bk": 128, "stages": 5},
        "4 parts, 128x64": {"parts": 4, "bm": 128, "bn": 64},
        "one launch, 2 parts": {"matmul.one_launch": True, "parts": 2, "bm": 64, "bn": 64},
    },
    (64, 14336, 4096): {
        "rules": {},
        "64x64": {"bm": 64, "bn": 64, "stages": 5},
        "64x128": {"bm": 64, "bn": 128, "stages": 5},
        "64x64, 128 deep": {"bm": 64, "bn": 64, "bk": 128, "stages": 4},
        "64x128, 128 deep": {"bm": 64, "bn": 128, "bk": 128, "stages": 4},
    },
    (16, 8192, 8192): {
        "rules": {},
        "4 ahead": {"parts": 1, "stages": 4},
        "2 warps": {"parts": 1, "warps": 2},
        "turned": {"parts": 1, "turned": True},
        "turned, 64 deep": {"parts": 1, "turned": True, "bk": 64, "stages": 5},
        "2 parts, 128x64 (before)": {"parts": 2, "bn": 128, "bk": 64, "stages": 5},
        "2 parts, 128 deep": {"parts": 2, "bn": 128, "bk": 128, "stages": 4},
        "one launch, 2 parts": {"matmul.one_launch": True, "parts": 2},
    },
    (8192, 8192, 128): {
        "rules": {},
        "128x128, nothing kept (before)": {"kept": 1, "bn": 128, "warps": 8},
        "rows kept of 128x128": {"bn": 128, "kept": 32},
        "2 ahead": {"ahead": 2},
        "4 ahead": {"ahead": 4},
        "runs of 16": {"kept": 16},
        "runs of 64": {"kept": 64},
        "8 warps": {"warps": 8},
        "rows by columns": {"turned": False},
        "256x64, rows by columns": {"kept": 32, "bm": 256, "turned": False},
        "plain stores": {"kept": 32, "bn": 64, "warps": 4, "descriptor_store": False},
    },
    (8192, 8192, 64): {
        "rules": {},
        "128x256, nothing kept (before)": {"kept": 1, "bn": 256, "warps": 8},
        "rows kept of 128x128": {"bn": 128},
        "4 ahead": {"ahead": 4},
    },
    (4096, 4096, 128): {
        "rules": {},
        "128x128, nothing kept (before)": {"kept": 1, "bn": 128, "warps": 8},
        "runs of 16": {"kept": 16},
    },
    (1, 8192, 8192): {
        "rules": {},
        "256 columns": {"columns": 256},
        "64 columns": {"columns": 64},
        "64 parts": {"matmul.parts": 64},
        "16 parts": {"matmul.parts": 16},
        "one launch": {"matmul.one_launch": True},
        "one launch, 32 parts": {"matmul.one_launch": True, "matmul.parts": 32},
        "8 parts": {"matmul.parts": 8},
        "16 rows": {"rows": 16},
        "64 rows": {"rows": 64, "columns": 64},
        "8 warps": {"warps": 8},
        "256 columns, 16 rows, 8 warps": {"columns": 256, "rows": 16, "warps": 8},
        "512 columns, 8 rows, 8 warps": {"columns": 512, "rows": 8, "warps": 8},
        "64 columns, one launch": {"columns": 64, "matmul.one_launch": True},
        "64 columns, 8 parts": {"columns": 64, "matmul.parts": 8},
        "64 columns, 32 parts": {"columns": 64, "matmul.parts": 32},
        "64 columns, 16 rows": {"columns": 64, "rows": 16},
        "64 columns, 2 warps": {"columns": 64, "warps": 2},
        "64 columns, 64 rows, 2 warps": {"columns": 64, "rows": 64, "warps": 2},
        "64 columns, 64 rows, one launch": {
            "columns": 64,
            "rows": 64,
            "matmul.one_launch": True,
        },
        "32 columns": {"columns": 32},
        "evicted last": {"matmul.red.rf.evict_last": "reads"},
        "16 rows, 32 parts": {"rows": 16, "matmul.parts": 32},
    },
    (1, 4096, 4096): {
        "rules": {},
        "64 columns": {"columns": 64},
        "one launch": {"matmul.one_launch": True},
        "64 columns, one launch": {"columns": 64, "matmul.one_launch": True},
        "64 columns, 64 rows, one launch": {
            "columns": 64,
            "rows": 64,
            "matmul.one_launch": True,
        },
    },
    (1, 32000, 4096): {
        "rules": {},
        "64 columns": {"columns": 64},
        "one launch": {"matmul.one_launch": True},
        "64 columns, one launch": {"columns": 64, "matmul.one_launch": True},
    },
    (4097, 4096, 4096): {"rules": {}, "tile by tile": {"resident": 0}, "groups of 8": {"group": 8}},
    (2048, 5000, 4096): {
        "rules": {},
        "tail in 2": {"tail": 2},
        "128x256 (before)": {"bm": 128, "bn": 256},
        "tile by tile": {"resident": 0, "stages": 4, "descriptor_store": False},
        "rows by columns": {"turned": False},
        "no flatten": {"flatten": False},
        "groups of 4": {"group": 4},
    },
    (4096, 5000, 4096): {"rules": {}, "128x256 (before)": {"bm": 128, "bn": 256}},
    (1000, 5000, 2000): {
        "rules": {},
        "groups of 8 (before)": {"group": 8},
        "no groups": {"group": 1},
    },
    (1000, 1000, 1000): {
        "rules": {},
        "128x64": {"bm": 128, "bn": 64},
        "64x64": {"bm": 64, "bn": 64},
        "128x128": {"bm": 128, "bn": 128, "stages": 4},
    },
}
"""By rows, columns and depth; a knob without a dot is one of the kernel that multiplies."""

AROUND: Mapping[tuple[str, int, int, int], Mapping[str, Knobs]] = {
    ("swiglu", 4096, 14336, 4096): {
        "rules": {},
        "flatten (before)": {"flatten": True},
        "two loops": {"one_loop": False},
        "tile by tile, 4 ahead": {"resident": 0, "stages": 4, "descriptor_store": False},
        "tile by tile, stores of the copy engine": {"resident": 0, "stages": 4},
        "3 ahead": {"stages": 3},
        "groups of 16": {"group": 16},
    },
    ("swiglu", 1000, 5000, 2000): {
        "rules": {},
        "tail in 2": {"tail": 2},
        "tail in 2, plain stores": {"tail": 2, "descriptor_store": False},
        "tail in 2, that stay": {"tail": 2, "resident": 1, "stages": 4},
        "tail in 4": {"tail": 4},
        "groups of 8, plain stores (before)": {"group": 8, "descriptor_store": False},
        "groups of 8": {"group": 8},
        "plain stores": {"descriptor_store": False},
        "groups of 2": {"group": 2},
        "no groups": {"group": 1},
        "that stay": {"resident": 1, "stages": 4},
        "that stay, groups of 8": {"resident": 1, "stages": 4, "group": 8},
        "3 ahead": {"stages": 3},
        "256x64": {"bm": 256, "bn": 64, "stages": 4, "warps": 8},
    },
    ("swiglu", 1024, 5632, 2048): {
        "rules": {},
        "groups of 8, plain stores (before)": {"group": 8, "descriptor_store": False},
        "groups of 8": {"group": 8},
        "plain stores": {"descriptor_store": False},
    },
    ("matmul_gelu", 4096, 4096, 4096): {
        "rules": {},
        "4 ahead, plain stores": {"stages": 4, "descriptor_store": False},
        "128x128, two programs": {"bm": 128, "bn": 128, "resident": 2, "stages": 3, "warps": 4},
        "no flatten": {"flatten": False},
    },
    ("matmul_gelu", 4095, 4097, 1000): {
        "rules": {},
        "rows by columns": {"turned": False},
        "tile by tile": {"resident": 0},
    },
    ("norm_matmul", 4096, 4096, 4096): {
        "rules": {},
        "4 ahead, plain stores": {"stages": 4, "descriptor_store": False},
        "one kernel": {"matmul.chain": True},
        "one kernel, tile by tile": {
            "matmul.chain": True,
            "resident": 0,
            "stages": 4,
            "descriptor_store": False,
        },
        "one kernel, no flatten": {"matmul.chain": True, "flatten": False},
        "two rows at a time": {"rms_norm.rows": 2},
    },
    ("norm_matmul", 2047, 5000, 4096): {
        "rules": {},
        "tail in 2": {"tail": 2},
        "tail in 4": {"tail": 4},
        "tail in 2, tile by tile": {
            "tail": 2,
            "resident": 0,
            "stages": 4,
            "descriptor_store": False,
        },
        "128x256, tail in 2": {"bm": 128, "bn": 256, "tail": 2},
        "128x256 (before)": {"bm": 128, "bn": 256},
        "128x256, tile by tile": {
            "bm": 128,
            "bn": 256,
            "resident": 0,
            "stages": 4,
            "descriptor_store": False,
        },
        "tile by tile": {"resident": 0, "stages": 4, "descriptor_store": False},
        "no flatten": {"flatten": False},
        "groups of 4": {"group": 4},
    },
    ("norm_matmul", 2047, 4999, 4095): {"rules": {}, "128x256": {"bn": 256, "warps": 8}},
    ("matmul_squares", 4096, 4096, 4096): {
        "rules": {},
        "128x128, 4 ahead": {"bm": 128, "bn": 128, "stages": 4, "product.warps": 8},
        "128x128, two programs": {"bm": 128, "bn": 128, "stages": 3, "product.warps": 4},
        "3 ahead": {"stages": 3},
        "apart": {"product.statistics": False},
    },
    ("matmul_lse", 4096, 32000, 4096): {
        "rules": {},
        "128x128, two programs": {"bm": 128, "bn": 128, "stages": 3, "product.warps": 4},
        "groups of 16": {"group": 16},
    },
}
"""Products with work around them."""


TYPES: Mapping[tuple[str, str, int, int, int], Mapping[str, Knobs]] = {
    ("float8_e4m3fn", "scaled_matmul", 4096, 4096, 4096): {
        "rules": {},
        "8 warps that stay, 5 ahead (before)": {"resident": 1, "stages": 5, "warps": 8},
        "256x128": {"bm": 256, "bn": 128, "resident": 0, "stages": 4, "warps": 8},
        "256x128 that stay": {"bm": 256, "bn": 128, "resident": 1, "stages": 3, "warps": 8},
        "two programs that stay": {"resident": 2, "stages": 2},
        "8 warps": {"stages": 3, "warps": 8},
        "64x256": {"bm": 64, "bn": 256, "resident": 0, "stages": 4, "warps": 8},
        "plain stores": {"descriptor_store": False},
        "groups of 16": {"group": 16},
    },
    ("float8_e4m3fn", "scaled_matmul", 1000, 8192, 8192): {
        "rules": {},
        "8 warps, 5 ahead (before)": {"stages": 5, "warps": 8},
        "256x128": {"bm": 256, "bn": 128, "resident": 0, "stages": 4, "warps": 8},
        "stores of the copy engine": {"descriptor_store": True},
    },
    ("float8_e4m3fn", "scaled_matmul", 8192, 8192, 8192): {
        "rules": {},
        "256x128": {"bm": 256, "bn": 128, "resident": 0, "stages": 4, "warps": 8},
        "256x128 that stay": {"bm": 256, "bn": 128, "resident": 1, "stages": 3, "warps": 8},
    },
    ("int8", "scaled_matmul", 4096, 4096, 4096): {
        "rules": {},
        "two programs of 128x128": {"bm": 128, "bn": 128, "resident": 0, "stages": 3, "warps": 4},
        "256x128": {"bm": 256, "bn": 128},
        "tile by tile, 4 ahead": {"resident": 0, "stages": 4},
    },
    (F, "matmul", 2048, 2048, 2048): {
        "rules": {},
        "16 deep (before)": {"bk": 16},
        "2 warps": {"warps": 2},
        "8 warps": {"warps": 8},
        "4 ahead": {"stages": 4},
        "2 ahead": {"stages": 2},
        "128x64": {"bm": 128, "bn": 64, "warps": 4},
        "128x64, 8 warps": {"bm": 128, "bn": 64, "warps": 8},
        "no copy engine": {"descriptors": False},
        "no copy engine, 16 deep": {"descriptors": False, "bk": 16},
        "no copy engine, 2 warps": {"descriptors": False, "warps": 2},
        "no copy engine, 128x64": {"descriptors": False, "bm": 128, "bn": 64, "warps": 4},
        "no copy engine, 128x128": {"descriptors": False, "bm": 128, "bn": 128, "warps": 8},
    },
}
"""Products of other numbers than bfloat16."""

INT_MM = "torch._int_mm, no scales"
PEERS: Mapping[str, Mapping[str, str]] = {
    "float8_e4m3fn": {SCALED: "prepare_scaled"},
    "int8": {INT_MM: "prepare_integers"},
}
"""What PyTorch has for 8 bits, where its matmul takes none."""


def decided(function: str, decisions: Knobs, **sizes: Any) -> te.Schedule:
    """The rules' schedule where the knobs that are named have these values."""

    def scheduled(chosen: Knobs) -> te.Schedule:
        return schedule_for(list(getattr(written, function)(**sizes)), "cuda", chosen)

    parts = next((k.name for k in scheduled({}).knobs if k.name.endswith(".parts")), "")
    whole = {parts: decisions["parts"]} if "parts" in decisions else {}
    knobs = [k.name for k in scheduled(whole).knobs]
    tiles = [k for k in knobs if k.endswith(".bn")] or [k for k in knobs if k.endswith(".columns")]
    prefix = tiles[0].rpartition(".")[0]
    named = {parts if k == "parts" else k: v for k, v in decisions.items()}
    named = {k if "." in k else f"{prefix}.{k}": v for k, v in named.items()}
    made = scheduled(named)
    lost = set(named) - {k.name for k in made.knobs}
    if lost:
        raise ValueError(f"{function} {sizes} has no knobs {sorted(lost)}: rename them here")
    return made


def workloads() -> list[Workload]:
    """The first of each shape, then the second of each, ..."""
    rows: list[list[Workload]] = []
    for (m, n, k), variants in PRODUCTS.items():
        rows.append([_row("matmul", m, n, k, v, kn) for v, kn in variants.items()])
    for (function, m, n, k), variants in AROUND.items():
        rows.append([_row(function, m, n, k, v, kn) for v, kn in variants.items()])
    for (dtype, function, m, n, k), variants in TYPES.items():
        rows.append([_row(function, m, n, k, v, kn, dtype) for v, kn in variants.items()])
    longest = max(map(len, rows))
    return [row[n] for n in range(longest) for row in rows if n < len(row)]


def _row(
    function: str, m: int, n: int, k: int, variant: str, knobs: Knobs, dtype: str = B
) -> Workload:
    sizes = {"m": m, "n": n, "k": k}
    peers = PEERS.get(dtype, {})
    kind = "" if dtype == B else f"{dtype} "
    return Workload(
        name=f"{function} {kind}{m}x{n}x{k} | {variant}",
        line="gemm",
        function=function,
        make=partial(decided, function, knobs),
        sizes={**sizes, "dtype": dtype},
        small={"m": 192, "n": 256, "k": 192, "dtype": dtype},
        flops=2 * m * n * k * (2 if function == "swiglu" else 1),
        peers=peers,
        without=(COPY, COMPILED, TUNED, *([EAGER] if peers else [])),
        uses_dot=min(m, n, k) >= 16,
    )


def table(rows: Sequence[Row]) -> str:
    """Milliseconds of each candidate and of PyTorch beside it, the shapes apart."""
    lines: list[str] = []
    for shape in dict.fromkeys(row["name"].partition(" | ")[0] for row in rows):
        lines.append(shape)
        for row in rows:
            name, _, variant = row["name"].partition(" | ")
            if name != shape:
                continue
            if "times" not in row:
                lines.append(f"  {variant:32} {row.get('failed', 'no time')[:90]}")
                continue
            beside = next(each for each in row["times"] if each != OURS)
            ours, peer = (row["times"][each]["ms"] for each in (OURS, beside))
            lines.append(f"  {variant:32} {ours:9.4f} ms, torch {peer:9.4f} ms {peer / ours:6.3f}x")
    return "\n".join(lines)


def main() -> None:
    """Run all candidates, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for gemm_variants.json")
    parser.add_argument("--seconds", type=float, default=240.0, help="end after so long")
    parser.add_argument("--only", nargs="+", default=[""], help="names that contain one of these")
    parser.add_argument("--jobs", type=int, default=0, help="child processes at a time")
    options = parser.parse_args()
    found: list[Row] = []
    path: Path = options.out / "gemm_variants.json"
    path.parent.mkdir(parents=True, exist_ok=True)

    def add(row: Row) -> None:
        found.append(row)
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    plan = Plan(
        mode="measure",
        suite="gemm_variants",
        jobs=options.jobs or max(1, int(SHARE * len(os.sched_getaffinity(0)))),
        prepare=120.0,
        measure=20.0,
        seconds=options.seconds,
    )
    every = [load.name for load in workloads()]
    names = [name for name in every if any(part in name for part in options.only)]
    left = Runner(plan, add).run(names)
    order = {name: place for place, name in enumerate(names)}
    sys.stdout.write(table(sorted(found, key=lambda row: order[row["name"]])) + "\n")
    sys.stdout.write(f"{len(found)} candidates, {len(left)} without time: {path}\n")


if __name__ == "__main__":
    main()
