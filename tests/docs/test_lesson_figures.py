"""The figures that only the lesson draws: their numbers against formulas, and the pictures of given numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ropewalk as rw
from ropewalk.errors import RopeError
from ropewalk.figures.material import rotary_model, windows
from tests.figures.browser import browser, why_not
from tests.figures.drawn import check_units, lines
from tests.oracle import ladder

pytest.importorskip("matplotlib")
figures = pytest.importorskip("figures", reason="the source distribution has no scripts/")
explorer_stills = pytest.importorskip("explorer_stills")
explorer_numbers = pytest.importorskip("explorer_numbers")
ROOT = Path(__file__).parents[2]
if not (ROOT / "docs").exists():
    pytest.skip("the source distribution has no docs/", allow_module_level=True)
numbers = figures.of
SQUARE = np.arange(16.0).reshape(4, 4) / 16


def test_the_order_of_words_matters_only_with_positions() -> None:
    """Each weight against its softmax by hand; without positions the weights of two words do not depend on order."""
    found = numbers.order_numbers(head=1, seed=5)
    vectors = torch.randn(3, 64, generator=torch.Generator().manual_seed(5)).double().numpy()
    torch.manual_seed(5)
    layer = rw.Attention(64, 4, encoding="none", causal=False)
    w_q, w_k = (project.weight.detach().double().numpy()[16:32] for project in (layer.q_proj, layer.k_proj))
    for label, sentences in found["rows"]:
        assert [places for places, _ in sentences] == [[0, 1, 2], [2, 1, 0]]
        for places, weights in sentences:
            angles = np.outer(places, ladder(1e4, 16) if "rotary" in label else np.zeros(8))
            q, k = (vectors @ w.T for w in (w_q, w_k))
            q, k = ((x[:, :8] + 1j * x[:, 8:]) * np.exp(1j * angles) for x in (q, k))
            exponent = np.exp((q @ k.conj().T).real / 4)
            np.testing.assert_allclose(weights, exponent / exponent.sum(1, keepdims=True), atol=1e-6)
    (_, plain_sentences), (_, rotary) = found["rows"]
    np.testing.assert_allclose(plain_sentences[0][1], plain_sentences[1][1], atol=1e-6)
    assert np.abs(rotary[0][1] - rotary[1][1]).max() > 0.01


def test_the_layers_shapes_follow_from_its_sizes() -> None:
    """Keys and values have their own number of heads; the output has the input's shape."""
    shapes = numbers.layer_numbers(heads=6, key_heads=3, head_dim=8, tokens=5, batch=4)["shapes"]
    assert shapes["x"] == shapes["out"] == (4, 5, 48)
    assert (shapes["q"], shapes["k"], shapes["v"]) == ((4, 5, 6, 8), (4, 5, 3, 8), (4, 5, 3, 8))
    assert shapes["weights"] == (4, 6, 5, 5)
    with pytest.raises(RopeError, match="num_key_value_heads"):
        numbers.layer_numbers(heads=4, key_heads=3)


def test_a_cache_shows_these_distances() -> None:
    """Query m and key n: m - n, 0, only m = n, and m - n (m - n + 1), as n rotates key n in each step after its own."""
    found = numbers.cache_numbers(tokens=6)["distances"]
    m, n = np.indices((6, 6))
    expected = {
        "right": m - n,
        "every token at position 0": 0 * m,
        "nothing stored": np.where(m == n, 0, np.nan),
        "keys rotated again": m - n * (m - n + 1),
    }
    assert list(found) == list(expected)
    for way, distances in expected.items():
        np.testing.assert_allclose(found[way], np.where(n <= m, distances, np.nan), rtol=0, atol=1e-6)


