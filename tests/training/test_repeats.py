"""Windows in which blocks occur twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ropewalk.errors import RopeError
from ropewalk.training import data as repeats
from ropewalk.training import train
from ropewalk.training.data import Batch, CopyWarmup, RepeatSampler, TokenStream, Windows, WindowSampler, word_tokens
from ropewalk.training.language_model import FromScratch
from ropewalk.training.settings import TrainSettings
from tests.training.material import EVERY, prose, small

TEXT = 100_000
WORDS = [[-1], [-2, -3], [-4, -5, -6]]


def plain(seq_len: int = 256, tokens: int = TEXT, *starts: int) -> WindowSampler:
    """Windows of a text whose tokens are their own indices, so that no token occurs twice."""
    return WindowSampler(TokenStream(torch.arange(tokens), torch.tensor([0, *starts])), seq_len=seq_len, seed=1)


def repeating(share: float, windows: WindowSampler | None = None, seed: int = 1) -> RepeatSampler:
    """The same windows, a share of them with repeated blocks."""
    return RepeatSampler(windows or plain(), WORDS, share=share, seed=seed)


def rows(sampler: Windows, count: int, first: int = 0) -> torch.Tensor:
    """Whole windows: inputs and the last target."""
    batch = sampler.batch(first, count)
    assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    return torch.cat((batch.inputs, batch.targets[:, -1:]), 1)


def text_blocks(window: list[int], before: list[int]) -> Iterator[tuple[int, int, int]]:
    """Start, length and distance back of each run of text tokens that stand where they did not stand before."""
    at = 0
    while at < len(window):
        if window[at] < 0 or window[at] == before[at]:
            at += 1
            continue
        source = before.index(window[at])
        end = at
        while end < len(window) and window[end] == before[source + end - at] != before[end]:
            end += 1
        yield at, end - at, at - source
        at = end


def test_share_zero_changes_nothing_and_share_one_changes_every_window() -> None:
    """Token for token; between them the share of changed windows is the share asked for (binomial, 5 sigma)."""
    before = rows(plain(), 400)
    assert torch.equal(rows(repeating(0.0), 400), before)
    wraps = before[:, 0] > before[:, -1]  # the text's end and its beginning: two documents
    assert torch.equal((rows(repeating(1.0), 400) != before).any(1), ~wraps)
    changed = (rows(repeating(0.3), 400) != before).any(1).float().mean().item()
    assert abs(changed - 0.3) < 5 * (0.3 * 0.7 / 400) ** 0.5


def test_text_blocks_repeat_what_stands_earlier_in_the_window() -> None:
    """Every text token out of its place is a copy of the window's own text, further left, at many distances."""
    distances, lengths = set(), []
    before = rows(plain(), 300).tolist()
    for window, was in zip(rows(repeating(1.0), 300).tolist(), before, strict=True):
        for at, length, back in text_blocks(window, was):
            assert back >= length
            assert window[at : at + length] == window[at - back : at - back + length]
            distances.add(back)
            lengths.append(length)
    assert min(lengths) >= repeats.LEAST
    assert min(distances) < 20
    assert max(distances) > 200
    assert len(distances) > 100


def test_random_words_stand_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without text blocks: each window's random tokens are pairs of equal blocks, and the rest is the text in place."""
    monkeypatch.setattr(repeats, "TEXT_BLOCKS", 0.0)
    before = rows(plain(), 200)
    pairs_seen = set()
    for window, was in zip(rows(repeating(1.0), 200), before, strict=True):
        random = window < 0
        assert torch.equal(window[~random], was[~random])
        assert repeated_in_slots(window.numpy(), random.numpy())
        pairs_seen.add(int(random.sum()))
    assert 2 * repeats.LEAST <= min(pairs_seen - {0}) < 40
    assert max(pairs_seen) > 200


