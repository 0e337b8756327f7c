"""The run: what is due, what is shared, what is kept, and how it is summed."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.attention import extensions
from ropewalk.attention.extensions import DualChunk
from ropewalk.diagnosis.document import at_run_time, config_changes, turning
from ropewalk.diagnosis.measurement import Measurement, WindowResult
from ropewalk.diagnosis.plan import KIND, Job, fingerprint, plan, take_windows, trained_length_of
from ropewalk.diagnosis.protocol import Protocol
from ropewalk.diagnosis.run import run
from ropewalk.errors import RopeError
from ropewalk.families import Trained
from ropewalk.ledger import Ledger, cache_folder
from ropewalk.methods import METHODS
from ropewalk.readers.adapters import reader_of
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.losses import window_losses
from ropewalk.readers.workers import fitting_workers
from ropewalk.rope import scaling
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import NTK, YaRN
from tests.diagnosis.models import ROPE, random_ids, tiny_decoder, under_method

EXTENSIONS = [name for name, method in METHODS.items() if method.scales_frequencies and not method.on_request]
IN_ATTENTION = [name for name, method in METHODS.items() if method.in_attention]


class Recorder:
    """A progress that keeps what it is told."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.tokens: list[int] = []
        self.expected = 0

    def begin(self, description: str, tokens: int) -> None:
        """Keep the step."""
        self.begun.append(description)
        self.expected += tokens

    def advance(self, tokens: int) -> None:
        """Keep the tokens."""
        self.tokens.append(tokens)


def ledger_at(folder: Path | None, key: str = "key", *, resume: bool = True) -> Ledger:
    """A ledger of losses, ready to be added to."""
    ledger = Ledger(folder, kind=KIND, key=key)
    _ = ledger.resume() if resume else ledger.begin()
    return ledger


def planned(model: Any, of: Protocol, methods: list[str] | None = None) -> Any:
    """The plan of a run of this model."""
    return plan(reader_of(model), of, methods)


def protocol(**changes: int) -> Protocol:
    """16 trained tokens, 64 wanted, two windows."""
    return Protocol.choose(**{"trained_length": 16, "windows": 2, **changes}, text="random")  # type: ignore[arg-type]


def measure(model: Any, of: Protocol, methods: list[str] | None = None, ledger: Ledger | None = None) -> Measurement:
    """A whole run on random tokens."""
    windows = take_windows(random_ids(200).tolist(), of)
    return run(reader_of(model), windows, planned(model, of, methods), ledger_at(None) if ledger is None else ledger)


def test_every_method_is_measured_once() -> None:
    """What a config can hold, and crop; dynamic has ntk's frequencies at this length and shares its numbers."""
    found = measure(tiny_decoder(), protocol())
    assert list(found.results) == ["plain", *EXTENSIONS, "crop"]
    assert found.same_as == {"dynamic": "ntk", "abf": "plain"}  # theta 10,000 suffices for 64 tokens
    assert found.results["dynamic"] is not None
    assert found.block_means("dynamic") == found.block_means("ntk")


def test_block_means_are_the_means_of_the_losses() -> None:
    """Blocks by predicted position, the first one short by one; within and beyond are their own means."""
    model, of = tiny_decoder(), protocol(block=24)
    found = measure(model, of)
    for index, ids in enumerate(take_windows(random_ids(200).tolist(), of)):
        losses = window_losses(model.with_positions(rope=found.positions["yarn"].ropes), ids)
        by_hand = [losses[:23].mean(), losses[23:47].mean(), losses[47:].mean()]
        assert found.block_means("yarn")[index] == pytest.approx(by_hand)
        assert found.within("yarn")[index] == pytest.approx(losses[:15].mean())
        assert found.beyond("yarn")[index] == pytest.approx(losses[15:].mean())  # type: ignore[index]
    whole = np.mean([(15 * w + 48 * b) / 63 for w, b in zip(found.within("pi"), found.beyond("pi") or [], strict=True)])
    assert found.mean_over("pi", range(3)) == pytest.approx(whole)


