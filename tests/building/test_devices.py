"""What is known of devices, and how the one of a target is found."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

import tedsl as te
from tedsl import devices, target
from tedsl.detect import Asked, cpu_here, described
from tedsl.devices import A100, ARCHITECTURES, H100, H200, RTX4090, CpuDevice, GpuDevice, gpu_like
from tedsl.errors import BackendError
from tedsl.target import Target


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_architecture_is_a_gpu(arch: str) -> None:
    found = Target.parse(f"cuda:{arch}").resolve()
    assert isinstance(found, GpuDevice) and found.arch == arch
    assert found.shared_block < found.shared_sm <= found.l2
    assert found.has_tcgen05 <= found.multiplies_shared <= found.has_tma <= found.has_float8


def test_units_by_architecture() -> None:
    def having(unit: str) -> list[str]:
        return [a for a in ARCHITECTURES if getattr(devices.gpu_of(a), unit)]

    assert having("has_tma") == having("has_clusters") == ["sm_90", "sm_100", "sm_120"]
    assert having("has_wgmma") == ["sm_90"]
    assert having("has_tcgen05") == ["sm_100"]
    assert having("has_float8") == ["sm_89", "sm_90", "sm_100", "sm_120"]


def test_unknown_architectures_are_refused_with_the_known_ones() -> None:
    known = ", ".join(f"cuda:{arch}" for arch in ARCHITECTURES)
    with pytest.raises(BackendError, match=rf"unknown target 'cuda:sm_91'(.|\n)*{known}"):
        te.build(te.placeholder((4,)) + 1.0, "cuda:sm_91")
    with pytest.raises(BackendError, match=r"unknown architecture 'sm_75'(.|\n)*sm_80, sm_86"):
        devices.gpu_of("sm_75")


def test_without_a_gpu_cuda_is_the_default_device() -> None:
    for name in ("cuda", "cuda:sm_90", "triton-interpret"):
        assert Target.parse(name).resolve() == H200


def test_the_gpu_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "gpu_here", lambda: A100)
    assert Target.parse("cuda").resolve() == A100
    for name in ("cuda:sm_90", "triton-interpret"):
        assert Target.parse(name).resolve() == H200


def told(**said: int) -> GpuDevice:
    """A GPU of a name that no document has."""
    return described("NVIDIA X", lambda what: said.get(what.name, 0))


HOPPER = {"MAJOR": 9, "SMS": 132, "SHARED_BLOCK": 232448, "REGISTERS_SM": 65536, "L2": 60 << 20}


@pytest.mark.parametrize("known", [H100, H200])
def test_a_known_gpu_has_the_figures_of_its_documents(known: GpuDevice) -> None:
    said: Mapping[str, int] = {**HOPPER, "CLOCK": 1980000, "MEMORY_CLOCK": 1, "MEMORY_BUS": 6144}
    assert described(known.name, lambda what: said.get(what.name, 0)) == known


def test_other_gpus_have_the_figures_of_the_driver() -> None:
    bus = {"CLOCK": 2_000_000, "MEMORY_CLOCK": 5_000_000, "MEMORY_BUS": 512}
    found = told(MAJOR=8, MINOR=9, SMS=58, SHARED_BLOCK=99 << 10, L2=48 << 20, **bus)
    assert (found.name, found.arch, found.sms, found.l2) == ("NVIDIA X", "sm_89", 58, 48 << 20)
    assert found.clock == 2e9 and found.bandwidth == 640e9
    assert found.products_cycle == RTX4090.products_cycle
    assert told(MAJOR=10, MINOR=3, SMS=160).has_tcgen05
    assert told(MAJOR=8, MINOR=7, SMS=16, SHARED_BLOCK=163 << 10).shared_block == 163 << 10
    slower = described("NVIDIA H100 PCIe", lambda what: {**HOPPER, "SMS": 114}.get(what.name, 0))
    assert slower.sms == 114 and slower.l2 == 60 << 20


def test_names_of_gpus() -> None:
    assert gpu_like("NVIDIA A100-SXM4-40GB") is not None and gpu_like("A100") == A100
    assert gpu_like("NVIDIA GeForce RTX 4090") == RTX4090
    assert not devices.is_named(RTX4090, "NVIDIA GeForce RTX 4090 Laptop GPU")
    assert not devices.is_named(RTX4090, "NVIDIA GeForce RTX 4080")
    assert gpu_like("", "sm_87", 16).arch == "sm_87"


def test_the_processor() -> None:
    found = Target.parse("cpu").resolve()
    assert isinstance(found, CpuDevice) and found == cpu_here()
    assert found.cores >= 1 and found.lanes(4) * 32 == found.vector_bits
    assert found.bandwidth == 0.0, "the rules do not wait for a measurement"


def test_a_schedule_knows_its_device() -> None:
    x = te.placeholder((8,), name="x")
    assert te.create_schedule(x + 1.0).device is None
    assert te.create_schedule(x + 1.0, target="cuda").device == H200
    assert isinstance(te.create_schedule(x + 1.0, target="cpu").device, CpuDevice)


def test_attributes_have_the_numbers_of_the_driver() -> None:
    """Those of `CUdevice_attribute` in the CUDA Driver API."""
    assert [Asked.CLOCK, Asked.SMS, Asked.L2, Asked.MAJOR, Asked.MINOR] == [13, 16, 38, 75, 76]
    assert [Asked.SHARED_SM, Asked.REGISTERS_SM, Asked.SHARED_BLOCK] == [81, 82, 97]
