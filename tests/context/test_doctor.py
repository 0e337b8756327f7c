"""The run: what is due, what is shared, what is kept, and how it is summed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.attention import extension
from ropewalk.attention.extension import DualChunk
from ropewalk.context.doctor import Job, Measurement, gather, plan, run, take_windows, trained_length_of
from ropewalk.context.measure import window_losses
from ropewalk.context.methods import EXTENSIONS, IN_ATTENTION, METHODS, applied
from ropewalk.context.protocol import Protocol
from ropewalk.context.report import at_run_time, config_changes
from ropewalk.context.state import State, WindowResult, default_path, fingerprint
from ropewalk.context.workers import fitting_workers
from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.rope import scaling
from ropewalk.rope.frequencies import attention_factor_of, columns_of
from ropewalk.rope.scaling import NTK, YaRN
from tests.context.models import ROPE, random_ids, tiny_decoder


def protocol(**changes: int) -> Protocol:
    """16 trained tokens, 64 wanted, two windows."""
    return Protocol.choose(**{"trained_length": 16, "windows": 2, **changes}, text="random")  # type: ignore[arg-type]


def measure(model: Decoder, of: Protocol, methods: list[str] | None = None, state: State | None = None) -> Measurement:
    """A whole run on random tokens."""
    kept = state or State(None, "")
    windows = take_windows(random_ids(200).tolist(), of)
    return run(model, windows, plan(model, of, methods, kept), kept)


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
        losses = window_losses(model.with_rope(found.ropes["yarn"]), ids)
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
    """plain is the rope at its trained length; the checkpoint's own YaRN x4 is the method yarn."""
    scaled = dataclasses.replace(ROPE, scaling=YaRN(4.0, 16), max_position_embeddings=64)
    model = tiny_decoder(scaled)
    assert trained_length_of(model, None) == 16
    found = measure(model, protocol())
    assert found.same_as == {"yarn": "as-is", "dynamic": "ntk", "abf": "plain"}
    unscaled = measure(tiny_decoder(ROPE), protocol())
    assert found.block_means("plain") == unscaled.block_means("plain")
    assert found.block_means("yarn") == unscaled.block_means("yarn")


def test_layers_without_rope_and_short_windows_keep_what_they_have() -> None:
    """Only the full layer is extended."""
    model = tiny_decoder((ROPE, None, ROPE), num_hidden_layers=3, sliding_window=(8, None, None))
    ropes = plan(model, protocol(), ["ntk"], State(None, "")).ropes["ntk"]
    assert ropes == (ROPE, None, dataclasses.replace(ROPE, scaling=NTK(4.0)))


def test_plain_is_always_measured() -> None:
    """Differences are paired to it; the order is METHODS', not the caller's."""
    assert list(measure(tiny_decoder(), protocol(), ["crop", "yarn"]).results) == ["plain", "yarn", "crop"]


def test_within_the_trained_length_only_plain_applies() -> None:
    """Nothing to extend: nothing recommended, and an extension asked for by name is refused."""
    model, of = tiny_decoder(), protocol(target=12, block=4)
    found = measure(model, of)
    assert list(found.results) == ["plain"]
    assert found.recommendation().method is None
    for name, message in [("yarn", "the target is within the trained length"), ("crop", "only beyond the trained")]:
        with pytest.raises(RopeError, match=message):
            plan(model, of, [name], State(None, ""))


def test_an_unknown_method_is_refused() -> None:
    """The message lists the known ones."""
    with pytest.raises(RopeError, match=r"unknown method[\s\S]*plain, as-is, pi,[\s\S]*p-rope, rerope,[\s\S]*crop"):
        plan(tiny_decoder(), protocol(), ["alibi"], State(None, ""))


def test_a_model_without_rope_is_refused() -> None:
    """There is nothing to extend."""
    with pytest.raises(RopeError, match="no rotary embedding in any layer"):
        trained_length_of(tiny_decoder(None), 16)