def test_crop_equals_plain_within_and_not_beyond() -> None:
    """The first trained length of crop is plain's."""
    found = measure(tiny_decoder(), protocol())
    assert found.within("crop") == found.within("plain")
    assert found.beyond("crop") != found.beyond("plain")


def test_a_scaling_in_the_checkpoint_is_measured_as_is_and_removed_elsewhere() -> None:
    """plain is the rope at its trained length; the checkpoint's own YaRN x4, for inference, is the method yarn."""
    scaled = dataclasses.replace(ROPE, scaling=YaRN(4.0, 16), max_position_embeddings=64, trained=Trained(False))
    model = tiny_decoder(scaled)
    assert trained_length_of(reader_of(model), None) == 16
    found = measure(model, protocol())
    assert found.same_as == {"yarn": "as-is", "dynamic": "ntk", "abf": "plain"}
    unscaled = measure(tiny_decoder(ROPE), protocol())
    assert found.block_means("plain") == unscaled.block_means("plain")
    assert found.block_means("yarn") == unscaled.block_means("yarn")


def test_a_scaling_that_the_model_was_trained_with_is_plain() -> None:
    """Its trained length is the long one, it is measured as it is, and the methods act on top of it."""
    scaled = dataclasses.replace(ROPE, scaling=YaRN(4.0, 4), max_position_embeddings=16, trained=Trained(True))
    model = tiny_decoder(scaled)
    assert trained_length_of(reader_of(model), None) == 16
    found = measure(model, protocol())
    assert "as-is" not in found.results
    ids = take_windows(random_ids(200).tolist(), protocol())[0]
    assert found.within("plain")[0] == pytest.approx(window_losses(model, ids)[:15].mean())
    block = config_changes("yarn", found)
    assert (block["rope_parameters"]["rope_type"], block["max_position_embeddings"]) == ("longrope", 64)
    assert config_changes("plain", found) == {"rope_parameters": scaled.to_hf(), "max_position_embeddings": 16}
    assert config_changes("dynamic", found)["rope_parameters"] is None
    assert "Stacked(of=YaRN(" in str(at_run_time("dynamic", found))
    assert turning("plain", found)["inv_freq"] == turning("plain", found)["inv_freq_unscaled"]


def test_a_scaling_of_which_nothing_is_known_is_not_guessed() -> None:
    """Only the doctor can say; what a person states about the length it takes."""
    scaled = dataclasses.replace(ROPE, scaling=YaRN(4.0, 16), max_position_embeddings=64)
    with pytest.raises(RopeError, match=r"(?s)not known whether.*with it +64.*without it +16.*ropewalk doctor"):
        trained_length_of(reader_of(tiny_decoder(scaled)), None)


def test_layers_without_rope_and_short_windows_keep_what_they_have() -> None:
    """Only the full layer is extended."""
    model = tiny_decoder((ROPE, None, ROPE), num_hidden_layers=3, sliding_window=(8, None, None))
    ropes = planned(model, protocol(), ["ntk"]).positions["ntk"].ropes
    assert ropes == (ROPE, None, dataclasses.replace(ROPE, scaling=NTK(4.0)))


def test_plain_is_always_measured() -> None:
    """Differences are paired to it; the order is METHODS', not the caller's."""
    assert list(measure(tiny_decoder(), protocol(), ["crop", "yarn"]).results) == ["plain", "yarn", "crop"]


def test_within_the_trained_length_only_plain_applies() -> None:
    """Nothing to extend: an extension asked for by name is refused."""
    model, of = tiny_decoder(), protocol(target=12, block=4)
    found = measure(model, of)
    assert list(found.results) == ["plain"]
    for name, message in [("yarn", "the target is within the trained length"), ("crop", "only beyond the trained")]:
        with pytest.raises(RopeError, match=message):
            planned(model, of, [name])


def test_an_unknown_method_is_refused() -> None:
    """The message lists the known ones."""
    with pytest.raises(RopeError, match=r"unknown method[\s\S]*plain, as-is, pi,[\s\S]*p-rope, cope,[\s\S]*crop"):
        planned(tiny_decoder(), protocol(), ["alibi"])


