"""The comparison: the same tokens at every length, records that continue after a stop, means over seeds."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.comparison import CompareSettings, compare, convergence, summarise
from ropewalk.comparison import run as comparing
from ropewalk.comparison.record import open_ledger, read_record
from ropewalk.comparison.run import held_out, losses_at, measure
from ropewalk.readers.losses import window_losses
from tests.comparison.pools import Refused, in_process  # noqa: F401
from tests.training.material import prose


@pytest.fixture
def settings(tmp_path):
    """Two encodings, one seed, on a text of random words: seconds."""
    text = tmp_path / "words.txt"
    text.write_text(prose(4000))
    return CompareSettings(
        text=(str(text),), encodings=("rope", "learned"), seeds=(0,), vocab_size=270, seq_len=16, batch_size=2,
        steps=3, multiples=(1, 2, 4), tokens=256, scalings=("pi", "yarn"),
    )  # fmt: skip


def model_of(encoding="rope"):
    config = rw.models.DecoderConfig(
        vocab_size=270, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        encoding=encoding,
    )  # fmt: skip
    return rw.Decoder(config).eval()


def test_every_length_reads_the_same_targets(settings):
    """Fresh windows of each length over one text: what the doctor's own measure gives, window by window."""
    model, stream = model_of(), held_out(settings, TextTokenizer.bytes())
    assert len(stream.starts) == 256 // 64
    for length in settings.lengths:
        pieces = [
            stream.tokens[begin + cut : begin + cut + length + 1]
            for begin in stream.starts.tolist()
            for cut in range(0, 64, length)
        ]
        expected = np.mean([window_losses(model, piece) for piece in pieces], axis=0)
        np.testing.assert_allclose(losses_at(model, stream, length, 64), expected, atol=1e-5)


