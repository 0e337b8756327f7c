"""A stopped run: resumed to the same numbers, from a ledger of its own."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ropewalk.attention.extensions import DualChunk
from ropewalk.errors import RopeError
from ropewalk.ledger import cache_folder
from ropewalk.measure.losses import WindowResult, run
from ropewalk.measure.plan import fingerprint, take_windows
from ropewalk.methods import METHODS
from ropewalk.readers.adapters import reader_of
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder
from tests.diagnosis.small_runs import Recorder, ledger_at, measure, planned, protocol, ran


class _Interrupt(Exception):
    """Stands for Ctrl-C, between jobs or within one."""


@pytest.mark.parametrize("stop_at", [1, 2, 5, 6, 11])
@pytest.mark.parametrize("within_job", [False, True])
def test_a_stopped_run_resumes_to_the_same_numbers(tmp_path: Path, stop_at: int, within_job: bool) -> None:
    """Stopped before or inside any job, the state is whole, done jobs are not run again, and the end is the same."""
    model, of, path = tiny_decoder(), protocol(), tmp_path / "state"
    windows = take_windows(random_ids(200).tolist(), of)
    whole = measure(model, of)

    class Stopping(Recorder):
        def begin(self, description: str, tokens: int) -> None:
            super().begin(description, tokens)
            if not within_job and len(self.begun) == stop_at + 1:
                raise _Interrupt

        def advance(self, tokens: int) -> None:
            if within_job and len(self.begun) == stop_at + 1:
                raise _Interrupt

    work = planned(model, of)
    with pytest.raises(_Interrupt):
        run(reader_of(model), windows, work, ledger_at(path), progress=Stopping())
    second = ledger_at(path)
    assert len(second) == stop_at
    assert len(work.due(second)) == 14 - stop_at
    found = ran(reader_of(model), windows, work, second)
    for name in whole.results:
        np.testing.assert_allclose(found.block_means(name), whole.block_means(name), rtol=0, atol=1e-6)
        np.testing.assert_allclose(found.within(name), whole.within(name), rtol=0, atol=1e-6)


def test_a_resumed_run_may_ask_for_more_methods(tmp_path: Path) -> None:
    """What is there already is not measured again."""
    model, of = tiny_decoder(), protocol()
    measure(model, of, ["yarn"], ledger_at(tmp_path))
    assert {job.method for job in planned(model, of, ["yarn", "pi"]).due(ledger_at(tmp_path))} == {"pi"}


def test_another_form_of_a_method_is_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that has changed since: the same name is measured again, and what was there stays."""
    model, of = tiny_decoder(), protocol()
    measure(model, of, ["dca"], ledger_at(tmp_path))
    assert not planned(model, of, ["dca"]).due(ledger_at(tmp_path))
    changed = dataclasses.replace(
        METHODS["dca"], extension=lambda reach: DualChunk(chunk=4, trained_length=reach.trained)
    )
    monkeypatch.setattr("ropewalk.measure.plan.METHODS", {**METHODS, "dca": changed})
    assert [job.method for job in planned(model, of, ["dca"]).due(ledger_at(tmp_path))] == ["dca", "dca"]
    found = measure(model, of, ["dca"], ledger_at(tmp_path))
    assert found.positions["dca"].extensions[0] == DualChunk(chunk=4, trained_length=16)
    monkeypatch.undo()
    assert not planned(model, of, ["dca"]).due(ledger_at(tmp_path))


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    """Another fingerprint."""
    ledger_at(tmp_path / "s", "one").add("plain/x/0", WindowResult((1.0,), 1.0, 0.1).to_json())
    with pytest.raises(RopeError, match="results of a different job"):
        ledger_at(tmp_path / "s", "two")
    assert len(ledger_at(tmp_path / "absent", "one")) == 0


def test_the_state_holds_exact_numbers(tmp_path: Path) -> None:
    """The ledger keeps every bit of a float."""
    result = WindowResult((1 / 3, 2.0**-40), math.pi, 0.5)
    ledger_at(tmp_path).add("yarn/x/3", result.to_json())
    assert WindowResult.from_json(ledger_at(tmp_path)["yarn/x/3"]) == result


def test_the_fingerprint_tells_runs_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights, config, text and protocol all count; an equal run has the same."""
    windows, of = random_ids(128).view(2, 64), protocol()
    model = tiny_decoder()
    base = fingerprint(reader_of(model), windows, of)
    assert base == fingerprint(reader_of(tiny_decoder()), windows.clone(), protocol())
    other = tiny_decoder()
    with torch.no_grad():
        other.layers[1].mlp.up_proj.weight.add_(1e-3)
    assert base != fingerprint(reader_of(other), windows, of)
    assert base != fingerprint(reader_of(tiny_decoder(dataclasses.replace(ROPE, theta=1e5))), windows, of)
    assert base != fingerprint(reader_of(model), windows.flip(0), of)
    assert base != fingerprint(reader_of(model), windows, protocol(block=8))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder("doctor", base) == tmp_path / "ropewalk" / "doctor" / base