def test_a_silent_trained_length_must_be_given() -> None:
    """And what is given counts, whatever the config says."""
    silent = tiny_decoder(dataclasses.replace(ROPE, max_position_embeddings=None))
    with pytest.raises(RopeError, match="--trained-length"):
        trained_length_of(silent, None)
    assert trained_length_of(silent, 32) == 32
    assert trained_length_of(tiny_decoder(), 32) == 32


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
    model, of, path = tiny_decoder(), protocol(), tmp_path / "state.json"
    windows = take_windows(random_ids(200).tolist(), of)
    whole = measure(model, of)
    begun: list[Job] = []

    def begin(job: Job) -> None:
        begun.append(job)
        if not within_job and len(begun) == stop_at + 1:
            raise _Interrupt

    def advance(tokens: int) -> None:
        if within_job and len(begun) == stop_at + 1:
            raise _Interrupt

    first = State(path, "key")
    with pytest.raises(_Interrupt):
        run(model, windows, plan(model, of, None, first), first, begin=begin, advance=advance)
    second = State(path, "key")
    assert second.resume() == stop_at
    rest = plan(model, of, None, second)
    assert len(rest.jobs) == 14 - stop_at
    found = run(model, windows, rest, second)
    for name in whole.results:
        np.testing.assert_allclose(found.block_means(name), whole.block_means(name), rtol=0, atol=1e-6)
        np.testing.assert_allclose(found.within(name), whole.within(name), rtol=0, atol=1e-6)
    assert list(tmp_path.iterdir()) == [path]


def test_a_resumed_run_may_ask_for_more_methods(tmp_path: Path) -> None:
    """What is there already is not measured again."""
    model, of = tiny_decoder(), protocol()
    measure(model, of, ["yarn"], State(tmp_path / "s.json", "key"))
    state = State(tmp_path / "s.json", "key")
    state.resume()
    assert {job.method for job in plan(model, of, ["yarn", "pi"], state).jobs} == {"pi"}


def test_results_of_another_form_of_a_method_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default that has changed since: the same name is another method."""
    model, of = tiny_decoder(), protocol()
    measure(model, of, ["dca"], State(tmp_path / "s.json", "key"))
    state = State(tmp_path / "s.json", "key")
    assert state.resume() == 4
    assert not plan(model, of, ["dca"], state).jobs
    monkeypatch.setitem(IN_ATTENTION, "dca", lambda trained, target: DualChunk(chunk=4, trained_length=trained))
    with pytest.raises(RopeError, match=r"another form of it[\s\S]*'dca'"):
        plan(model, of, ["dca"], state)


def test_a_state_of_another_run_is_refused(tmp_path: Path) -> None:
    """Another fingerprint, or a damaged file."""
    path = tmp_path / "s.json"
    State(path, "one").add("plain", 0, WindowResult((1.0,), 1.0, 0.1))
    with pytest.raises(RopeError, match="belongs to another model, text or protocol"):
        State(path, "two").resume()
    path.write_text(path.read_text()[:40])
    with pytest.raises(RopeError, match="cannot be read"):
        State(path, "one").resume()
    assert State(tmp_path / "absent.json", "one").resume() == 0


def test_the_state_holds_exact_numbers(tmp_path: Path) -> None:
    """JSON keeps every bit of a float."""
    result = WindowResult((1 / 3, 2.0**-40), math.pi, 0.5)
    State(tmp_path / "s.json", "k").add("yarn", 3, result)
    again = State(tmp_path / "s.json", "k")
    again.resume()
    assert again.results == {("yarn", 3): result}
    assert json.loads((tmp_path / "s.json").read_text())["fingerprint"] == "k"


def test_the_fingerprint_tells_runs_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights, config, text and protocol all count; an equal run has the same."""
    windows, of = random_ids(128).view(2, 64), protocol()
    model = tiny_decoder()
    base = fingerprint(model, windows, of)
    assert base == fingerprint(tiny_decoder(), windows.clone(), protocol())
    other = tiny_decoder()
    with torch.no_grad():
        other.layers[1].mlp.up_proj.weight.add_(1e-3)
    assert base != fingerprint(other, windows, of)
    assert base != fingerprint(tiny_decoder(dataclasses.replace(ROPE, theta=1e5)), windows, of)
    assert base != fingerprint(model, windows.flip(0), of)
    assert base != fingerprint(model, windows, protocol(block=8))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path(base) == tmp_path / "ropewalk" / "doctor" / f"{base}.json"


