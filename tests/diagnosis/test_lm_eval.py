"""The adapter for lm-eval, on the built-in model: the harness's numbers are our losses."""

from __future__ import annotations

import dataclasses
import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropewalk.checkpoints.load import load
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.errors import RopeError
from ropewalk.extend.job import export
from ropewalk.models.decoder import Decoder
from ropewalk.models.generation import generate
from ropewalk.readers.losses import window_losses
from ropewalk.rope.scaling import DynamicNTK, Linear, Llama3, LongRoPE, Resonance, Scaling, YaRN
from tests.diagnosis.models import ROPE, tiny_decoder, under_method

TEXT = (
    "It was the best of times, said the old man, and nobody in the house had a better word for it. " * 12 + "The end."
)

needs_lm_eval = pytest.mark.skipif(
    importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed: pip install ropewalk[lm-eval]"
)


@pytest.fixture(scope="module")
def tiny() -> Decoder:
    return load("tiny", dtype=torch.float32)  # it is stored in bfloat16, in which a batch rounds otherwise


def adapter(model: Decoder, **options: Any) -> Any:
    from ropewalk.diagnosis.lm_eval import RopewalkLM

    return RopewalkLM(model, **options)


def instance(kind: str, *arguments: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)  # type: ignore[arg-type]


def kit_of(model: Decoder) -> TextTokenizer:
    assert model.tokenizer is not None
    return model.tokenizer


@needs_lm_eval
@pytest.mark.parametrize("batch_size", [1, 3])
def test_loglikelihood_is_the_loss_of_the_window(tiny: Decoder, batch_size: int) -> None:
    """Context and continuation tokenised together; mean per token within 1e-4, and no context means bos."""
    kit = kit_of(tiny)
    cuts = [(0, TEXT.index(" old")), (0, 2), (0, TEXT.index(" nobody", 300))]
    requests = [instance("loglikelihood", TEXT[start:cut], TEXT[cut : cut + 80]) for start, cut in cuts]
    requests.append(instance("loglikelihood", "", TEXT[:50]))
    lm = adapter(tiny, batch_size=batch_size)
    found = lm.loglikelihood(requests, disable_tqdm=True)
    begin = [kit.bos_id] if lm.add_bos else []
    for request, (log_prob, greedy) in zip(requests, found, strict=True):
        context, continuation = request.args
        before = begin + kit.encode(context) if context else [kit.bos_id]
        whole = [*before[: len(before) - len(kit.encode(context))], *kit.encode(context + continuation)]
        losses = window_losses(tiny, torch.tensor(whole), first=len(before))
        assert log_prob == pytest.approx(-losses.sum(), abs=1e-4 * len(losses))
        assert greedy is False


@needs_lm_eval
def test_a_long_context_loses_its_beginning(tiny: Decoder) -> None:
    """The model reads `max_length` tokens, the last of which predicts the last of the continuation."""
    kit = kit_of(tiny)
    lm = adapter(tiny, max_length=64, add_bos=False)
    [(found, _)] = lm.loglikelihood([instance("loglikelihood", TEXT, " It is")], disable_tqdm=True)
    kept = kit.encode(TEXT + " It is")[-65:]
    count = len(kit.encode(TEXT + " It is")) - len(kit.encode(TEXT))
    losses = window_losses(tiny, torch.tensor(kept), first=len(kept) - count)
    assert found == pytest.approx(-losses.sum(), abs=1e-4 * len(losses))
    with pytest.raises(RopeError, match="no token of its context fits"):
        lm.loglikelihood([instance("loglikelihood", "A", TEXT)], disable_tqdm=True)


@needs_lm_eval
@pytest.mark.parametrize("method", ["yarn", "llama3", "resonance", "pi", "ntk", "abf", "plain"])
def test_an_extended_model_reads_as_far_as_it_was_extended(method: str, tiny: Decoder, tmp_path: Path) -> None:
    """Once exported all do; as an object those whose rule says how far, and any that is told."""
    target = 256 if method == "plain" else 1024
    model = under_method(tiny, method, trained=256, target=1024)
    states = method in ("yarn", "llama3", "resonance")
    assert adapter(model).max_length == (1024 if states else 256)
    found = export(model, tmp_path / "out", method=method, trained_length=256, target=target, source="tiny")
    lm = adapter(str(found.folder))
    assert lm.max_length == target
    assert adapter(model, max_length=700).max_length == 700