def test_tables_are_the_papers_and_a_trained_one() -> None:
    """In two tables the mean cosine of angles at the distance; the learned one is not noise."""
    found = numbers.tables_numbers(rw.RopeConfig(32, interleaved=False))
    learned, source = numbers.learned_table()
    positions, hidden = learned.shape
    for name, width in (("RoPE", 32), ("sinusoidal, added", hidden)):
        distance = np.cos(7 * ladder(1e4, width)).mean()
        assert found["alike"][name][50, 43] == pytest.approx(distance, abs=1e-7)
    alike = found["alike"]["learned, added"]
    np.testing.assert_allclose(np.diag(alike), 1, atol=1e-12)
    near = np.diagonal(alike, 1).mean()
    far = np.diagonal(alike, positions // 2).mean()
    assert near > 0.3 + far  # neighbours came out alike: independent rows would have cosines of about 1 / sqrt(hidden)
    assert "Moby-Dick" in source
    assert numbers.TABLE.stat().st_size < 200_000


def test_a_shift_of_both_changes_nothing() -> None:
    """Diagonals of the table are equal, and every entry is the sum over pairs of |q||k| cos(angle + distance f)."""
    found = numbers.shift_numbers(rw.RopeConfig(16, interleaved=False), length=12, shifts=9, seed=3)
    for offset in range(-11, 12):
        assert np.ptp(np.diagonal(found["grid"], offset)) < 2e-6
    q, k = torch.randn(2, 16, generator=torch.Generator().manual_seed(3)).double().numpy()
    q, k = (x[:8] + 1j * x[8:] for x in (q, k))
    score = {d: float((q * k.conj() * np.exp(1j * d * ladder(1e4, 16))).real.sum() / 4) for d in range(-20, 20)}
    wanted = [[score[m - n] for n in range(12)] for m in range(12)]
    np.testing.assert_allclose(found["grid"], wanted, atol=2e-6)
    m, n = found["start"]
    np.testing.assert_allclose(found["curves"]["both move"], score[m - n], atol=2e-6)
    np.testing.assert_allclose(
        found["curves"]["only the query moves"], [score[m - n + s] for s in range(10)], atol=2e-6
    )
    np.testing.assert_allclose(found["curves"]["only the key moves"], [score[m - n - s] for s in range(10)], atol=2e-6)
    assert found["spread"] < 2e-6


def test_the_wrong_pairing_costs_and_conversion_mends_it() -> None:
    """Losses by one plain forward; the converted model's are the model's own up to rounding."""
    found = explorer_numbers.pairing_entry("tiny", 3, 32)
    own, wrong, mended = (case["loss"] for case in found["cases"])
    model = rotary_model("tiny")
    ids = windows(model, 3, 32)
    with torch.inference_mode():
        logits = model(ids)
    by_hand = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert own[0] == pytest.approx(float(by_hand), abs=1e-4)
    assert own == (own[0],) * 3
    assert mended[0] == pytest.approx(own[0], abs=1e-4)
    assert wrong[0] > own[0] + 0.1
    assert wrong[1] < wrong[0] < wrong[2]
    assert found["uniform"] == float(np.log(4096))


def record(folder: Path) -> Path:
    """Two seeds of rope (plain and with PI), one of a learned table that has no value past its length."""
    settings = {"seq_len": 64, "steps": 10, "batch_size": 4, "seeds": [0, 1], "size": "nano"}
    ropes = [("rope", seed, *of, loss + seed) for seed in (0, 1)
             for *of, loss in ((None, 64, 4.0), (None, 128, 6.0), ("pi", 128, 5.0))]  # fmt: skip
    rows = [*ropes, ("learned", 0, None, 64, 4.5), ("learned", 0, None, 128, None)]
    keys = ("encoding", "seed", "scaling", "length", "loss")
    lines = [{"kind": "comparison", "settings": settings}]
    lines += [{"kind": "loss", **dict(zip(keys, row, strict=True))} for row in rows]
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_losses_by_length_and_scaling(tmp_path: Path) -> None:
    """Means over seeds; a missing value has no point; a scaling's line begins at the trained length."""
    path = record(tmp_path)
    found = numbers.comparison_numbers(path)
    assert {name: [point[:2] for point in points] for name, points in found["encodings"].items()} == {
        "rope": [(64, 4.5), (128, 6.5)], "learned": [(64, 4.5)]
    }  # fmt: skip
    assert [point[:2] for point in found["scalings"]["pi"]] == [(64, 4.5), (128, 5.5)]
    assert found["trained_length"] == 64
    assert found["encodings"]["rope"][0][2] == pytest.approx((4.5 - 12.706 / 2, 4.5 + 12.706 / 2), abs=1e-3)
    left, right = figures.comparison(**found).axes
    assert {line.get_label() for line in right.lines} >= {"rope", "pi"}
    np.testing.assert_allclose(lines(left)["rope"], [4.5, 6.5])


def test_figures_are_written_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All versions; docs/figures has those of every figure, and the stills of the explorer's pictures on pages."""
    assert figures.main(["layer", "--out", str(tmp_path / "new")]) == 0
    endings = [f"-{size}-{scheme}.svg" for size in ("wide", "narrow") for scheme in ("light", "dark")]
    assert {path.name for path in (tmp_path / "new").iterdir()} == {f"layer{ending}" for ending in endings}
    assert capsys.readouterr().out.split() == [str(tmp_path / "new" / "layer")]
    light, dark = ((tmp_path / "new" / f"layer-narrow-{scheme}.svg").read_text() for scheme in ("light", "dark"))
    assert "#222222" in light
    assert "#222222" not in dark
    assert float(re.search(r'width="([\d.]+)pt"', light)[1]) < 320
    with pytest.raises(SystemExit):
        figures.main(["roll"])
    drawn = {f"{name}{ending}" for name in figures.FIGURES for ending in endings}
    stills = {f"picture-{name}-{scheme}.png" for name in explorer_stills.PICTURES for scheme in ("light", "dark")}
    assert {path.name for path in (ROOT / "docs" / "figures").iterdir()} == drawn | stills


@pytest.mark.slow
@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_stills_show_the_pictures_as_they_are(tmp_path: Path) -> None:
    """Each is of the explorer's present markup and styles; else run scripts/explorer_stills.py."""
    with browser() as chromium:
        for name in explorer_stills.PICTURES:
            page, digest = explorer_stills.opened(chromium, tmp_path, name, "light")
            page.close()
            for scheme in ("light", "dark"):
                with Image.open(ROOT / "docs" / "figures" / f"picture-{name}-{scheme}.png") as still:
                    assert still.info.get(explorer_stills.DIGEST) == digest, (name, scheme)


# pictures of given numbers


def test_given_numbers_are_shown() -> None:
    """Weights in per cent, framed where they change; shapes, two of which rotate; distances, marked where wrong."""
    changed = SQUARE[:2, :2] + [[0.0, 0.002], [0.1, 0.0]]
    order = figures.order([("one", [((0, 1), SQUARE[:2, :2]), ((1, 0), changed)])], words=("dog", "bites"))
    left, right = order.axes
    assert [text.get_text() for text in left.texts] == ["0 %", "6 %", "25 %", "31 %"]
    assert (len(left.patches), len(right.patches)) == (0, 1)
    assert [axes.get_title(loc="left") for axes in (left, right)] == ["dog bites", "bites dog"]
    shapes = {name: (1, number) for number, name in enumerate(("x", "q", "k", "v", "weights", "out"))}
    written = [text.get_text() for text in figures.layer(shapes).axes[0].texts]
    assert sorted(text for text in written if "[" in text) == [f"[1, {number}]" for number in range(6)]
    assert written.count("rotate") == 2
    wrong = np.array([[0.0, np.nan], [-2.0, 1e-9]])
    cache = figures.cache({"right": np.array([[0.0, np.nan], [1.0, 0.0]]), "again": wrong})
    texts = [(text.get_text(), text.get_fontweight()) for text in cache.axes[1].texts]
    assert texts == [("0", "normal"), ("-2", "bold"), ("0", "normal")]
    for figure in (order, cache):
        check_units(figure)


def test_the_figures_of_one_rope_show_their_numbers() -> None:
    """Tables; the curves of a shift."""
    of_shift = numbers.shift_numbers(rw.RopeConfig(8, interleaved=False), length=4, shifts=2)
    shift = figures.shift(**of_shift)
    for figure in (shift, figures.tables(**numbers.tables_numbers(figures.PAPER))):
        check_units(figure)
    left, right = shift.axes[:2]
    assert np.array_equal(np.asarray(left.images[0].get_array()), of_shift["grid"])
    assert list(lines(right).values()) == [values.tolist() for values in of_shift["curves"].values()]