def test_a_model_without_rope_is_refused() -> None:
    """There is nothing to extend."""
    with pytest.raises(RopeError, match="no rotary embedding in any layer"):
        trained_length_of(reader_of(tiny_decoder(None)), 16)


def test_a_silent_trained_length_must_be_given() -> None:
    """And what is given counts, whatever the config says."""
    silent = tiny_decoder(dataclasses.replace(ROPE, max_position_embeddings=None))
    with pytest.raises(RopeError, match="--trained-length"):
        trained_length_of(reader_of(silent), None)
    assert trained_length_of(reader_of(silent), 32) == 32
    assert trained_length_of(reader_of(tiny_decoder()), 32) == 32


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    """Broken weights are named, not averaged."""
    model = tiny_decoder()
    with torch.no_grad():
        model.norm.weight.fill_(math.nan)
    with pytest.raises(RopeError, match=r"not a finite number[\s\S]*plain"):
        measure(model, protocol())


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
    found = run(reader_of(model), windows, work, second)
    for name in whole.results:
        np.testing.assert_allclose(found.block_means(name), whole.block_means(name), rtol=0, atol=1e-6)
        np.testing.assert_allclose(found.within(name), whole.within(name), rtol=0, atol=1e-6)
    assert list((path / "leases").iterdir()) == []


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
    monkeypatch.setattr("ropewalk.diagnosis.plan.METHODS", {**METHODS, "dca": changed})
    assert [job.method for job in planned(model, of, ["dca"]).due(ledger_at(tmp_path))] == ["dca", "dca"]
    found = measure(model, of, ["dca"], ledger_at(tmp_path))
    assert found.positions["dca"].extensions[0] == DualChunk(chunk=4, trained_length=16)
    monkeypatch.undo()
    assert not planned(model, of, ["dca"]).due(ledger_at(tmp_path))


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    """Another fingerprint."""
    ledger_at(tmp_path / "s", "one").add("plain/x/0", WindowResult((1.0,), 1.0, 0.1).to_json())
    with pytest.raises(RopeError, match="results of another job"):
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


def test_methods_by_name_by_comma_and_all() -> None:
    """Names in any form, in one order; all adds every other that needs no tuning."""

    def chosen(*asked: str) -> tuple[str, ...]:
        return planned(tiny_decoder(), protocol(), list(asked)).methods

    assert chosen("crop", "yarn,pi") == ("plain", "pi", "yarn", "crop")
    others = ("mrrope", "rerope", "self-extend", "string", "lampe", "jet-long", "dca", "log-n", "streaming")
    assert chosen("all") == ("plain", *EXTENSIONS, *others, "crop")
    assert chosen("all", "drope", "p-rope", "cope") == tuple(name for name in METHODS if name != "as-is")
    assert chosen(" , ") == chosen()


def test_methods_in_attention_are_measured_as_they_run() -> None:
    """Each one's losses are those of the model that `applied` gives, in one full forward."""
    model, of = tiny_decoder(), protocol()
    found = measure(model, of, ["all,drope,p-rope"])
    windows = take_windows(random_ids(200).tolist(), of)
    for name in ("p-rope", *IN_ATTENTION):
        other = under_method(model, name, trained=16, target=64)
        with torch.no_grad():
            logits = other(windows)
        losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), windows[:, 1:], reduction="none")
        want = [row[15:].mean().item() for row in losses]
        assert found.beyond(name) == pytest.approx(want, abs=1e-4)
        assert name == "p-rope" or any(found.positions[name].extensions)
    assert found.positions["drope"].ropes == (None, None)
    assert len({round(found.mean_over(name, [15]), 6) for name in ("plain", *IN_ATTENTION)}) == 1 + len(IN_ATTENTION)