@pytest.mark.parametrize(
    ("scaling", "stated", "length"),
    [
        (None, 256, 256),
        (YaRN(4.0, 256), 256, 1024),
        (YaRN(4.0, 256), None, 1024),
        (Llama3(8.0, 1.0, 4.0, 8192), 131_072, 131_072),  # Llama 3.1: the config says more than factor x original
        (Resonance(YaRN(2.5, 256)), 256, 640),
        (LongRoPE((1.0,) * 4, (2.0,) * 4, 256), 2048, 2048),
        (LongRoPE((1.0,) * 4, (2.0,) * 4, 256, factor=16.0), 256, 4096),
        (DynamicNTK(4.0), 256, 1024),
        (Linear(4.0), 1024, 1024),  # after export: the factor is in the length already
    ],
)
@needs_lm_eval
def test_the_length_is_the_largest_that_the_rope_states(scaling: Scaling | None, stated: int, length: int) -> None:
    """The config's or the rule's, whichever is meant to be read."""
    model = tiny_decoder(dataclasses.replace(ROPE, scaling=scaling, max_position_embeddings=stated), vocab_size=257)
    model.tokenizer = TextTokenizer.bytes()
    assert adapter(model).max_length == length


@needs_lm_eval
def test_a_cut_context_is_named(tiny: Decoder, caplog: pytest.LogCaptureFixture) -> None:
    """How many, how long and the cure, of likelihoods and completions; nothing where all fits."""
    kit = kit_of(tiny)
    lm = adapter(tiny, max_length=64, add_bos=False)
    short, count = instance("loglikelihood", "The old", " man"), len(kit.encode(TEXT + " It is"))
    lm.loglikelihood([short], disable_tqdm=True)
    lm.generate_until([instance("generate_until", "The old", {"max_gen_toks": 4})], disable_tqdm=True)
    assert caplog.messages == []
    lm.loglikelihood([short, instance("loglikelihood", TEXT, " It is")], disable_tqdm=True)
    lm.generate_until([instance("generate_until", TEXT, {"max_gen_toks": 4})], disable_tqdm=True)
    one, two = caplog.messages
    assert one.startswith(
        f"1 of 2 contexts lose their beginning: the longest has {count - 1:,} tokens, and with max_length=64"
    )
    assert two.startswith(f"1 of 1 contexts lose their beginning: the longest has {len(kit.encode(TEXT)):,} tokens")
    assert "leaves room for 60." in two
    assert one.endswith("pass max_length=...")


@needs_lm_eval
def test_rolling_is_the_loss_of_disjoint_windows(tiny: Decoder) -> None:
    """Every token once, 100 in a window, after bos or the last token of the window before; the last reads 100, too."""
    kit = kit_of(tiny)
    ids = kit.encode(TEXT)
    cut = len(ids) - len(ids) % 100
    assert 200 <= cut < len(ids)
    lm = adapter(tiny, max_length=100, batch_size=2)
    requests = [instance("loglikelihood_rolling", TEXT), instance("loglikelihood_rolling", TEXT[:60])]
    found = lm.loglikelihood_rolling(requests, disable_tqdm=True)
    losses = [
        window_losses(tiny, torch.tensor([ids[start - 1] if start else kit.bos_id, *ids[start : start + 100]]))
        for start in range(0, cut, 100)
    ]
    losses.append(window_losses(tiny, torch.tensor(ids[-101:]), first=101 - len(ids) + cut))
    together = np.concatenate(losses)
    assert len(together) == len(ids)
    assert found[0] == pytest.approx(-together.sum(), abs=1e-4 * len(ids))
    short = [kit.bos_id, *kit.encode(TEXT[:60])]
    assert found[1] == pytest.approx(-window_losses(tiny, torch.tensor(short)).sum(), abs=1e-4 * len(short))


