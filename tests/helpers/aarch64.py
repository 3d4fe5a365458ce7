"""Code for AArch64, made on whatever machine the tests run on."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tedsl import processor as detection
from tedsl.processor import Machine

NEON = Machine("aarch64-unknown-linux-gnu", "neoverse-n1", "+neon", 128, 32, True, False, False)


@contextmanager
def believing(monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    """LLVM with the AArch64 target, and a backend that believes it runs there."""
    binding = detection.binding()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    try:
        binding.Target.from_triple(NEON.triple)
    except RuntimeError:
        pytest.skip("this llvmlite has no AArch64 target")
    monkeypatch.setattr(detection, "detect", lambda: NEON)
    yield binding


def assembly(llvm: Any, text: str) -> str:
    """Optimised assembly."""
    target = llvm.Target.from_triple(NEON.triple)
    tm = target.create_target_machine(cpu=NEON.cpu, features=NEON.features, opt=3, reloc="pic")
    parsed = llvm.parse_assembly(text)
    parsed.verify()
    builder = llvm.create_pass_builder(tm, llvm.PipelineTuningOptions(speed_level=3))
    builder.getModulePassManager().run(parsed, builder)
    return str(tm.emit_assembly(parsed))
