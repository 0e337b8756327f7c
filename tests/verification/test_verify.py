"""Test `rw.verify` on engines that do what they should, and on engines with one fault each."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from types import SimpleNamespace

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.rope.config import RopeConfig
from ropewalk.rope.model_ropes import ModelRopes
from ropewalk.rope.scaling import DynamicNTK, YaRN
from ropewalk.verification.check import Check
from ropewalk.verification.engine import NextTokens, NoAnswer, TooLong
from ropewalk.verification.fit import Prediction, PromptQuestion
from ropewalk.verification.golden import Golden
from ropewalk.verification.verify import DECODING, OurSide, expected_positions
from tests.checkpoints.prefixes import OurEngine
from tests.verification.fake_server import serving


def under(model, *, rope=None, extension=None):
    """The model as an engine with another rope (changes of its own) or extension."""
    own = model.config.ropes[0]
    changed = dataclasses.replace(own, **(rope or {}))
    return OurEngine(model.with_positions(rope=changed, extension=extension))


YARN = {"scaling": YaRN(4.0, 256)}
MORE = pytest.mark.thorough


def test_as_expected(small, verify):
    """The same rope: all others are refuted, and the verdict says how far it reaches."""
    found = verify(small, OurEngine(small))
    assert (
        found.verdict.sentence
        == "As expected, for prompts of up to 256 tokens and in decoding: plain RoPE (theta 10000)."
    )
    assert found.exit_status == 0
    assert max(question.tokens for question in found.prompts) <= 256
    assert 3 <= found.requests - len(found.prompts) - 6 <= 2 * DECODING
    best, second = found.hypotheses[:2]
    assert best.name == "as expected"
    assert best.misfit < 1e-5 < 1e-3 < second.misfit


def test_an_expected_block(small, verify):
    """YaRN 4, as a block of config.json would state it; the engine has no scaling."""
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    found = verify(small, OurEngine(small), expect=json.dumps(block))
    assert found.verdict.applied == ("no scaling",)
    assert "instead of yarn (factor 4" in found.verdict.sentence


def test_a_scaling_that_acts_beyond_the_trained_length_is_asked_there(small, verify):
    """Dynamic NTK equals plain within it: a verdict from shorter prompts would be worth nothing."""
    dynamic = under(small, rope={"scaling": DynamicNTK(1.0)})
    assert verify(small, dynamic, expect="dynamic:4").verdict.kind == "as expected"
    found = verify(small, OurEngine(small), expect="dynamic:4")
    assert found.verdict.kind == "other"
    assert found.verdict.applied[0] == "no scaling"
    assert max(question.tokens for question in found.prompts) > 256


def test_not_told_apart_for_want_of_length(small, verify):
    """Positions held at 256 cannot be seen in prompts of 200 tokens: never "as expected"."""
    found = verify(small, OurEngine(small), up_to=400, max_tokens=200)
    assert found.verdict.kind == "undecided"
    assert found.exit_status == 3
    assert "positions held at 256" in found.verdict.not_told_apart
    named = [one.name for one in found.hypotheses if one.name in found.verdict.not_told_apart]
    assert list(found.verdict.not_told_apart) == named, "of equal misfit, in the order of the hypotheses"
    assert found.verdict.needs_tokens == 257 + 96
    assert "needs prompts of up to 353 tokens" in str(found)
    assert verify(small, OurEngine(small), up_to=400, max_tokens=353).exit_status == 0
    assert verify(small, OurEngine(small), max_tokens=192).verdict.up_to == 192, "no longer prompt was sent"
    assert "--text" in dataclasses.replace(found.verdict, needs_tokens=None).sentence, "longer prompts would not help"


class Changed(OurEngine):
    """An engine whose answers to prompts a function changes; it gets the engine's `ask` and the ids."""

    def __init__(self, model, change):
        super().__init__(model)
        self.change = change

    def ask(self, input_ids):
        return self.change(super().ask, input_ids)


def refusing(model, error, refused):
    """An engine that refuses prompts of some lengths."""

    def change(ask, input_ids):
        if refused(len(input_ids)):
            raise error("refused", cure="-")
        return ask(input_ids)

    return Changed(model, change)


def short(model, longest=200):
    """An engine with a context of so many tokens."""
    return refusing(model, TooLong, lambda tokens: tokens > longest)


def test_a_context_that_ends_first(small, verify, state):
    """The same where the engine's own context is short; the verdict names it, also from a golden file."""
    golden = Golden.of(OurSide(small, up_to=400, state=state))
    for found in (verify(small, short(small), up_to=400), golden.check(short(small))):
        assert found.verdict.kind == "undecided"
        assert re.search(r"needs an engine that accepts more than [23]\d\d tokens", str(found))
        assert max(question.tokens for question in found.prompts) > 150
    engine = short(small, 10)
    for check in (lambda: verify(small, engine), lambda: golden.check(engine)):
        with pytest.raises(TooLong):
            check()


