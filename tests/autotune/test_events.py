"""Events of a search: what is told, in which order, and as JSON lines."""

import json
from pathlib import Path

import pytest
from small_problems import chain, pieces

import tedsl as te
from tedsl.autotune import tune
from tedsl.autotune.report.events import KINDS, Event, EventFile, Phase, Stage, Tried, event_of
from tedsl.errors import TuneError


def test_an_event_is_a_line_of_json_and_back():
    event = Tried(
        at=1.5, number=3, candidate="a=1", status="ok", time=2e-6, resources={"registers": 40.0}
    )
    line = event.to_json()
    assert json.loads(line)["event"] == "tried"
    assert event_of(line) == event
    phase = Phase(at=0.0, stage=Stage.FINALS)
    assert event_of(phase.to_json()) == phase


def test_infinite_numbers_are_left_out_of_json():
    assert (
        json.loads(Tried(at=1.0, number=0, candidate="", status="wrong").to_json())["time"] is None
    )
    endless = Tried(at=float("inf"), number=0, candidate="", status="ok", time=float("nan"))
    assert "Infinity" not in endless.to_json()


@pytest.mark.parametrize("line", ["", "{}", '{"event": "dance"}', '{"event": "phase", "at": 0}'])
def test_what_is_no_event_is_refused(line: str):
    with pytest.raises(TuneError, match="is no event of a search"):
        event_of(line)


def test_every_kind_has_its_name():
    assert all(kind.kind == name for name, kind in KINDS.items())
    assert len(KINDS) == 11


@pytest.mark.cpu
def test_a_search_tells_what_it_does(tmp_path: Path):
    heard: list[Event] = []
    found = tune(
        chain(), "cpu", records=False, schedule=pieces(8, 64, 512, 3001), events=heard.append
    )
    kinds = [event.kind for event in heard]
    assert kinds[:2] == ["started", "phase"]
    assert kinds[-1] == "finished"
    assert kinds.count("proposed") == kinds.count("compiled") == kinds.count("tried") == 4
    stages = [event.stage for event in heard if isinstance(event, Phase)]
    assert stages == [Stage.SETUP, Stage.SEARCH, Stage.FINALS, Stage.BUILD]
    times = [event.at for event in heard]
    assert times == sorted(times)
    for number in range(4):
        order = [e.kind for e in heard if getattr(e, "number", None) == number]
        assert order[:3] == ["proposed", "compiled", "tried"]
    assert [e.kind for e in found.events] == [
        kind for kind in kinds if kind not in ("proposed", "compiled")
    ]


@pytest.mark.cpu
def test_events_are_appended_to_a_file(tmp_path: Path):
    path = tmp_path / "deep" / "events.jsonl"
    records = tmp_path / "r.sqlite"
    for _ in range(2):
        tune(chain(), "cpu", records=records, schedule=pieces(8, 64), events=path)
    events = [event_of(line) for line in path.read_text().splitlines()]
    ends = [json.loads(e.to_json())["state"] for e in events if e.kind == "finished"]
    assert ends == ["exhausted", "replayed"]


def test_only_a_path_or_a_function_can_listen():
    with pytest.raises(TuneError, match="events is 3"):
        tune(te.placeholder((8,), "float32", name="x") + 1.0, "cpu", records=False, events=3)


def test_a_file_is_made_at_the_first_event(tmp_path: Path):
    path = tmp_path / "e.jsonl"
    file = EventFile(path)
    file.close()
    assert not path.exists()
    file(Phase(at=0.0, stage=Stage.SEARCH))
    file.close()
    file(Phase(at=1.0, stage=Stage.FINALS))
    file.close()
    assert len(path.read_text().splitlines()) == 2
