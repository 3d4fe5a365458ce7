"""Lesser machines whose code runs on this one, for tests of what other processors get."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tedsl import processor as detection
from tedsl.processor import Machine

MACHINES = ("plain", "avx2", "other")


def variants() -> dict[str, Machine]:
    """Plain x86-64, AVX2, and the paths that other architectures take."""
    here = detection.detect()
    if not here.is_x86:
        return {}
    plain = replace(
        here,
        cpu="x86-64",
        features="",
        vector_bits=128,
        has_fma=False,
        has_masks=False,
        has_half=False,
    )
    if not here.has_fma:
        return {"plain": plain}
    new = ("avx512", "avx10", "amx")
    kept = [f for f in here.features.split(",") if not any(name in f for name in new)]
    avx2 = replace(here, cpu="haswell", features=",".join(kept), vector_bits=256, has_masks=False)
    return {
        "plain": plain,
        "avx2": avx2,
        "other": replace(avx2, vector_bits=128, is_x86=False),
    }


@contextmanager
def compiling_for(name: str) -> Generator[Machine]:
    """Make the CPU backend believe it runs on the machine `name`."""
    found = variants()
    if name not in found:
        pytest.skip("this machine cannot run that code")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(detection, "detect", lambda: found[name])
        yield found[name]