def test_methods_by_name_by_comma_and_all() -> None:
    """Names in any form, in one order; all adds those in attention that need no tuning."""

    def chosen(*asked: str) -> tuple[str, ...]:
        return plan(tiny_decoder(), protocol(), list(asked), State(None, "")).methods

    assert chosen("crop", "yarn,pi") == ("plain", "pi", "yarn", "crop")
    assert chosen("all") == ("plain", *EXTENSIONS, "rerope", "self-extend", "dca", "log-n", "streaming", "crop")
    assert chosen("all", "drope", "p-rope") == tuple(name for name in METHODS if name != "as-is")
    assert chosen(" , ") == chosen()


def test_methods_in_attention_are_measured_as_they_run() -> None:
    """Each one's losses are those of the model that `applied` gives, in one full forward."""
    model, of = tiny_decoder(), protocol()
    found = measure(model, of, ["all,drope,p-rope"])
    windows = take_windows(random_ids(200).tolist(), of)
    for name in ("p-rope", *IN_ATTENTION):
        other = applied(model, name, trained_length=16, target=64)
        with torch.no_grad():
            logits = other(windows)
        losses = torch.nn.functional.cross_entropy(logits[:, :-1].transpose(1, 2), windows[:, 1:], reduction="none")
        want = [row[15:].mean().item() for row in losses]
        assert found.beyond(name) == pytest.approx(want, abs=1e-4)
        assert name == "p-rope" or any(found.extensions[name])
    assert found.ropes["drope"] == (None, None)
    assert len({round(found.mean_over(name, [15]), 6) for name in ("plain", *IN_ATTENTION)}) == 1 + len(IN_ATTENTION)


def test_first_tokens_can_keep_their_angles() -> None:
    """LongRoPE's n-hat: below it a position turns by the plain frequencies, from it on by the method's, and the losses
    are those of exactly that rotation; plain and methods in attention are left as they are."""
    model, of = tiny_decoder(), protocol(unscaled_tokens=5)
    found, scaled = measure(model, of, ["pi,yarn,dca"]), measure(model, protocol(), ["pi,yarn,dca"])
    plain = columns_of(ROPE)
    for name in ("pi", "yarn"):
        rope, whole = found.ropes[name][0], scaled.ropes[name][0]
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
    assert applied(model, "yarn", trained_length=16, target=64, unscaled_tokens=5).config.ropes == found.ropes["yarn"]
    assert config_changes("yarn", found)["rope_parameters"] is None
    assert str(at_run_time("yarn", found)).startswith("model.with_rope(RopeConfig(")
    call = str(at_run_time("yarn", found))
    assert eval(call[call.index("(") :], {**vars(rw), **vars(scaling)}) == found.ropes["yarn"][0]
    assert at_run_time("dca", found) == "model.with_extension(DualChunk(chunk=12, trained_length=16, log_n=None))"
    assert at_run_time("plain", found) is None
    names = {**vars(rw), **vars(scaling), **vars(extension)}
    scaled_model = tiny_decoder(sliding_window=(None, 8)).with_rope(dataclasses.replace(ROPE, scaling=YaRN(4.0, 16)))
    for model in (tiny_decoder(), tiny_decoder(sliding_window=(None, 8)), scaled_model):
        found = measure(model, of, ["all,drope,p-rope"])
        for name in ("pi", *IN_ATTENTION):
            meant = applied(model, name, trained_length=16, target=64, unscaled_tokens=5).config
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
        config = applied(model, name, trained_length=16, target=64).config
        assert config.extensions[0] is not None
        assert config.extensions[1] is None
        assert config.ropes[1] == ROPE