def test_first_tokens_can_keep_their_angles() -> None:
    """LongRoPE's n-hat: below it a position turns by the plain frequencies, from it on by the method's, and the losses
    are those of exactly that rotation; plain and methods in attention are left as they are."""
    model, of = tiny_decoder(), protocol(unscaled_tokens=5)
    found, scaled = measure(model, of, ["pi,yarn,dca"]), measure(model, protocol(), ["pi,yarn,dca"])
    plain = columns_of(ROPE)
    for name in ("pi", "yarn"):
        rope, whole = found.positions[name].ropes[0], scaled.positions[name].ropes[0]
        assert rope is not None
        assert whole is not None
        cos, _ = rw.RotaryEmbedding(rope).cos_sin(torch.arange(64), 64)
        positions = np.arange(64.0)[:, None]
        angles = np.where(positions < 5, positions * plain, positions * columns_of(whole, 64))
        np.testing.assert_allclose(cos, np.cos(angles), rtol=0, atol=1e-6)
        assert attention_factor_of(rope, 64) == attention_factor_of(whole, 64)
        assert found.beyond(name) != scaled.beyond(name)
    for name in ("plain", "dca"):
        assert found.beyond(name) == scaled.beyond(name)
    assert (
        under_method(model, "yarn", trained=16, target=64, unscaled_tokens=5).config.ropes
        == found.positions["yarn"].ropes
    )
    assert config_changes("yarn", found)["rope_parameters"] is None
    assert str(at_run_time("yarn", found)).startswith("model.with_positions(rope=RopeConfig(")
    call = str(at_run_time("yarn", found))
    arguments = eval(
        call.replace("model.with_positions", "dict"),
        {**{name: getattr(rw, name) for name in rw.__all__}, **vars(scaling)},
    )
    assert arguments == {"rope": found.positions["yarn"].ropes[0]}
    chunks = "DualChunk(chunk=12, trained_length=16, log_n=None)"
    assert at_run_time("dca", found) == f"model.with_positions(extension={chunks})"
    assert at_run_time("plain", found) is None
    names = {**vars(rw), **vars(scaling), **vars(extensions)}
    scaled_model = tiny_decoder(sliding_window=(None, 8)).with_positions(
        rope=dataclasses.replace(ROPE, scaling=YaRN(4.0, 16))
    )
    for model in (tiny_decoder(), tiny_decoder(sliding_window=(None, 8)), scaled_model):
        found = measure(model, of, ["all,drope,p-rope"])
        for name in ("pi", *IN_ATTENTION):
            meant = under_method(model, name, trained=16, target=64, unscaled_tokens=5).config
            called = eval(str(at_run_time(name, found)), {**names, "model": model}).config
            assert (called.ropes, called.extensions) == (meant.ropes, meant.extensions)
    assert "The first 5 tokens of a window keep their angles" in of.sentence()
    for wrong in (-1, 64, 1.5):
        with pytest.raises(RopeError, match="`unscaled_tokens` must be a whole number"):
            protocol(unscaled_tokens=wrong)  # type: ignore[arg-type]


def test_layers_with_short_windows_stay_out_of_attention_methods() -> None:
    """They never see further than they were trained to."""
    model = tiny_decoder(sliding_window=(None, 8))
    for name in IN_ATTENTION:
        config = under_method(model, name, trained=16, target=64).config
        assert config.extensions[0] is not None
        assert config.extensions[1] is None
        assert config.ropes[1] == ROPE


def test_within_the_trained_length_no_method_in_attention_applies() -> None:
    """As those on frequencies."""
    with pytest.raises(RopeError, match="`dca` extends, but the target is within"):
        planned(tiny_decoder(), protocol(target=16), ["dca"])
    assert planned(tiny_decoder(), protocol(target=16), ["all"]).methods == ("plain",)


def test_windows_of_several_texts_come_from_each() -> None:
    """In the texts' order, each at its own places, and the same again under the same seed."""
    of = Protocol.choose(trained_length=16, windows=2, text=["a", "b"], seed=3)
    texts = [list(range(300)), list(range(1000, 1200))]
    windows = take_windows(texts, of)
    assert windows.shape == (4, 64)
    assert (windows[:2] < 300).all()
    assert (windows[2:] >= 1000).all()
    assert torch.equal(windows, take_windows(texts, of))
    again = Protocol.choose(trained_length=16, windows=2, text=["a", "b"], seed=4)
    assert not torch.equal(windows, take_windows(texts, again))
    found = run(reader_of(tiny_decoder()), windows % 50, planned(tiny_decoder(), of, ["pi"]), ledger_at(None))
    assert len(found.within("pi")) == 4
    with pytest.raises(RopeError, match=r"too short[\s\S]*text +'b'"):
        take_windows([texts[0], texts[1][:100]], of)


