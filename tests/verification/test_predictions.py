"""What our model says is computed once: for all hypotheses that agree, and for the next run."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

import ropewalk as rw
from ropewalk.audit.faults import Hypothesis, hypotheses
from ropewalk.checkpoints.opening import reader_of
from ropewalk.checkpoints.reader import Reader
from ropewalk.methods.faulty_rules import FaultyPositions
from ropewalk.rope.scaling import DynamicNTK, YaRN
from ropewalk.verification.engine import NextTokens
from ropewalk.verification.fit import Prediction, PromptQuestion, distance
from ropewalk.verification.verify import Predictions
from tests.attachment.families import small_model
from tests.checkpoints.prefixes import OurEngine

IDS = list(range(40, 100))


@pytest.fixture
def reads(monkeypatch):
    """The lengths of every pass of our model."""
    passes = []
    real = Reader.top_after

    def counted(self, input_ids, lengths, **options):
        passes.append(list(lengths))
        return real(self, input_ids, lengths, **options)

    monkeypatch.setattr(Reader, "top_after", counted)
    return passes


def hypothesis(model, *, rule=None, extension=None, unchanged_below=0):
    """The model's own rope, scaled or with an extension."""
    rope = dataclasses.replace(model.config.ropes[0], scaling=rule)
    own = model.config.positions
    extensions = (extension,) * own.num_layers
    return Hypothesis("", dataclasses.replace(own.with_rope(rope), extensions=extensions), unchanged_below)


def test_what_agrees_for_a_prompt_is_read_once(small, reads):
    """Positions held at 50 are plain up to there; dynamic NTK is read at each length on its own."""
    predictions = Predictions(reader_of(small))
    plain = predictions.of(hypothesis(small), IDS, [20, 40, 60])
    held = hypothesis(small, extension=FaultyPositions("held", 50), unchanged_below=50)
    found = predictions.of(held, IDS, [20, 40, 60])
    assert reads == [[20, 40, 60], [60]]
    assert found[40].values == plain[40].values
    assert found[60].values != plain[60].values
    predictions.of(hypothesis(small, rule=DynamicNTK(4.0)), IDS, [20, 60])
    assert len(reads) == 2, "within the trained length it is plain"
    predictions.of(hypothesis(small, rule=YaRN(4.0, 256)), [*IDS[:-1], 7], [20, 60])
    assert reads[2:] == [[20, 60]]


def test_one_copy_of_the_model_for_all_ropes(small):
    """Only the first ropes that remap positions are checked by a forward; ropes that fail leave it as it was."""
    predictions, forwards = Predictions(reader_of(small)), []
    yarn, held, other = (
        hypothesis(small, rule=YaRN(4.0, 256)), hypothesis(small, extension=FaultyPositions("held", 50)),
        hypothesis(small, extension=FaultyPositions("held", 60)),
    )  # fmt: skip
    copy = predictions.under(yarn.positions)
    assert predictions.under(held.positions) is copy is not predictions.reader
    copy.model.register_forward_pre_hook(lambda *_: forwards.append(1))
    assert predictions.under(other.positions) is copy
    assert copy.positions == other.positions
    with pytest.raises(rw.RopeError):
        predictions.under(dataclasses.replace(other.positions, ropes=(None, None)))
    assert (copy.positions, forwards) == (other.positions, [])
    assert predictions.under(hypothesis(small).positions) is predictions.reader


@pytest.mark.parametrize(
    ("name", "flag", "faults"),
    [
        ("smollm3", "use_rope", ("rotation on all layers", "rotation on the other layers only")),
        ("cohere2", "sliding_window", ("the sliding layers' rope on all layers",
                                       "the ropes of full and sliding layers exchanged")),
    ],
)  # fmt: skip
def test_flags_of_layers_without_rotation(name, flag, faults):
    """Every hypothesis of them is computed: as the model's class with these flags."""
    model = small_model(name)
    predictions, ids = Predictions(reader_of(model)), [token % 64 for token in IDS]
    first, *rest = hypotheses(predictions.reader.positions, trained=64)
    named = {one.name: one for one in rest}
    for words in faults:
        one, other = named[words], copy.deepcopy(model)
        for layer, rope in zip(other.model.layers, one.positions.ropes, strict=True):
            setattr(layer.self_attn, flag, None if rope is None else 1 << 20)
        with torch.no_grad():
            expected = other(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        found = predictions.of(one, ids, [60])[60]
        assert all(abs(float(expected[token]) - nats) < 2e-4 for token, nats in found.values.items())
        assert distance(found, predictions.of(first, ids, [60])[60]) > 0.01


def test_a_second_check_reads_nothing(small, reads, tmp_path):
    """The same verdict from what the first one left; the engine is asked again. Another weight is another model."""
    found, passes = [], []
    for _ in range(2):
        found.append(rw.verify(small, OurEngine(small), up_to=64, state=tmp_path))
        passes.append(len(reads))
    assert passes[0] == passes[1]
    assert found[0].hypotheses == found[1].hypotheses
    assert found[0].requests == found[1].requests
    other = type(small)(small.config)
    other.load_state_dict(small.state_dict())
    other.norm.weight.data[0] += 1
    Predictions(reader_of(other.eval()), tmp_path).of(hypothesis(small), IDS, [30])
    assert len(reads) == passes[1] + 1


def test_a_token_that_is_not_ours():
    """One that no prediction contains counts only if the answer has more than each allows."""
    question = PromptQuestion([0], {"a": Prediction([(1, -1.0), (2, -2.0)]), "b": Prediction([(1, -1.0), (3, -4.0)])})
    assert question.probe(NextTokens({1: -1.0, 3: -5.0, 7: -9.0, 8: -3.0})).answer == {1: -1.0, 3: -5.0, 8: -3.0}