def test_a_prompt_without_an_answer_is_passed_over(small, verify):
    """llama.cpp says nothing with half a character; only an engine that never answers is refused."""
    found = verify(small, refusing(small, NoAnswer, lambda tokens: tokens % 2 == 0))
    assert found.verdict.kind == "as expected"
    assert all(question.tokens % 2 for question in found.prompts)
    with pytest.raises(NoAnswer):
        verify(small, refusing(small, NoAnswer, bool))


def test_noise_is_estimated(small, verify):
    """At 0.1 nats plain is still told from all that differs by more; the noise is measured in three ways."""
    generator = torch.Generator().manual_seed(3)

    def noisy(ask, input_ids):
        top = ask(input_ids).top
        noise = torch.randn(len(top), generator=generator) * 0.1
        return NextTokens({token: value + float(e) for (token, value), e in zip(top.items(), noise, strict=True)})

    found = verify(small, Changed(small, noisy))
    assert found.verdict.kind == "as expected"
    assert found.verdict.applied[0] == "plain RoPE (theta 10000)"
    assert 0.04 < found.noise < 0.16
    assert 0.06 < found.residual < 0.1
    assert 0.06 < found.repeated < 0.18


@pytest.mark.parametrize("theta", [10_700.0, pytest.param(14_000.0, marks=MORE), pytest.param(27_000.0, marks=MORE)])
def test_what_is_in_no_hypothesis_is_not_as_expected(small, theta, verify):
    """A theta between those of the set: near to what is expected or not, it is none of these."""
    found = verify(small, under(small, rope={"theta": theta}))
    assert found.verdict.kind == "none"
    assert found.exit_status == 1


@pytest.mark.parametrize(
    ("apart", "expect", "other", "kind"),
    [
        (0.02, "yarn:2", "yarn with beta_fast times 0.5", "as expected"),
        (0.02, None, "theta 12500", "undecided"),  # the resolution of every verdict
        (0.4, None, "theta 12500", "other"),
    ],
    ids=["small by nature", "below the noise", "above the noise"],
)
def test_the_noise_and_a_hypothesis_that_fits_better(small, apart, expect, other, kind):
    """Answers with an error of 0.1 nats around a hypothesis so far from the expected one, which they also fit."""
    side, generator = OurSide(small, expect=expect), torch.Generator().manual_seed(0)
    first, made, answers = side.first.name, [], {0: dict.fromkeys(range(20), -2.92)}
    for number in range(1, 17):
        theirs = -torch.rand(20, generator=generator).double() * 9
        tops = {first: theirs + apart * torch.randn(20, generator=generator), other: theirs}
        answers[number] = dict(enumerate((theirs + 0.1 * torch.randn(20, generator=generator)).tolist()))
        predictions = {name: Prediction(list(enumerate(top.tolist()))) for name, top in tops.items()}
        made.append(PromptQuestion([number] * 200, predictions))
    side.single = lambda: [PromptQuestion([0], {"": Prediction(list(dict.fromkeys(range(20), -3.0).items()))})]
    side.questions = lambda number, *_: [] if number else made
    side.confirming = lambda last: []
    side.decoding = list
    engine = SimpleNamespace(name="made", token_ids=lambda text: None,
                             generate=lambda ids, tokens: [NextTokens(answers[ids[0]], len(ids))])  # fmt: skip
    check = Check(side)
    check.alive = {name: side.all[name] for name in (first, other)}
    found = check.run(engine)
    assert found.hypotheses[0].name == other
    assert found.verdict.kind == kind
    if kind == "as expected":
        assert [effect.name for effect in found.verdict.not_excluded] == [other]
        assert f"{other} (its effect, 0.016 nats, is below the engine's noise, 0.079 nats)" in str(found)
        assert found.verdict.needs_tokens is None, "the trained length has been asked"
    if kind == "undecided":
        longest = dataclasses.replace(found.verdict, needs_tokens=None).sentence
        assert longest.endswith("needs an engine with less noise than 0.079 nats, such as 16-bit weights.")


def test_other_weights_are_none_of_these(small, verify):
    """An engine that serves another model."""
    torch.manual_seed(1)
    other = type(small)(small.config)
    other.tokenizer = small.tokenizer
    found = verify(small, OurEngine(other.eval()))
    assert found.verdict.kind == "none"
    assert str(found).startswith(
        "Neither plain RoPE (theta 10000) nor any other hypothesis explains the answers. After a"
    )


def test_another_tokenizer_is_said_first(small, verify):
    """No prompt is asked."""

    class Shifted(OurEngine):
        def token_ids(self, text):
            return [token + 1 for token in super().token_ids(text)][1:]

    found = verify(small, Shifted(small))
    assert (found.verdict.kind, found.exit_status, found.prompts) == ("tokens", 1, ())
    assert "tokens instead of" in found.verdict.sentence


def test_an_engine_that_adds_a_token_is_refused(small, verify):
    """Its count of the prompt is not that of the ids sent."""

    engine = Changed(small, lambda ask, ids: dataclasses.replace(ask(ids), prompt_tokens=len(ids) + 1))
    with pytest.raises(RopeError, match="different number of tokens"):
        verify(small, engine)


