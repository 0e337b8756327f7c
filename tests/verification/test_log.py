"""Log-probabilities that a trainer or a rollout has written: the same verdicts as from an engine."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.rope.scaling import YaRN
from ropewalk.verification.log import read_log, verify_log

TEXT = "It is a truth universally acknowledged, that a single man in possession of a good fortune must want a wife. "


@torch.inference_mode()
def log_of(model, path, *, prompt=0, noise=0.0, sequences=4, tokens=250):
    """Write what a trainer with this model logs; a rollout's prompt has no log-probabilities."""
    generator = torch.Generator().manual_seed(0)
    with path.open("w") as file:
        for number in range(sequences):
            ids = model.tokenizer.encode(TEXT[7 * number :] * 4)[:tokens]
            logits = model(torch.tensor([ids]))[0].double()
            given = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
            given = given + noise * torch.randn(len(given), generator=generator)
            values = [None, *given.tolist()]
            values[:prompt] = [None] * min(prompt, len(values))
            file.write(json.dumps({"input_ids": ids, "logprobs": values, "reward": 1.0}) + "\n\n")
    return path


def wrong(model, **changes):
    """The model with another rope."""
    return model.with_positions(rope=dataclasses.replace(model.config.ropes[0], **changes))


@pytest.mark.parametrize(("prompt", "noise"), [(0, 0.0), (0, 0.03), (100, 0.0), (220, 0.03)])
def test_a_right_trainer(small, tmp_path, prompt, noise):
    """From the first token on, and from a rollout without its prompt's numbers; with the noise of half precision."""
    found = verify_log(small, log_of(small, tmp_path / "log.jsonl", prompt=prompt, noise=noise))
    assert (found.outcome.kind, found.exit_status) == ("as expected", 0), found.outcome.sentence
    assert (found.outcome.up_to, found.requests, found.engine) == (249, 0, "the log")
    assert (found.noise is None) == (prompt > 1)


@pytest.mark.parametrize(
    ("changes", "name"),
    [({"theta": 1e5}, "theta 100000"), ({"scaling": YaRN(4.0, 256)}, "yarn 4"), ({"interleaved": True}, "the other")],
)
def test_a_wrong_trainer_is_named(small, tmp_path, changes, name):
    """One fault each, also with noise."""
    found = verify_log(small, log_of(wrong(small, **changes), tmp_path / "log.jsonl", noise=0.01))
    assert (found.outcome.kind, found.exit_status) == ("other", 1), found.outcome.sentence
    assert found.outcome.applied[0].startswith(name)


def test_what_no_hypothesis_explains(small, tmp_path):
    """Other weights."""
    torch.manual_seed(1)
    other = type(small)(small.config)
    other.tokenizer = small.tokenizer
    assert verify_log(small, log_of(other.eval(), tmp_path / "log.jsonl")).outcome.kind == "none"


def test_too_little_to_decide(small, tmp_path):
    """The verdict asks for more of the log, and not for prompts."""
    path = log_of(wrong(small, theta=1.1e4), tmp_path / "log.jsonl", sequences=1, tokens=40, noise=0.3)
    found = verify_log(small, path)
    if found.outcome.kind == "undecided":
        assert "a log of more or longer sequences" in found.outcome.sentence


@pytest.mark.parametrize(
    "line",
    [
        '{"input_ids": [1, 2]}', '{"input_ids": [1, 2], "logprobs": [-1.0]}',
        '{"input_ids": [1, -2], "logprobs": [null, -1.0]}', '{"input_ids": [1, 2], "logprobs": [null, "-1"]}',
        '{"input_ids": [1, 2], "logprobs": [null, NaN]}', '{"input_ids": [1, 2], "logprobs": [null, 5.0]}',
        '{"input_ids": [], "logprobs": []}', "[]", "no json",
    ],
)  # fmt: skip
def test_a_file_that_is_no_log(tmp_path, line):
    """The message shows the form of a line."""
    path = tmp_path / "log.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(RopeError, match="verify:") as refused:
        read_log(path)
    assert '"logprobs": [null, -1.25]' in str(refused.value)


@pytest.mark.parametrize(
    "line", ["", '{"input_ids": [1, 2], "logprobs": [-1, null]}', '{"input_ids": [9999], "logprobs": [0]}']
)
def test_a_log_that_shows_nothing(small, tmp_path, line):
    """No line, no log-probability after a first token, and a token beyond the vocabulary."""
    path = tmp_path / "log.jsonl"
    path.write_text(line)
    with pytest.raises(RopeError, match="no log-probability after a first token"):
        verify_log(small, path)
