"""Many small tensors at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import written_models
from workload import COMPILED, FOREACH, FUSED, B, Bar, F, Fill, Workload

ADAM = {FOREACH: "prepare_adam_foreach", FUSED: "prepare_adam_fused"}
SCALED = {FOREACH: "prepare_scaled_foreach"}


def workloads() -> list[Workload]:
    """Adam on a hundred tensors of about 1000 to 60000 elements; fewer of them; a plain map."""
    return [
        _row("Adam step", "adam", 100, 1000, 601, F, ADAM),
        _row("x*2 + 1", "scaled_many", 100, 1000, 601, F, SCALED),
        _row("Adam step", "adam", 100, 4096, 64, F, ADAM),
        _row("Adam step", "adam", 24, 70000, 3, B, ADAM),
        _row("x*2 + 1", "scaled_many", 100, 7, 1, B, SCALED),
    ]


def _row(
    title: str,
    function: str,
    count: int,
    least: int,
    step: int,
    dtype: str,
    peers: Mapping[str, str],
) -> Workload:
    make: Any = getattr(written_models, function)
    fills = {f"v{place}": Fill(positive=True) for place in range(count)}
    alone = () if function == "adam" else (Bar(COMPILED, 0.0, 1.0),)
    return Workload(
        name=f"{title}, {count} tensors, {'f32' if dtype == F else 'bf16'} {least}+{step}i",
        line="horizontal",
        function=function,
        make=make,
        sizes={"count": count, "least": least, "step": step, "dtype": dtype},
        small={"count": 3, "least": 40, "step": 7, "dtype": dtype},
        fills=fills if function == "adam" else {},
        error=1e-5 if dtype == F else 1e-2,
        peers=peers,
        bars=alone,
        graphed=True,
    )