def test_within_the_trained_length_no_method_in_attention_applies() -> None:
    """As those on frequencies."""
    with pytest.raises(RopeError, match="`dca` extends, but the target is within"):
        plan(tiny_decoder(), protocol(target=16), ["dca"], State(None, ""))
    assert plan(tiny_decoder(), protocol(target=16), ["all"], State(None, "")).methods == ("plain",)


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
    found = run(tiny_decoder(), windows % 50, plan(tiny_decoder(), of, ["pi"], State(None, "")), State(None, ""))
    assert len(found.within("pi")) == 4
    with pytest.raises(RopeError, match=r"too short[\s\S]*text +'b'"):
        take_windows([texts[0], texts[1][:100]], of)


@pytest.mark.parametrize("workers", [2, 5])
def test_several_workers_find_the_same_numbers(workers: int) -> None:
    """All cores at once change nothing, and every job is begun and every token told once."""
    model, of = tiny_decoder(), protocol(windows=3)
    windows = take_windows(random_ids(300).tolist(), of)
    begun: list[Job] = []
    told: list[int] = []
    state = State(None, "")
    work = plan(model, of, ["all"], state)
    found = run(model, windows, work, state, workers=workers, begin=begun.append, advance=told.append)
    alone = State(None, "")
    assert found == dataclasses.replace(
        run(model, windows, plan(model, of, ["all"], alone), alone),
        results={
            name: tuple(
                dataclasses.replace(theirs, seconds=ours.seconds, peak_rss_bytes=ours.peak_rss_bytes)
                for theirs, ours in zip(gather(work, alone).results[name], found.results[name], strict=True)
            )
            for name in found.results
        },
    )
    assert sorted(map(str, begun)) == sorted(map(str, work.jobs))
    assert sum(told) >= sum(job.tokens for job in work.jobs)
    with pytest.raises(RopeError, match="workers"):
        run(model, windows, plan(model, of, ["pi"], State(None, "")), State(None, ""), workers=0)


def test_several_workers_stop_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt ends all of them; what was ready is kept, and the rest is due."""
    from ropewalk.context import doctor as module

    model, of = tiny_decoder(), protocol(windows=3)
    windows = take_windows(random_ids(300).tolist(), of)
    measure, calls = module.window_losses, itertools.count()

    def stopping(*args: object, **kwargs: object) -> object:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return measure(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "window_losses", stopping)
    state = State(None, "")
    with pytest.raises(KeyboardInterrupt):
        run(model, windows, plan(model, of, ["pi,yarn,ntk"], state), state, workers=2)
    assert 4 <= len(state.results) < 12
    assert len(plan(model, of, ["pi,yarn,ntk"], state).jobs) == 12 - len(state.results)


def test_workers_fit_cores_jobs_and_memory() -> None:
    """One core, one job, or a cache beyond two gigabytes leaves one worker."""
    model = tiny_decoder()
    assert fitting_workers(model, 64, 100) == torch.get_num_threads()
    assert fitting_workers(model, 64, 1) == 1
    assert fitting_workers(model, 2**25, 100) == 1


def test_a_models_own_extension_is_measured_as_is() -> None:
    """What was extended in attention is measured as it is, beside its plain self."""
    from ropewalk.attention.extension import ReRoPE

    extended = tiny_decoder().with_extension(ReRoPE(window=8))
    work = plan(extended, protocol(), None, State(None, ""))
    assert work.methods[:2] == ("plain", "as-is")
    assert work.extensions["as-is"] == (ReRoPE(window=8),) * 2
    assert work.extensions["plain"] == (None, None)


def test_threads_are_as_before_after_several_workers() -> None:
    """Also those that begin later."""
    model, of, state = tiny_decoder(), protocol(windows=2), State(None, "")
    windows, before = take_windows(random_ids(200).tolist(), of), torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        run(model, windows, plan(model, of, ["pi"], state), state, workers=3)
        later: list[int] = []
        thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert (torch.get_num_threads(), later) == (3, [3])
    finally:
        torch.set_num_threads(before)