def cutting(model, kept):
    """An engine that computes the last `kept` tokens of a prompt, and does not report how many it reads."""
    return Changed(model, lambda ask, ids: NextTokens(ask(ids[-kept:]).top))


@pytest.mark.parametrize("kept", [200, 250])
def test_an_engine_that_cuts_prompts_is_not_as_expected(small, kept, verify):
    """It fits in the prompts that decide, of up to 192 tokens; longer ones are asked before a verdict covers them."""
    found = verify(small, cutting(small, kept))
    assert (found.verdict.kind, found.exit_status) == ("none", 1)
    assert "Check whether the engine cuts its prompts." in found.verdict.sentence


def test_an_engine_that_reports_no_length_is_trusted_less(small, verify):
    """The verdict names what it may do to prompts."""
    found = verify(small, cutting(small, 10**6))
    assert found.verdict.kind == "as expected"
    assert max(question.tokens for question in found.prompts) == 256
    assert found.verdict.up_to == 256
    assert "may cut prompts" in found.verdict.sentence


def test_a_verdict_covers_the_longest_prompt(small, verify):
    """An engine whose context is too short for the length of the verdict."""
    found = verify(small, short(small))
    assert max(question.tokens for question in found.prompts) == 192
    assert found.verdict.sentence.startswith("As expected, for prompts of up to 192 tokens")
    assert "The engine accepts at most 239 tokens." in str(found)


@pytest.mark.parametrize("every", [2, 10])
def test_replicas_that_differ(small, every, verify):
    """Every n-th request is answered without the scaling: named, whether or not the mean error is small."""
    right, wrong, asked = under(small, rope=YARN), OurEngine(small), itertools.count(1)
    engine = Changed(small, lambda ask, ids: (right if next(asked) % every else wrong).ask(ids))
    found = verify(small, engine, expect="yarn:4")
    assert (found.verdict.kind, found.verdict.applied, found.exit_status) == ("replicas", ("no scaling",), 1)
    assert re.match(
        r"Replicas differ: \d+ of \d+ answers follow yarn \(factor 4.*, and the others no scaling\.", str(found)
    )


class Sampling(OurEngine):
    """An engine that samples at temperature 1. `form` changes the likeliest tokens, given all and the sampled one."""

    def __init__(self, model, form):
        super().__init__(model)
        self.form = form

    def ask(self, input_ids):
        [every] = self.reader.top_after(input_ids, [len(input_ids)], count=260, seq_len=len(input_ids))
        sampled = every[15 + 37 * len(input_ids) % 200]
        return NextTokens(dict(self.form(every, sampled)), len(input_ids), token=sampled[0])


FORMS = {
    "21": lambda every, sampled: [sampled, *every[:20]],
    "5": lambda every, sampled: [*every[:5], sampled],
}


@pytest.mark.parametrize("form", FORMS)
def test_an_engine_that_samples(small, form, verify, state):
    """It refuses temperature 0 and `top_k`, and adds its token, which may not be in the file, to the likeliest."""
    golden = Golden.of(OurSide(small, state=state))

    def refuse(path, body, headers):
        return (400, "temperature") if body.get("temperature") == 0 or "top_k" in body else None

    for rope, kind in (({}, "as expected"), (YARN, "other")):
        engine = Sampling(under(small, rope=rope).reader, FORMS[form])
        with serving(engine, refuse, style="vllm") as url:
            for found in (verify(small, url), golden.check(url)):
                assert found.verdict.kind == kind, found.verdict.sentence
                assert found.verdict.applied[0] == ("plain RoPE (theta 10000)" if kind == "as expected" else "yarn 4")


def test_over_http(small, verify):
    """The whole way through a server, by its URL."""
    with serving(under(small, rope=YARN), style="vllm") as url:
        found = verify(small, url.replace("http", "HTTP"))
    assert found.verdict.applied == ("yarn 4",)
    assert str(found).endswith(
        "instead of plain RoPE (theta 10000). Compare --hf-overrides with those of `ropewalk serve-config`."
    )
    assert found.tokenisation.startswith("the same")
    document = json.loads(json.dumps(found.to_json()))
    assert document["verdict"]["kind"] == "other"
    assert document["requests"] == found.requests


@pytest.mark.parametrize("expect", ["yarn:0.5", "yarn", "yarn:x", '{"rope_type": '])
def test_expectations_that_are_none(expect):
    """A message each."""
    rope = RopeConfig(head_dim=32, interleaved=False, max_position_embeddings=256)
    with pytest.raises(RopeError, match="verify: "):
        expected_positions(ModelRopes((rope,), (None,), (None,)), expect, 256)


def test_an_engine_that_needs_another_checkpoint(tmp_path):
    """llama.cpp reads files, transformers folders."""
    file = tmp_path / "a.gguf"
    file.write_bytes(b"GGUF")
    from ropewalk.verification.adapters import TransformersEngine, llama_cpp_server

    with pytest.raises(RopeError, match="needs a Hugging Face folder"):
        TransformersEngine.load(file)
    with pytest.raises(RopeError, match=r"needs a \.gguf file"):
        llama_cpp_server(tmp_path, None).__enter__()