def test_measure_has_blocks_scalings_and_no_invented_value(settings):
    """A learned table has nothing beyond its end; a rope is measured under each scaling beyond the trained length."""
    tokenizer = TextTokenizer.bytes()
    stream = held_out(settings, tokenizer)
    lines = measure(model_of(), stream, settings)
    assert [(line["scaling"], line["length"]) for line in lines] == [
        (None, 16), (None, 32), (None, 64), ("pi", 32), ("pi", 64), ("yarn", 32), ("yarn", 64),
    ]  # fmt: skip
    assert all(len(line["blocks"]) == line["length"] // 16 for line in lines)
    assert all(math.isclose(line["loss"], sum(line["blocks"]) / len(line["blocks"])) for line in lines)
    assert len({line["loss"] for line in lines}) == len(lines)
    learned = measure(model_of(rw.encodings.LearnedAbsolute(16)), stream, settings)
    assert [line["loss"] is None for line in learned] == [False, True, True]


@pytest.mark.usefixtures("in_process")
def test_it_continues_where_it_was_stopped(settings, tmp_path, monkeypatch):
    """A finished run is not run again; one whose line in the ledger a kill cut short is; the record is made from it."""
    out = tmp_path / "out"
    record = compare(settings, out, workers=1)
    first, lines = read_record(record)
    assert first["settings"]["encodings"] == ["rope", "learned"]
    assert [(line["encoding"], line["kind"]) for line in lines] == [
        *[("rope", "loss")] * 7, ("rope", "run"),
        *[("learned", "loss")] * 3, ("learned", "run"),
    ]  # fmt: skip
    whole = record.read_text()
    monkeypatch.setattr(comparing, "ProcessPoolExecutor", Refused)
    compare(settings, out)
    assert record.read_text() == whole
    record.write_text(whole.splitlines()[0] + '\n{"kind": "lo')
    compare(settings, out)  # whole again, and nothing was run for it
    assert record.read_text() == whole
    for results in (out / "ledger" / "results").iterdir():
        line = results.read_text()
        if '"rope/0"' in line:
            results.write_text(line[: len(line) // 2])
    with pytest.raises(RuntimeError, match="rope"):
        compare(settings, out)
    assert {json.loads(line).get("encoding") for line in record.read_text().splitlines()} == {None, "learned"}
    with pytest.raises(rw.RopeError, match="contains a different comparison"):
        compare(replace(settings, steps=4), out)


@pytest.mark.usefixtures("in_process")
def test_a_run_that_another_process_has_is_waited_for(settings, tmp_path, monkeypatch):
    """It is not begun here while it is leased; its lines come into the record when the other has finished it."""
    monkeypatch.setattr(comparing, "RETRY", 0.1)
    out, one = tmp_path / "out", replace(settings, encodings=("rope",))
    other = open_ledger(out, comparing._Comparison(one, out).key)
    events, retry = [], comparing._Pool._retry

    def retry_when_finished(pool):
        assert pool.elsewhere == [("rope", 0)]
        other.add("rope/0", {"lines": [{"encoding": "rope", "seed": 0, "kind": "run", "parameters": 7}]})
        retry(pool)

    monkeypatch.setattr(comparing._Pool, "_retry", retry_when_finished)
    with other.lease("rope/0") as leased:
        assert leased
        record = compare(one, out, workers=1, report=lambda *event: events.append(event))
    assert not (out / "runs").exists()
    assert events == [("rope", 0, 3, 3, {"done": True})]
    assert [line["parameters"] for line in read_record(record)[1]] == [7]


def test_summary():
    """Mean and interval over seeds; the rise is paired by seed."""
    lines = [
        {"kind": "loss", "encoding": "rope", "seed": seed, "scaling": None, "length": length, "loss": loss}
        for seed, losses in enumerate([(3.0, 4.0), (3.5, 4.6), (4.0, 5.2)])
        for length, loss in zip((16, 128), losses, strict=True)
    ] + [{"kind": "loss", "encoding": "learned", "seed": 0, "scaling": None, "length": 128, "loss": None}]
    within, beyond, none = summarise(lines, 16)
    assert (within.loss, within.rise) == (3.5, 0.0)
    assert beyond.loss == pytest.approx(4.6)
    assert beyond.rise == pytest.approx(1.1)
    # by hand: t(0.975, 2) = 4.303, standard deviation of 1.0, 1.1, 1.2 is 0.1
    assert beyond.rise_interval == pytest.approx((1.1 - 4.3027 * 0.1 / 3**0.5, 1.1 + 4.3027 * 0.1 / 3**0.5), abs=1e-4)
    assert (none.loss, none.interval, none.rise) == (None, None, None)
    curves = convergence(
        [{"kind": "run", "encoding": "rope", "seed": s, "curve": [[10, 5.0 + s], [20, 4.0]]} for s in (0, 1)]
    )
    assert (curves[0].tokens, curves[0].loss) == ((10, 20), (5.5, 4.0))


@pytest.mark.rejects
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encodings": ("rotary",)}, "`encodings` must be"),
        ({"encodings": ("rope", "rope")}, "`encodings` must be"),
        ({"encodings": ()}, "`encodings` must be"),
        ({"scalings": ("llama3",)}, "`scalings` must be"),
        ({"seeds": ()}, "`seeds` must be"),
        ({"multiples": (0, 1)}, "`multiples` must be"),
        ({"tokens": 10}, "--tokens is too small"),
        ({"steps": 0}, "`steps` must be"),
    ],
)
def test_bad_settings(changes, message):
    """Refused before anything is trained."""
    with pytest.raises(rw.RopeError, match=message):
        CompareSettings(**{"text": ("a.txt",), **changes})


def test_a_text_too_short_is_refused_before_training(settings, tmp_path):
    """The longest window must fit into the text that is measured on."""
    with pytest.raises(rw.RopeError, match="as long as the longest window"):
        compare(replace(settings, multiples=(1, 4096), tokens=16 * 4096), tmp_path / "out")
    assert not (tmp_path / "out" / "runs").exists()


def test_the_order_is_the_same_for_every_encoding(settings):
    """Only the encoding differs between two runs of a seed."""
    one, other = (settings.training(name, 7) for name in ("rope", "alibi"))
    assert replace(one, encoding="alibi") == other