@pytest.mark.parametrize("workers", [2, 5])
def test_several_workers_find_the_same_numbers(workers: int) -> None:
    """All cores at once change nothing, and every job is begun and every token told once."""
    model, of = tiny_decoder(), protocol(windows=3)
    windows = take_windows(random_ids(300).tolist(), of)
    shown, reader, work = Recorder(), reader_of(model), planned(model, of, ["all"])
    found = run(reader, windows, work, ledger_at(None), workers=workers, progress=shown)
    alone = run(reader, windows, work, ledger_at(None))
    assert found == dataclasses.replace(
        alone,
        results={
            name: tuple(
                dataclasses.replace(theirs, seconds=ours.seconds, peak_rss_bytes=ours.peak_rss_bytes)
                for theirs, ours in zip(alone.results[name], found.results[name], strict=True)
            )
            for name in found.results
        },
    )
    jobs: tuple[Job, ...] = work.due(ledger_at(None))
    steps = [f"{job.method}, window {job.window + 1} of 3" for job in jobs]
    assert sorted(step.split("] ")[1] for step in shown.begun) == sorted(steps)
    assert sum(shown.tokens) >= sum(job.tokens for job in jobs) == shown.expected
    with pytest.raises(RopeError, match="workers"):
        run(reader, windows, planned(model, of, ["pi"]), ledger_at(None), workers=0)


class Interrupted(DecoderReader):
    """A reader on which Ctrl-C falls at the sixth window."""

    calls = itertools.count()

    def under(self, positions: Any) -> Interrupted:
        """Itself, under other positions."""
        return Interrupted(super().under(positions).model)

    def window_losses(self, *args: Any, **kwargs: Any) -> Any:
        """As ever, but for one."""
        if next(self.calls) == 5:
            raise KeyboardInterrupt
        return super().window_losses(*args, **kwargs)


def test_several_workers_stop_together(tmp_path: Path) -> None:
    """An interrupt ends all of them; what was ready is kept, no lease stays, and the rest is due."""
    model, of = tiny_decoder(), protocol(windows=3)
    windows, work = take_windows(random_ids(300).tolist(), of), planned(tiny_decoder(), of, ["pi,yarn,ntk"])
    ledger = ledger_at(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(Interrupted(model), windows, work, ledger, workers=2)
    assert 4 <= len(ledger) < 12
    assert len(work.due(ledger)) == 12 - len(ledger)
    assert list((tmp_path / "leases").iterdir()) == []


def test_workers_fit_cores_jobs_and_memory() -> None:
    """One core, one job, or a cache beyond two gigabytes leaves one worker."""
    model = tiny_decoder()
    assert fitting_workers(reader_of(model), 64, 100) == torch.get_num_threads()
    assert fitting_workers(reader_of(model), 64, 1) == 1
    assert fitting_workers(reader_of(model), 2**25, 100) == 1


def test_a_models_own_extension_is_measured_as_is() -> None:
    """What was extended in attention is measured as it is, beside its plain self."""
    from ropewalk.attention.extensions import ReRoPE

    extended = tiny_decoder().with_positions(extension=ReRoPE(window=8))
    work = planned(extended, protocol())
    assert work.methods[:2] == ("plain", "as-is")
    assert work.positions["as-is"].extensions == (ReRoPE(window=8),) * 2
    assert work.positions["plain"].extensions == (None, None)


def test_threads_are_as_before_after_several_workers() -> None:
    """Also those that begin later."""
    model, of = tiny_decoder(), protocol(windows=2)
    windows, before = take_windows(random_ids(200).tolist(), of), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run(reader_of(model), windows, planned(model, of, ["pi"]), ledger_at(None), workers=3)
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (torch.get_num_threads(), later) == (3, [3])
    finally:
        torch.set_num_threads(before)
