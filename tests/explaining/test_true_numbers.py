"""Numbers of `te.explain` that were once wrong: each is compared with what a person would count."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

import tedsl as te
from tedsl.errors import BackendError, InternalError
from tedsl.explaining.data import Bound, KernelCost, Resources
from tedsl.explaining.invariants import require_whole
from tedsl.explaining.text import resources_text

N = 512
WHOLE = 4 * N * N


def product() -> te.Tensor:
    a, b = (te.placeholder((N, N), name=name) for name in "AB")
    k = te.reduce_axis((0, N), name="k")
    return te.compute((N, N), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")


def chain() -> te.Schedule:
    """Two kernels of one program grid each, the second reads what the first wrote."""
    x = te.placeholder((N, N), name="x")
    y = te.compute((N, N), lambda i, j: x[i, j] * 2, name="y")
    z = te.compute((N, N), lambda i, j: y[i, j] + 1, name="z")
    s = te.create_schedule(z)
    for t in (y, z):
        outer, inner = s[t].split(s[t].fuse(*s[t].op.axis), 1024)
        s[t].bind(outer, "blockIdx.x")
        s[t].vectorize(inner)
    return s


def test_rows_and_columns_of_tails_are_counted() -> None:
    c = product()
    d = te.compute((N, N), lambda i, j: te.relu(c[i, j]), name="D")
    s = te.create_schedule(d)
    io, _, ii, ji = s[d].tile(*s[d].op.axis, 6, 48)
    io, _ = s[d].split(io, nparts=4)
    s[d].vectorize(ji)
    s[c].compute_at(s[d], ii)
    found = te.explain(s, "cpu")
    assert found.kernels[0].reads == {"A": WHOLE, "B": WHOLE}
    assert found.kernels[0].writes == {"D": WHOLE}
    assert found.nbytes == found.least_bytes


def test_like_is_compared_with_like_on_a_gpu() -> None:
    found = te.explain(chain(), "cuda:sm_90")
    second = found.kernels[1]
    assert not second.reads and second.cached == {"y": WHOLE}
    assert "reads    nothing; from the cache y 1.05 MB" in str(found)
    assert found.saved == 0 and "fusion saves 0 B" in str(found)


def test_one_stage_saves_nothing() -> None:
    found = te.explain(te.create_schedule(product()), "cuda:sm_90")
    assert found.kernels[0].reads == {"A": WHOLE, "B": WHOLE} and found.saved == 0


def test_with_caches_or_without_is_said() -> None:
    s = te.create_schedule(product())
    with_caches, without = te.explain(s, "cpu"), te.explain(s, "cpu", caches=False)
    assert "caches counted and cold at first; of every access, without caches: " in str(with_caches)
    assert "bytes of every access, without caches" in str(without)
    assert without.kernels[0].reads["A"] == 4 * N**3
    assert without.nbytes == without.accessed == with_caches.accessed
    assert without.seconds == with_caches.seconds


def test_counts_that_contradict_the_program_are_refused() -> None:
    s = chain()
    module = te.lower(s, "cuda:sm_90")
    kernels = te.explain(s, "cuda:sm_90").kernels
    require_whole(module, kernels, {})

    def changed(place: int, **touched: tuple[int, int]) -> list[KernelCost]:
        found = list(kernels)
        found[place] = replace(found[place], touched={**found[place].touched, **touched})
        return found

    with pytest.raises(InternalError, match="bytes of z do not agree: 4 bytes written of 1048576"):
        require_whole(module, changed(1, z=(0, 4)), {})
    with pytest.raises(InternalError, match="bytes of y do not agree: reads 1048576 bytes, of 8"):
        require_whole(module, changed(0, y=(0, 8)), {})


def test_what_stays_in_a_cache_is_said_to() -> None:
    x = te.placeholder((64, 64), name="x")
    found = te.explain(te.compute((64, 64), lambda i, j: te.exp(x[i, j])), "cpu")
    assert found.kernels[0].memory_seconds == 0
    assert "memory not counted: between calls all of it stays in the last cache" in str(found)


def test_more_time_for_fewer_bytes_is_explained() -> None:
    c = product()
    d = te.compute((N, N), lambda i, j: c[i, j] + 1.0, name="D")
    s = te.create_schedule(d)
    s[c].compute_at(s[d], s[d].op.axis[1])
    found = te.explain(s, "cpu")
    assert found.unfused is not None and found.saved > 0 and found.seconds > found.unfused.seconds
    assert "yet predicted to take longer: the compute of D" in str(found)


def test_an_estimate_says_when_it_is_uncertain() -> None:
    sure = Resources(26, 0, 0, 4, 256, 1.0, False, 255)
    unsure = Resources(142, 0, 0, 4, 256, 0.2, False, 255)
    assert not sure.uncertain and resources_text(sure).count("(estimated);") == 1
    assert unsure.uncertain and "only te.build tells whether any spill" in resources_text(unsure)
    assert not Resources(142, 0, 0, 4, 256, 0.2, True).uncertain


def test_spills_are_said_first_with_what_would_help() -> None:
    c = product()
    s = te.create_schedule(c)
    io, jo, ii, ji = s[c].tile(*s[c].op.axis, 256, 256)
    s[c].bind(io, "blockIdx.y")
    s[c].bind(jo, "blockIdx.x")
    s[c].vectorize(ii)
    s[c].vectorize(ji)
    for warps, advice in ((4, r"launch\(num_warps=8\), or make"), (8, "make")):
        s[c].launch(num_warps=warps)
        said = str(te.explain(s, "cuda:sm_90"))
        totals, _, rest = said.partition("\nkernel C\n")
        assert re.search(r"(?m)^spills: kernel C, \d+ registers spilled$", totals)
        assert re.search(rf"uses .*\n  do       .*{advice} the tile smaller", rest)
    assert "spills:" not in str(te.explain(chain(), "cuda:sm_90"))


def test_a_device_for_the_cpu_is_refused() -> None:
    with pytest.raises(BackendError, match=r"'NVIDIA H300', and the target is cpu"):
        te.explain(product(), "cpu", device="NVIDIA H300")


@pytest.mark.parametrize(
    ("part", "vectorized", "said"),
    [
        (32, False, "what is added up is a loop"),
        (8, True, "its tile is 64 x 64 x 8, the least is 16 x 16 x 16"),
        (32, True, ""),
    ],
)
def test_a_product_that_is_no_dot_says_why(part: int, vectorized: bool, said: str) -> None:
    c = product()
    d = te.compute((N, N), lambda i, j: te.relu(c[i, j]), name="D")
    s = te.create_schedule(d)
    io, jo, ii, ji = s[d].tile(*s[d].op.axis, 64, 64)
    block = s[d].fuse(io, jo)
    s[d].bind(block, "blockIdx.x")
    s[d].vectorize(ii)
    s[d].vectorize(ji)
    s[c].compute_at(s[d], block)
    _, inner = s[c].split(s[c].op.reduce_axis[0], part)
    if vectorized:
        s[c].vectorize(inner)
    found = te.explain(s, "cuda:sm_90")
    told = [str(each) for each in found.kernels[0].missed]
    assert len(told) == bool(said) and said in "".join(told)
    assert ("no tl.dot" in str(found)) == bool(said)
    assert "tl.dot" in (te.Stage.vectorize.__doc__ or "")


def test_save(tmp_path: Path) -> None:
    found = te.explain(chain(), "cuda:sm_90")
    assert found.save(tmp_path / "deep" / "e.txt").read_text() == f"{found}\n"
    assert '"accessed"' in found.save(tmp_path / "e.json").read_text()
    assert "<html" in found.save(tmp_path / "e.html").read_text()
    with pytest.raises(BackendError, match=r"'e.pdf'(.|\n)*allowed .html, .json, .txt"):
        found.save(tmp_path / "e.pdf")
    assert Bound.LAUNCH in {kernel.bound for kernel in found.kernels}
