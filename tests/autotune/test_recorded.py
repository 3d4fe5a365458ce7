"""Recorded spaces: read, written, and searched like any other."""

import gzip
import random
from pathlib import Path

import pytest
from toy_spaces import judge, tiles, toy

from tedsl.autotune.outcome import Outcome, Status
from tedsl.autotune.search.simulate.recorded_space import read_space, write_space
from tedsl.autotune.search_space.space import Candidate, Rejected
from tedsl.errors import TuneError

SPACES = Path(__file__).resolve().parents[1] / "data" / "spaces"


def drawn(count: int) -> list[Candidate]:
    rng, space = random.Random(0), toy(tiles)
    found = [space.default(), *(space.sample(rng) for _ in range(count))]
    return list({c.key: c for c in found if isinstance(c, Candidate)}.values())


def test_what_is_written_is_read_again(tmp_path: Path):
    rows = [(c, judge(c), {"bytes": float(n)} if n % 2 else None) for n, c in enumerate(drawn(200))]
    one, two = tmp_path / "toy.csv.gz", tmp_path / "again.csv.gz"
    for path in (one, two):
        write_space(path, [*rows, *rows], name="toy", device="none", notice="mine")
    assert one.read_bytes() == two.read_bytes()
    space = read_space(one)
    assert (space.name, space.notice, len(space)) == ("toy", "mine", len(rows))
    assert space.default().decisions == toy(tiles).default().decisions
    for candidate, outcome, features in rows:
        found = space.candidate(candidate.decisions, "record")
        assert isinstance(found, Candidate)
        assert found.decisions == candidate.decisions
        got = space.outcome(found)
        assert got.status is outcome.status
        assert (got.seconds or 0) == pytest.approx(outcome.seconds or 0, rel=1e-5)
        assert space.describe([found])[0] == (features or {})


def test_published_spaces_are_legal_points_and_failures():
    space = read_space(SPACES / "convolution_milo_A4000.csv.gz")
    assert len(space) == 4362
    assert sum(o.status is Status.OK for o in space.outcomes) == 4201
    assert {o.status for o in space.outcomes} == {Status.OK, Status.CRASH, Status.COMPILE_ERROR}
    assert space.best == pytest.approx(1.02117e-3)
    first = space.default()
    near = list(space.neighbours(first))
    assert near
    for other in near:
        assert isinstance(other, Candidate)
        changed = [n for n, v in other.decisions.items() if first.decisions[n] != v]
        assert len(changed) == 1
    refused = space.candidate({**first.decisions, "block_size_x": 17}, "record")
    assert isinstance(refused, Rejected)


def test_what_is_no_recorded_space_is_refused(tmp_path: Path):
    path = tmp_path / "other.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with pytest.raises(TuneError, match="last columns are not time_ms and compile_ms"):
        read_space(path)
    path.write_bytes(gzip.compress(b'# {"format": "another"}\n'))
    with pytest.raises(TuneError, match="format is 'another'"):
        read_space(path)
    failed = [(c, Outcome(Status.CRASH), None) for c in drawn(5)]
    write_space(path, failed, name="all failed", device="none")
    with pytest.raises(TuneError, match="no point of the recorded space 'all failed' ran"):
        read_space(path)
