"""`Tuned`: the doctor's numbers of a tuned model against each weights' own forwards."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import ropewalk as rw
from ropewalk.builtin.texts import read_text
from ropewalk.checkpoints.load import load
from ropewalk.diagnosis import Protocol
from ropewalk.diagnosis.document import Diagnosis
from ropewalk.errors import RopeError
from ropewalk.measure.plan import LossProtocol, Plan, plan, take_windows
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader
from ropewalk.readers.tuned import Tuned

TRAINED, TARGET, STRIDE, CHUNK = 32, 128, 8, 16
REACH = Reach(TRAINED, TARGET)
TEXT = [("whale", read_text(None)[1][:4000])]
METHODS_TRIED = ["yarn", "dynamic", "dca"]  # a rule, one that follows the length, one that takes over plain's beginning


@cache
def source() -> DecoderReader:
    """tiny."""
    return DecoderReader(load("tiny", dtype=torch.float32), "tiny")


@cache
def perturbed() -> DecoderReader:
    """tiny with other weights."""
    model = copy.deepcopy(source().model)
    random = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 0.03 * torch.randn(weight.shape, generator=random))
    return DecoderReader(model, "tuned tiny")


@cache
def doctored(tuned: Reader | None, method: str) -> Diagnosis:
    """The doctor's diagnosis of tiny, or of tiny and its tuned weights, after one window."""
    return rw.doctor(
        source() if tuned is None else Tuned(source(), tuned),
        methods=[method],
        engine="python",
        target=TARGET,
        trained_length=TRAINED,
        text=TEXT,
        protocol=Protocol(windows=1, chunk=CHUNK),
    )


def numbers(found: Diagnosis, method: str) -> Any:
    """What was measured of a method: sums of losses by block, and the answers about copies."""
    [result] = found.measurement.results[method]
    return result.block_sums, result.asked, result.alone


def by_blocks(losses: np.ndarray, protocol: LossProtocol) -> list[float]:
    """Sums of the losses of tokens 1, 2, ... in each block."""
    whole = np.concatenate([[0.0], losses])
    return [float(whole[start:end].sum()) for start, end in protocol.blocks]


def window_of(found: Diagnosis) -> torch.Tensor:
    """The tokens of the one window."""
    tokenizer = source().tokenizer
    assert tokenizer is not None
    return take_windows(tokenizer.encode(TEXT[0][1]), found.measurement.protocol)[0]


@pytest.mark.parametrize("method", ["yarn", "dynamic"])
def test_equal_weights_are_the_untuned_model(method: str) -> None:
    """Of plain and of the method to the bit; crop reads under the method and is another."""
    untuned, same = doctored(None, method), doctored(source(), method)
    for name in ("plain", method):
        assert numbers(same, name) == numbers(untuned, name)
    assert numbers(same, "crop") != numbers(untuned, "crop")


@pytest.mark.parametrize("method", METHODS_TRIED)
def test_each_weights_losses_are_their_own(method: str) -> None:
    """plain of the source; the method of the tuned weights from the first token on; crop of the tuned weights under the
    method, in fresh windows at the frequencies of the target."""
    found, untuned = doctored(perturbed(), method), doctored(None, method)
    assert numbers(found, "plain") == numbers(untuned, "plain")
    assert found.measurement.protocol.stride == STRIDE
    ids, protocol = window_of(found), found.measurement.protocol
    under = perturbed().under(METHODS[method].positions(source().positions, REACH))
    expected = by_blocks(under.window_losses(ids, chunk=CHUNK), protocol)
    assert numbers(found, method)[0] == pytest.approx(expected, abs=1e-4)
    of_source = source().under(METHODS[method].positions(source().positions, REACH)).window_losses(ids, chunk=CHUNK)
    apart = np.abs(np.subtract(numbers(found, method)[0], by_blocks(of_source, protocol)))
    assert min(apart[0], apart.mean()) > 0.1  # also before the first chunk ends
    crop = [under.window_losses(ids[:TRAINED], seq_len=TARGET)]
    for scored in range(TRAINED, TARGET, STRIDE):
        fresh = ids[scored + STRIDE - TRAINED : scored + STRIDE]
        crop.append(under.window_losses(fresh, seq_len=TARGET)[-STRIDE:])
    assert numbers(found, "crop")[0] == pytest.approx(by_blocks(np.concatenate(crop), protocol), abs=1e-3)


def test_the_verdict_says_which_is_which() -> None:
    """Of the tuned model only."""
    said = doctored(perturbed(), "yarn").verdict.reasons
    assert said[0].startswith("Here yarn and crop are the tuned model")
    assert "tuned" not in doctored(None, "yarn").verdict.sentence


def test_its_digest_is_neither() -> None:
    """Three fingerprints of models, so that no ledger takes one for another; the order counts."""
    digests = {
        source().digest(),
        perturbed().digest(),
        Tuned(source(), perturbed()).digest(),
        Tuned(perturbed(), source()).digest(),
    }
    assert len(digests) == 4


def planned(*methods: str) -> Plan:
    """The plan of the tuned model."""
    protocol = LossProtocol.choose(trained_length=TRAINED, target=TARGET, text="t", windows=1)
    return plan(Tuned(source(), perturbed()), protocol, methods)


@pytest.mark.parametrize("methods", [("plain", "crop"), ("crop", "as-is"), ("crop", "yarn", "ntk")])
def test_one_method_that_is_not_plain(methods: tuple[str, ...]) -> None:
    """Others cannot be told apart by their positions, or were not tuned."""
    with pytest.raises(RopeError, match="under one method"):
        planned(*methods)


def test_keys_differ_from_those_of_plains_crop() -> None:
    """In one ledger nothing of the untuned crop is taken for the tuned one's."""
    protocol = LossProtocol.choose(trained_length=TRAINED, target=TARGET, text="t", windows=1)
    own, tuned = plan(source(), protocol, ["crop", "yarn"]), planned("crop", "yarn")
    assert own.key("crop", 0) != tuned.key("crop", 0)
    assert own.key("plain", 0) == tuned.key("plain", 0)


def test_models_that_differ_in_more_than_weights() -> None:
    """Another dtype is not compared: its losses would differ by rounding."""
    half = DecoderReader(copy.deepcopy(source().model).to(torch.bfloat16), "half")
    with pytest.raises(RopeError, match="the source with different weights"):
        Tuned(source(), half)
