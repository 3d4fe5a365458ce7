"""Default schedules follow the device: each of four kinds of kernels on GPUs from Ampere on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import rule_cases as c
from attentions import attention

from tedsl.backends.triton.compile.offline import CompiledInfo, compile_offline
from tedsl.backends.triton.emit.module import emit
from tedsl.cost.estimate import estimate
from tedsl.devices import ARCHITECTURES, B200, H200, RTX4090, GpuDevice
from tedsl.dtypes import DType
from tedsl.ir.nodes import Module
from tedsl.lower.pipeline import lower
from tedsl.schedules import default_schedule, schedule_for
from tedsl.scheduling.handles.schedule import Schedule
from tedsl.target import Target
from tedsl.tensor.tensor import Tensor

B = "bfloat16"
CASES: dict[str, Callable[[], Tensor]] = {
    "product": lambda: c.matmul(4096, 4096, 4096, B),
    "rows": lambda: c.softmax(128, 1 << 20, dtype=B),
    "attention": lambda: attention(32, 2048, 2048, 128, B).result,
    "chain": lambda: c.chain(700, 800),
}
FLOPS = {"product": 2 * 4096**3, "attention": 4 * 32 * 2048 * 2048 * 128}
TMA = "cp.async.bulk.tensor"


def gpu_of(arch: str) -> GpuDevice:
    return Target.parse(f"cuda:{arch}").resolve_gpu()


@cache
def made(name: str, arch: str) -> tuple[Schedule, Module]:
    target = Target.parse(f"cuda:{arch}")
    s = default_schedule(CASES[name](), target)
    return s, lower(s.plan, target)


@cache
def compiled(name: str, arch: str) -> list[CompiledInfo]:
    return compile_offline(emit(made(name, arch)[1], f"cuda:{arch}"), arch)


@pytest.mark.ptxas
@pytest.mark.uncompiled("it is compiled here, for its own architecture")
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", CASES)
def test_a_default_schedule_fits_its_device(name: str, arch: str) -> None:
    gpu = gpu_of(arch)
    for info in compiled(name, arch):
        assert info.cubin
        assert info.shared <= gpu.shared_block, info.name
        assert gpu.has_tma or TMA not in info.ptx
    if name == "product":
        (info,) = compiled(name, arch)
        assert (TMA in info.ptx) == gpu.has_tma
        assert ("wgmma" in info.ptx) == gpu.has_wgmma
        assert ("tcgen05" in info.ptx) == gpu.has_tcgen05


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", CASES)
def test_the_model_predicts_it(name: str, arch: str) -> None:
    """Not below what memory and tensor cores take, and within some times of that and a launch
    (exponentials of attention take longer than its products on a B200)."""
    gpu, (_, module) = gpu_of(arch), made(name, arch)
    found = estimate(module, gpu, {})
    assert found.cannot_launch is None and found.shared <= gpu.shared_block
    buffers = (*module.inputs, *module.outputs)
    nbytes = sum(b.dtype.nbytes * math.prod(int(str(n)) for n in b.shape) for b in buffers)
    memory, multiplied = nbytes / gpu.bandwidth, FLOPS.get(name, 0) / gpu.tensor[DType.bfloat16]
    assert found.seconds >= max(multiplied, 0.0 if nbytes < gpu.l2 else memory)
    assert found.seconds <= 6 * max(multiplied, memory) + 10e-6


def test_schedules_differ_where_devices_do() -> None:
    def texts(arch: str) -> dict[str, str]:
        return {name: made(name, arch)[0].as_python() for name in CASES}

    hopper = texts("sm_90")
    assert {name for name in CASES if texts("sm_80")[name] != hopper[name]} >= {
        "product",
        "attention",
        "rows",
    }
    assert {name for name in CASES if texts("sm_89")[name] != hopper[name]} >= {
        "product",
        "attention",
    }
    assert texts("sm_100")["product"] != hopper["product"]


def test_persistent_programs_are_as_many_as_the_sms() -> None:
    for gpu in (H200, B200):
        assert f"factor={gpu.sms})" in made("product", gpu.arch)[0].as_python()


def test_what_the_driver_says_decides() -> None:
    """A GPU with fewer SMs is filled by larger tiles; trials of one device are not those of another
    one."""
    few = replace(RTX4090, name="NVIDIA L4", sms=58)

    def tile(gpu: GpuDevice) -> list[object]:
        s = schedule_for(c.matmul(1024, 1024, 512, B), "cuda", device=gpu)
        assert s.device == s.copy().device == gpu
        return [k.chosen for k in s.knobs if k.name.endswith((".bm", ".bn"))]

    assert tile(few) == [128, 128] and tile(RTX4090) == [128, 64]