def repeated_in_slots(window: np.ndarray, random: np.ndarray) -> bool:
    """Whether for some length and offset the random tokens fill slots whose contents occur an even number of times."""
    for length in range(repeats.LEAST, len(window) // 4 + 1):
        for begin in range(length):
            slots = range(begin, len(window) - length + 1, length)
            filled = [slot for slot in slots if random[slot : slot + length].all()]
            if len(filled) * length != random.sum():
                continue
            contents = [window[slot : slot + length].tobytes() for slot in filled]
            if all(contents.count(each) % 2 == 0 for each in contents):
                return True
    return False


def test_windows_depend_on_seed_and_number_alone() -> None:
    """One by one, in any order, by another sampler: the windows of one large batch. Another seed gives others."""
    whole = rows(repeating(0.5), 40)
    other = repeating(0.5)
    for number in (39, 0, 17, 16):
        assert torch.equal(rows(other, 1, first=number)[0], whole[number])
    assert not torch.equal(rows(repeating(0.5, seed=2), 40), whole)


def test_the_windows_are_the_same_in_every_version() -> None:
    """Golden sums: a run that was begun with an older ropewalk must go on with the same windows."""
    weights = torch.arange(1, 18)
    assert (rows(repeating(1.0, plain(16, 99)), 4) * weights).sum(1).tolist() == [2793, -453, 5205, -415]


def test_windows_over_two_documents_stay_as_they_are() -> None:
    """A copy across documents cannot be read: attention does not reach there."""
    starts = tuple(range(50, 2000, 50))
    windows = plain(60, 2000, *starts)
    assert torch.equal(rows(repeating(1.0, windows), 30), rows(windows, 30))


@pytest.mark.parametrize("seq_len", [2, 3, 7, 16, 33])
def test_short_windows_are_repeated_as_well(seq_len: int) -> None:
    """Whatever the length, share 1 changes windows and raises nothing."""
    windows = plain(seq_len, 500)
    assert bool((rows(repeating(1.0, windows), 50) != rows(windows, 50)).any())


def test_words_are_those_of_the_text() -> None:
    """Distinct, sorted, letters only, each with the space that words have inside a line."""
    words = word_tokens(["The rope, the 3 ropes_x", "l'été"], lambda text: list(text.encode()))
    assert [bytes(word).decode() for word in words] == [" The", " l", " rope", " ropes", " the", " x", " été"]
    with pytest.raises(RopeError, match="needs words, but the text has none"):
        word_tokens(["12 34"], lambda text: list(text.encode()))


def period(window: list[int]) -> int:
    """The smallest shift by which the window is its own continuation."""
    return next(shift for shift in range(1, len(window) + 1) if window[shift:] == window[: len(window) - shift])


def warming(count: int, windows: Windows | None = None, *, vocab_size: int = 10**6, seed: int = 1) -> CopyWarmup:
    """The same windows, the first ones replaced."""
    return CopyWarmup(windows or plain(), vocab_size=vocab_size, count=count, seed=seed)


def test_warmup_windows_are_one_random_block_again_and_again() -> None:
    """Lengths log-uniform from 8 to half the window (5 sigma), every token of the vocabulary; then text."""
    windows = rows(warming(600), 610)
    periods = np.array([period(window) for window in windows[:600].tolist()])
    assert periods.min() == 8
    assert 110 < periods.max() <= 128
    middle = (8 * 129) ** 0.5  # of 8 to 129 on the log scale; an int is the floor of what was drawn
    assert abs((periods < middle).mean() - np.log(33 / 8) / np.log(129 / 8)) < 5 * 0.5 / 600**0.5
    first = [window[:length].unique().numel() for window, length in zip(windows, periods, strict=False)]
    assert sum(first) > 0.99 * periods.sum()  # of a million tokens, hardly one stands twice in a block
    assert torch.equal(windows[600:], rows(plain(), 10, first=600))
    assert set(rows(warming(50, vocab_size=7), 50).flatten().tolist()) == set(range(7))


def test_warmup_windows_depend_on_seed_and_number_alone() -> None:
    """In any order; over the warm-up's end in one batch; none at all where its length is 0; another seed: others."""
    whole = rows(warming(20), 40)
    assert torch.equal(rows(warming(20), 1, first=17)[0], whole[17])
    assert torch.equal(whole[20:], rows(plain(), 20, first=20))
    assert torch.equal(rows(warming(0), 40), rows(plain(), 40))
    assert not torch.equal(rows(warming(20, seed=2), 20), whole[:20])
    sums = (rows(warming(4, plain(16, 99), vocab_size=99), 4) * torch.arange(1, 18)).sum(1).tolist()
    assert sums == [
        7015,
        6756,
        5683,
        8770,
    ]  # a run that was begun with an older ropewalk must go on with the same windows


def test_no_mask_parts_the_blocks_of_a_warmup_window() -> None:
    """Documents end where the text's windows stand, not in random tokens; the text after them keeps its documents."""
    windows = plain(60, 2000, *range(50, 2000, 50))
    assert warming(8, windows).batch(0, 8).document_ids is None
    both, text = warming(8, windows).batch(0, 12).document_ids, windows.batch(0, 12).document_ids
    assert both is not None
    assert text is not None
    assert not both[:8].any()
    assert torch.equal(both[8:], text[8:])


@pytest.mark.parametrize("seq_len", [2, 3, 15, 16])
def test_short_windows_of_a_warmup_are_periodic_as_well(seq_len: int) -> None:
    """With half the window where that is less than 8 tokens."""
    periods = {period(window) for window in rows(warming(30, plain(seq_len, 500)), 30).tolist()}
    assert periods == {max(1, min(8, seq_len // 2))}


def test_text_and_dropout_begin_after_the_warmup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many updates, not windows, are periodic and without dropout, whether validation comes in between or not."""
    path = tmp_path / "text.txt"
    path.write_text(prose(400))
    modes: list[tuple[bool, bool]] = []
    compute = FromScratch.batch_loss

    def watched(task: FromScratch, batch: Batch) -> torch.Tensor:
        periodic = all(period(window) <= 8 for window in batch.inputs.tolist())
        modes.append((task.model.training, periodic))
        return compute(task, batch)

    monkeypatch.setattr(FromScratch, "batch_loss", watched)
    train(small(str(path), copy_warmup=5), tmp_path / "run", housekeeping=EVERY)
    assert modes == [(False, True)] * 5 + [(True, False)] * 7


@pytest.mark.parametrize("warmup", [0, 8])
def test_a_run_with_repeats_continues_to_the_same_bits(tmp_path: Path, warmup: int) -> None:
    """Stopped after step 6 and continued: the weights of a run that was not. Other windows: other weights."""
    path = tmp_path / "text.txt"
    path.write_text(prose(400))
    settings = small(str(path), repeat_share=0.5, copy_warmup=warmup)
    whole = train(settings, tmp_path / "whole", housekeeping=EVERY) / "model.safetensors"

    def stop(event: object) -> None:
        if getattr(event, "kind", "") == "checkpoint" and getattr(event, "step", 0) == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", housekeeping=EVERY, report=stop)
    stopped = train(settings, tmp_path / "stopped", housekeeping=EVERY, resume=True) / "model.safetensors"
    assert stopped.read_bytes() == whole.read_bytes()
    other = train(small(str(path)), tmp_path / "plain", housekeeping=EVERY) / "model.safetensors"
    assert other.read_bytes() != whole.read_bytes()


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_from_0_to_1(share: float) -> None:
    """And is refused otherwise."""
    with pytest.raises(RopeError, match="repeat_share"):
        TrainSettings(text=("novel.txt",), repeat_share=share)