@needs_lm_eval
def test_generation_is_ours_cut_at_the_stop(tiny: Decoder) -> None:
    """Each as alone, in the order of the requests, with its own settings."""
    kit = kit_of(tiny)
    lm = adapter(tiny, batch_size=2, add_bos=False)
    prompts = ["The old man", "She said that", "The house"]
    [said] = generate(tiny, kit.encode(prompts[1]), max_new_tokens=12, stop_tokens=kit.eos_ids)
    stop = kit.decode(said[4:6])
    assert stop in kit.decode(said)
    settings = [{"until": [], "max_gen_toks": 12}, {"until": [stop], "max_gen_toks": 12}, {"max_gen_toks": 5}]
    requests = [instance("generate_until", *pair) for pair in zip(prompts, settings, strict=True)]
    found = lm.generate_until(requests, disable_tqdm=True)
    for prompt, given, text in zip(prompts, settings, found, strict=True):
        [new] = generate(tiny, kit.encode(prompt), max_new_tokens=given["max_gen_toks"], stop_tokens=kit.eos_ids)  # type: ignore[arg-type]
        whole = kit.decode(new)
        assert text == (whole.split(stop)[0] if given.get("until") else whole)
    repeated = lm.generate_until([instance("generate_until", TEXT, {"max_gen_toks": 4})], disable_tqdm=True)
    [new] = generate(tiny, kit.encode(TEXT)[-252:], max_new_tokens=4, stop_tokens=kit.eos_ids)
    assert repeated == [kit.decode(new)]


@needs_lm_eval
def test_what_cannot_be_done_is_refused(tiny: Decoder) -> None:
    """With the rule and the cure."""
    lm = adapter(tiny)
    for given, message in [({"num_beams": 4}, "unknown generation settings"), ({"max_gen_toks": 256}, "no room")]:
        with pytest.raises(RopeError, match=message):
            lm.generate_until([instance("generate_until", "A", given)], disable_tqdm=True)
    with pytest.raises(RopeError, match="chat templates are not run"):
        lm.apply_chat_template([{"role": "user", "content": "Hello"}])
    for options, message in [
        ({"batch_size": "auto"}, "`batch_size` must be a whole number"),
        ({"max_length": 0}, "`max_length` must be"),
        ({"device": "cpu"}, "apply only to a model that is loaded here"),
    ]:
        with pytest.raises(RopeError, match=message):
            adapter(tiny, **options)
    with pytest.raises(RopeError, match="no tokenizer"):
        adapter(tiny_decoder())
    silent = tiny_decoder(None)
    silent.tokenizer = TextTokenizer.bytes()
    with pytest.raises(RopeError, match="max_length="):
        adapter(silent)


@needs_lm_eval
def test_a_task_in_memory_runs_through_the_harness(tiny: Decoder) -> None:
    """`simple_evaluate` finds the model by name and scores a multiple choice as our likelihoods do."""
    import datasets
    import lm_eval
    from lm_eval.api.task import ConfigurableTask

    import ropewalk.diagnosis.lm_eval as registered

    rows = [
        {"question": "The old", "choices": ["man", "zq"], "gold": 0},
        {"question": "She was a", "choices": ["xvxv", "woman"], "gold": 1},
    ]
    task = ConfigurableTask(
        config={
            "task": "in_memory",
            "custom_dataset": lambda **options: {"test": datasets.Dataset.from_list(rows)},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{question}}",
            "doc_to_choice": "{{choices}}",
            "doc_to_target": "{{gold}}",
            "metric_list": [{"metric": "acc"}],
        }
    )
    found = lm_eval.simple_evaluate(
        model="ropewalk", model_args={"model": "tiny"}, tasks=[task], batch_size=2, bootstrap_iters=0, verbosity="ERROR"
    )
    lm = registered.RopewalkLM(tiny)
    hits = 0
    for row in rows:
        requests = [instance("loglikelihood", row["question"], f" {choice}") for choice in row["choices"]]
        values = [value for value, _ in lm.loglikelihood(requests, disable_tqdm=True)]
        hits += int(np.argmax(values)) == row["gold"]
    assert found["results"]["in_memory"]["acc,none"] == hits / len(rows)


def test_without_the_extra_the_cure_is_named(monkeypatch: pytest.MonkeyPatch, tiny: Decoder) -> None:
    """The module can be imported all the same."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "ropewalk.diagnosis.lm_eval", raising=False)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    with pytest.raises(RopeError, match=r"pip install .*\[lm-eval\]"):
        adapter(tiny)
    monkeypatch.delitem(sys.modules, "ropewalk.diagnosis.lm_eval")


def test_a_missing_harness_is_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Run as a program without lm-eval: print the cure and exit with 2."""
    for name in [name for name in sys.modules if name.split(".")[0] == "lm_eval"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    monkeypatch.delitem(sys.modules, "ropewalk.diagnosis.lm_eval", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("ropewalk.diagnosis.lm_eval", run_name="__main__")
    assert ended.value.code == 2
    assert "Install it: pip install" in capsys.readouterr().err
