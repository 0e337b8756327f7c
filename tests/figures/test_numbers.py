"""The numbers behind the figures, against formulas that share no code with the package."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import ropewalk as rw
from ropewalk.audit.audit import audit
from ropewalk.errors import RopeError
from ropewalk.figures.catalog import ENTRIES, comparison, convergence, draw
from ropewalk.figures.material import (
    LayerInput,
    attention_inputs,
    packaged,
    packaged_configs,
    plain,
    queries_and_keys,
    rotary_model,
    windows,
)
from ropewalk.figures.model_numbers import (
    by_kind,
    decay,
    decay_of,
    layer,
    losses,
    maps,
    order,
    pairing,
    pairs_of,
    random_scores,
    shown_name,
)
from ropewalk.figures.rope_numbers import (
    axial,
    cache,
    clocks,
    learned_table,
    never_seen,
    precision,
    ratios,
    shift,
    tables,
    unseen,
    wavelengths,
    waves,
)

FIXTURES = Path(__file__).parents[1] / "fixtures" / "configs"


def turn(head_dim: int, theta: float = 1e4) -> np.ndarray:
    """The paper's frequencies, radians per token."""
    return np.array([theta ** (-2 * i / head_dim) for i in range(head_dim // 2)])


def test_packaged_configs_are_the_published_ones() -> None:
    """Byte for byte those of the fixtures, which say their source."""
    assert len(packaged_configs()) == 6
    for name in packaged_configs():
        assert packaged("configs", f"{name}.json").read_bytes() == (FIXTURES / f"{name}.json").read_bytes()


def test_clocks_are_powers_of_one_rotation() -> None:
    """Position p of pair i is exp(i f)^p; the wall's turns are p f / 2 pi."""
    found = clocks(head_dim=32, pairs=(0, 5), positions=4, position=100)
    for pair in (0, 5):
        points = np.exp(1j * turn(32)[pair]) ** np.arange(4)
        np.testing.assert_allclose(found["circles"][pair], (points.real, points.imag), atol=1e-12)
    np.testing.assert_allclose(found["turns"], 100 * turn(32) / (2 * np.pi), rtol=1e-12)
    np.testing.assert_allclose(
        found["hands"], ((np.exp(100j * turn(32))).real, np.exp(100j * turn(32)).imag), atol=1e-12
    )
    assert list(clocks()["circles"]) == [0, 4, 8, 16]


def test_waves_begin_again_after_a_wavelength() -> None:
    """Cosine and sine by position, and the tokens of one turn."""
    found = waves(head_dim=16, length=64, trained_length=32, pairs=(3, 1))
    assert list(found["curves"]) == [1, 3]
    cos, sin = found["curves"][3]
    np.testing.assert_allclose(cos + 1j * sin, np.exp(1j * turn(16)[3] * found["positions"]), atol=1e-12)
    assert found["wavelengths"][1] == pytest.approx(2 * np.pi * 10_000 ** (2 / 16))
    assert found["positions"][-1] == 64


def test_tables_are_the_papers_and_a_trained_one() -> None:
    """Sine and cosine by turns; angles are position times frequency; the learned one is not noise."""
    found = tables(head_dim=32)
    learned, source = learned_table()
    positions, hidden = learned.shape
    for place, feature in ((3, 4), (200, 7)):
        angle = place / 10_000 ** (2 * (feature // 2) / hidden)
        assert found["sinusoidal"][place, feature] == pytest.approx([np.sin, np.cos][feature % 2](angle), abs=1e-12)
    np.testing.assert_allclose(found["angles"], np.outer(np.arange(positions), turn(32)), rtol=1e-12)
    distance = np.cos(7 * turn(32)).mean()
    assert found["alike"]["rope"][50, 43] == pytest.approx(distance, abs=1e-12)
    alike = found["alike"]["learned"]
    np.testing.assert_allclose(np.diag(alike), 1, atol=1e-12)
    near = np.diagonal(alike, 1).mean()
    far = np.diagonal(alike, positions // 2).mean()
    assert near > 0.3 + far  # neighbours came out alike: independent rows would have cosines of about 1 / sqrt(hidden)
    assert "Moby-Dick" in source
    assert packaged("learned_table.npz").stat().st_size < 200_000


def test_a_shift_of_both_changes_nothing() -> None:
    """Diagonals of the table are equal, and every entry is the sum over pairs of |q||k| cos(angle + distance f)."""
    found = shift(head_dim=16, length=12, shifts=9, seed=3)
    for offset in range(-11, 12):
        assert np.ptp(np.diagonal(found["grid"], offset)) < 2e-6
    q, k = torch.randn(2, 16, generator=torch.Generator().manual_seed(3)).double().numpy()
    q, k = (x[:8] + 1j * x[8:] for x in (q, k))
    score = {d: float((q * k.conj() * np.exp(1j * d * turn(16))).real.sum() / 4) for d in range(-20, 20)}
    wanted = [[score[m - n] for n in range(12)] for m in range(12)]
    np.testing.assert_allclose(found["grid"], wanted, atol=2e-6)
    m, n = found["start"]
    np.testing.assert_allclose(found["curves"]["both move"], score[m - n], atol=2e-6)
    np.testing.assert_allclose(
        found["curves"]["only the query moves"], [score[m - n + s] for s in range(10)], atol=2e-6
    )
    np.testing.assert_allclose(found["curves"]["only the key moves"], [score[m - n - s] for s in range(10)], atol=2e-6)
    assert found["spread"] < 2e-6


def test_a_cache_shows_these_distances() -> None:
    """Query m and key n: m - n, 0, only m = n, and m - n (m - n + 1), as n rotates key n in each step after its own."""
    found = cache(tokens=6)["distances"]
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


def test_axial_similarity_is_a_mean_of_cosines() -> None:
    """Half of the pairs follow the row, half the column; in reading order there is one number for both."""
    found = axial(head_dim=16, theta=100.0, side=5, row=1, column=3)
    f = turn(8, 100.0)
    (_, patch, cross), (_, corner, moved), (_, _, order) = found["panels"]
    assert (patch, corner) == ((1, 3), (4, 0))
    for row, column in ((0, 0), (1, 4), (4, 2)):
        wanted = (np.cos((row - 1) * f).sum() + np.cos((column - 3) * f).sum()) / 8
        assert cross[row, column] == pytest.approx(wanted, abs=1e-12)
        wanted = (np.cos((row - 4) * f).sum() + np.cos(column * f).sum()) / 8
        assert moved[row, column] == pytest.approx(wanted, abs=1e-12)
        wanted = np.cos((5 * row + column - 8) * turn(16, 100.0)).mean()
        assert order[row, column] == pytest.approx(wanted, abs=1e-12)


def test_decay_of_equal_pairs_and_the_papers_bound() -> None:
    """The mean of cosines, and the mean of |S_j|, which no score exceeds."""
    equal, bound = decay_of(plain(8, 1e4), np.array([0.0, 5.0]))
    f = turn(8)
    assert equal[1] == pytest.approx(np.cos(5 * f).mean())
    sums = [abs(sum(np.exp(5j * f[i]) for i in range(j + 1))) for j in range(4)]
    assert bound[1] == pytest.approx(np.mean(sums))
    assert (equal[0], bound[0]) == (1.0, np.mean([1, 2, 3, 4]))
    distances = np.arange(0.0, 20_000.0, 7.0)
    for head_dim, theta in ((64, 1e4), (128, 5e5), (8, 1e2)):
        scores, bounds = decay_of(plain(head_dim, theta), distances)
        assert (np.abs(scores) <= bounds + 1e-12).all()


def test_the_order_of_words_matters_only_with_positions() -> None:
    """Each weight against its softmax by hand; without positions the weights of two words do not depend on order."""
    found = order(head=1, seed=5)
    vectors = torch.randn(3, 64, generator=torch.Generator().manual_seed(5)).double().numpy()
    torch.manual_seed(5)
    layer = rw.Attention(64, 4, encoding="none", causal=False)
    w_q, w_k = (project.weight.detach().double().numpy()[16:32] for project in (layer.q_proj, layer.k_proj))
    for label, sentences in found["rows"]:
        assert [places for places, _ in sentences] == [[0, 1, 2], [2, 1, 0]]
        for places, weights in sentences:
            angles = np.outer(places, turn(16) if "rotary" in label else np.zeros(8))
            q, k = (vectors @ w.T for w in (w_q, w_k))
            q, k = ((x[:, :8] + 1j * x[:, 8:]) * np.exp(1j * angles) for x in (q, k))
            exponent = np.exp((q @ k.conj().T).real / 4)
            np.testing.assert_allclose(weights, exponent / exponent.sum(1, keepdims=True), atol=1e-6)
    (_, plain_sentences), (_, rotary) = found["rows"]
    np.testing.assert_allclose(plain_sentences[0][1], plain_sentences[1][1], atol=1e-6)
    assert np.abs(rotary[0][1] - rotary[1][1]).max() > 0.01


def test_the_layers_shapes_follow_from_its_sizes() -> None:
    """Keys and values have their own number of heads; the output has the input's shape."""
    shapes = layer(heads=6, key_heads=3, head_dim=8, tokens=5, batch=4)["shapes"]
    assert shapes["x"] == shapes["out"] == (4, 5, 48)
    assert (shapes["q"], shapes["k"], shapes["v"]) == ((4, 5, 6, 8), (4, 5, 3, 8), (4, 5, 3, 8))
    assert shapes["weights"] == (4, 6, 5, 5)
    with pytest.raises(RopeError, match="num_key_value_heads"):
        layer(heads=4, key_heads=3)


def test_random_queries_and_keys_do_not_decay() -> None:
    """Their mean is 0 and their spread 1 / sqrt(head_dim), at every distance."""
    scores = random_scores(plain(64, 1e4), np.array([0.0, 1.0, 100.0, 5_000.0]), seed=1)
    assert (np.abs(scores.mean(0)) < 4 / np.sqrt(64 * len(scores))).all()
    np.testing.assert_allclose(scores.std(0), 1 / 8, rtol=0.1)


def test_heads_scores_are_those_of_rotated_queries_and_keys() -> None:
    """The closed form against the mean over every query and key, each rotated by hand to that distance."""
    model = rotary_model("tiny")
    found = decay(length=16, texts=1, tokens=16)
    seen = attention_inputs(model, windows(model, 1, 16))[2]
    q, k = (x[0, 1].double().numpy() for x in queries_and_keys(seen))  # layer 2, head 1: [tokens, head_dim]
    assert not seen.attention.rope.interleaved
    q, k = (x[:, :32] + 1j * x[:, 32:] for x in (q, k))
    by_hand = [
        np.mean([(a * np.exp(1j * d * turn(64)) * b.conj()).real.sum() for a in q for b in k]) / 8 for d in range(16)
    ]
    np.testing.assert_allclose(found["heads"]["layer 2, head 1"], by_hand - np.mean(by_hand), atol=1e-8)
    quarters = {name: curve.reshape(4, 4).mean(1) for name, curve in found["heads"].items()}
    assert found["rising_count"] == sum(parts[3] > parts[2] for parts in quarters.values())
    assert found["rising"] == max(quarters, key=lambda name: quarters[name][3] - quarters[name][2])
    assert found["falling"] == max(quarters, key=lambda name: quarters[name][0] - quarters[name][3])


def test_maps_are_the_models_attention() -> None:
    """Rows add up to 1, a shift of all positions leaves them, and taking the rotation away does not."""
    found = maps(tokens=24, moved=1_000, heads=("1.1", "4.0"))
    assert [label for label, _ in found["rows"]] == ["layer 1, head 1", "layer 4, head 0"]
    for _, (trained, without, elsewhere) in found["rows"]:
        for weights in (trained, without, elsewhere):
            np.testing.assert_allclose(weights.sum(1), 1, atol=1e-6)
            assert not np.triu(weights, 1).any()
        np.testing.assert_allclose(trained, elsewhere, atol=1e-5)
        assert np.abs(trained - without).max() > 0.1
    model = rotary_model("tiny")
    seen = attention_inputs(model, windows(model, 1, 24))[1]
    q, k = (x[0, 1].double().numpy() for x in queries_and_keys(seen))
    q, k = (x[:, :32] + 1j * x[:, 32:] for x in (q, k))
    place = np.arange(24)
    q, k = (x * np.exp(1j * np.outer(place, turn(64))) for x in (q, k))
    scores = np.where(np.tri(24, dtype=bool), (q @ k.conj().T).real / 8, -np.inf)
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    np.testing.assert_allclose(found["rows"][0][1][0], weights, atol=1e-5)


def test_heads_are_chosen_by_what_they_do() -> None:
    """Most weight on the token before; changed most and least; three different heads."""
    trained = np.zeros((1, 3, 2, 2))
    trained[0, :, 0, 0] = 1
    trained[0, 0, 1], trained[0, 1, 1], trained[0, 2, 1] = (0.9, 0.1), (0.2, 0.8), (0.5, 0.5)
    without = trained.copy()
    without[0, 1, 1] = (0.8, 0.2)
    chosen = by_kind(trained, without)
    assert list(chosen.values()) == [(0, 0), (0, 1), (0, 2)]
    assert list(chosen)[1] == "layer 0, head 1\nchanges most"


def test_never_seen_cells_are_counted() -> None:
    """A pair of 0.1 rad per token has shown angles below 1 in 10 tokens; one of 1 rad per token has shown all."""
    positions = np.arange(64.0)
    cells = never_seen(np.array([1.0, 0.1]), np.array([1.0, 0.1]), 10, positions)
    assert not cells[:, 0].any()
    assert list(np.flatnonzero(cells[:, 1])) == list(range(10, 63))  # from 63 on it comes round to angles that it knows
    halved = never_seen(np.array([0.5, 0.05]), np.array([1.0, 0.1]), 10, positions)
    assert list(np.flatnonzero(halved[:, 1])) == list(range(20, 64))


def test_unseen_under_each_scaling() -> None:
    """PI leaves nothing unseen, no scaling does; shares by counting, position by position and pair by pair."""
    found = unseen(config="llama_2_7b", target=16_384, rows=64)
    shares = {name: float(cells.mean()) for name, cells in found["cells"].items()}
    assert list(shares) == ["no scaling", "PI", "NTK", "YaRN", "Llama 3"]
    assert shares["PI"] == shares["YaRN"] == shares["Llama 3"] == 0
    assert shares["no scaling"] > shares["NTK"] > 0
    f, count = turn(128), 0
    for position in found["positions"]:
        for frequency in f:
            angle = (position * frequency) % (2 * np.pi)
            count += 4096 * frequency < 2 * np.pi and angle >= 4096 * frequency
    assert found["cells"]["no scaling"].sum() == count
    np.testing.assert_allclose(found["ratios"]["PI"], 0.25, rtol=1e-12)
    own = unseen(rows=16)
    assert list(own["cells"])[-1] == "LongRoPE"
    assert own["positions"][-1] == 131_071
    assert (found["mark"], own["mark"]) == ("trained length", "original length")  # Phi-3.5 then trained to 131,072


def test_ratios_are_those_of_the_configs() -> None:
    """Each method by its own formula at one pair; LongRoPE's are one over the config's factors."""
    found = {panel["title"].partition(":")[0]: panel for panel in ratios()["panels"]}
    assert {name: (one["own"], one["factor"]) for name, one in found.items()} == {
        "Llama 3.1 8B": ("llama3", 8.0), "Qwen2.5 7B": ("yarn", 4.0), "Phi-3.5 mini": ("longrope", 32.0)
    }  # fmt: skip
    llama = found["Llama 3.1 8B"]["ratios"]
    np.testing.assert_allclose(llama["pi"], 1 / 8, rtol=1e-12)
    np.testing.assert_allclose(llama["ntk"], [8 ** (-2 * i / 126) for i in range(64)], rtol=1e-9)
    turns = 8192 * turn(128, 5e5) / (2 * np.pi)
    smooth = np.clip((turns - 1) / 3, 0, 1)
    np.testing.assert_allclose(llama["llama3"], (1 - smooth) / 8 + smooth, rtol=1e-9)
    phi = json.loads((FIXTURES / "phi_3_5_mini.json").read_text())
    np.testing.assert_allclose(
        found["Phi-3.5 mini"]["ratios"]["longrope"], 1 / np.array(phi["rope_scaling"]["long_factor"]), rtol=1e-9
    )


def test_wavelengths_of_real_models() -> None:
    """As trained, against the trained length: Llama 3.1 with its scaling, Qwen2.5 without; Gemma 3 has two kinds."""
    rows = {name: rest for name, *rest in wavelengths()["rows"]}
    assert list(rows) == [
        "Llama 2 7B", "Llama 3.1 8B", "Qwen2.5 7B", "Gemma 3 1B, full layers", "Gemma 3 1B, sliding layers",
        "SmolLM2 135M",
    ]  # fmt: skip
    assert {name: (longest, theta) for name, (_, longest, theta) in rows.items()} == {
        "Llama 2 7B": (4096, 1e4), "Llama 3.1 8B": (131_072, 5e5), "Qwen2.5 7B": (32768, 1e6),
        "Gemma 3 1B, full layers": (32768, 1e6), "Gemma 3 1B, sliding layers": (512, 1e4), "SmolLM2 135M": (8192, 1e5),
    }  # fmt: skip
    np.testing.assert_allclose(rows["Qwen2.5 7B"][0], 2 * np.pi / turn(128, 1e6), rtol=1e-12)
    turns = 8192 * turn(128, 5e5) / (2 * np.pi)
    slower = (1 - np.clip((turns - 1) / 3, 0, 1)) / 8 + np.clip((turns - 1) / 3, 0, 1)
    np.testing.assert_allclose(rows["Llama 3.1 8B"][0], 2 * np.pi / (turn(128, 5e5) * slower), rtol=1e-12)
    never = audit(rw.RopeConfig.from_hf(FIXTURES / "llama_3_1_8b.json"))  # what step 12 prints
    assert (rows["Llama 3.1 8B"][0] > 131_072).sum() == never.pairs_never_turning == 25
    assert never.trained_length == 131_072
    noted = "As trained: Llama 3.1 8B with its config's scaling, Qwen2.5 7B without its config's scaling."
    assert wavelengths()["note"].startswith(noted)


def test_precision_against_float64() -> None:
    """Ropewalk's tables stay within 1.2e-7, bfloat16's within half a unit at 1; float32 angles grow with position."""
    found = precision(head_dim=16, longest=1_000_000, points=6)
    assert found["cosines"]["ropewalk"].max() < 1.2e-7
    assert found["scores"]["ropewalk"].max() < 1e-6
    assert 1e-3 < found["cosines"]["tables in bfloat16"].max() <= 2.0**-9 + 1e-7
    assert found["cosines"]["tables in float16"].max() <= 2.0**-12 + 1e-7
    angles = found["cosines"]["angles in float32"]
    assert angles[-1] > 1e3 * angles[0]
    last = int(found["positions"][-1])
    near, f = np.arange(last - 64, last), turn(16)
    product = np.cos(np.float32(near)[:, None] * np.float32(f), dtype=np.float32).astype(np.float64)
    assert angles[-1] == pytest.approx(np.abs(product - np.cos(np.outer(near, f))).max(), rel=1e-3)


def test_queries_and_keys_repeat_for_groups() -> None:
    """Grouped key heads stand once for each of their queries."""
    attention = rw.Attention(32, 4, num_key_value_heads=2, rope=rw.RopeConfig(8, interleaved=False), qk_norm=True)
    q, k = queries_and_keys(LayerInput(attention, torch.randn(1, 3, 32)))
    assert q.shape == k.shape == (1, 4, 3, 8)
    assert torch.equal(k[:, 0], k[:, 1])
    assert not torch.equal(k[:, 1], k[:, 2])


def test_pairs_are_those_that_rotation_mixes() -> None:
    """Turning one feature reaches its partner and no other, in each convention."""
    for interleaved in (True, False):
        cos, sin = rw.RotaryEmbedding(rw.RopeConfig(8, interleaved=interleaved)).cos_sin(torch.tensor([1]))
        for first, second in pairs_of(8, interleaved):
            one = torch.zeros(1, 1, 1, 8)
            one[..., first] = 1
            turned = rw.rotate(one, cos, sin, interleaved=interleaved)[0, 0, 0]
            assert turned.nonzero().flatten().tolist() == [first, second]


def test_the_wrong_pairing_costs_and_conversion_mends_it() -> None:
    """Losses by one plain forward; the converted model's are the model's own up to rounding."""
    model = rotary_model("tiny")
    found = losses(model, 3, 32)
    own, wrong, mended = (found["bars"][name] for name in ("its own pairing", "the wrong pairing", "converted"))
    ids = windows(model, 3, 32)
    with torch.inference_mode():
        logits = model(ids)
    by_hand = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert own[0] == pytest.approx(float(by_hand), abs=1e-4)
    assert own == (own[0],) * 3
    assert mended[0] == pytest.approx(own[0], abs=1e-4)
    assert wrong[0] > own[0] + 0.1
    assert wrong[1] < wrong[0] < wrong[2]
    assert found["uniform"] == math.log(4096)


def test_smollm2_is_measured_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only tiny without it; a path is shown by its name."""
    monkeypatch.delenv("ROPEWALK_SMOLLM2", raising=False)
    assert list(pairing(texts=2, tokens=16)["losses"]) == ["tiny"]
    monkeypatch.setattr("ropewalk.figures.model_numbers.rotary_model", lambda name: name)
    monkeypatch.setattr("ropewalk.figures.model_numbers.losses", lambda model, *_: model)
    monkeypatch.setenv("ROPEWALK_SMOLLM2", "some/SmolLM2.Q4_1.gguf")
    assert pairing()["losses"] == {"tiny": "tiny", "SmolLM2.Q4_1": "some/SmolLM2.Q4_1.gguf"}
    assert shown_name("folder/model") == "model"


def test_windows_are_spread_over_the_book() -> None:
    """Of equal length, all different."""
    ids = windows(rotary_model("tiny"), 4, 16)
    assert ids.shape == (4, 16)
    assert len(np.unique(ids.numpy(), axis=0)) == 4


def record(folder: Path) -> Path:
    """Two seeds of rope (plain and with PI), one of a learned table that has no value past its length."""
    settings = {"seq_len": 64, "steps": 10, "batch_size": 4, "seeds": [0, 1], "size": "nano"}
    lines: list[dict[str, object]] = [{"kind": "comparison", "settings": settings}]
    for seed in (0, 1):
        for scaling, length, loss in ((None, 64, 4.0), (None, 128, 6.0), ("pi", 128, 5.0)):
            lines.append(
                {"kind": "loss", "encoding": "rope", "seed": seed, "scaling": scaling, "length": length,
                 "loss": loss + seed, "blocks": []}
            )  # fmt: skip
    for length, loss in ((64, 4.5), (128, None)):
        lines.append({"kind": "loss", "encoding": "learned", "seed": 0, "scaling": None, "length": length,
                      "loss": loss, "blocks": []})  # fmt: skip
    lines.append({"kind": "run", "encoding": "rope", "seed": 0, "curve": [[256, 5.0], [512, 4.0]]})
    path = folder / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_losses_by_length_and_scaling(tmp_path: Path) -> None:
    """Means over seeds; a missing value has no point; a scaling's line begins at the trained length."""
    found = comparison(str(record(tmp_path)))
    assert {name: [point[:2] for point in points] for name, points in found["encodings"].items()} == {
        "rope": [(64, 4.5), (128, 6.5)], "learned": [(64, 4.5)]
    }  # fmt: skip
    assert [point[:2] for point in found["scalings"]["pi"]] == [(64, 4.5), (128, 5.5)]
    assert found["trained_length"] == 64
    curves = convergence(str(tmp_path / "results.jsonl"))["curves"]
    assert curves == {"rope": [(256, 5.0, None), (512, 4.0, None)]}
    figure = draw("comparison", record=str(tmp_path))
    assert len(figure.axes) == 2


def test_without_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither is ready, and both say how to make one; with one in the checkout's results both are."""
    monkeypatch.setattr("ropewalk.figures.catalog.RESULTS", tmp_path)
    assert not ENTRIES["comparison"].ready()
    with pytest.raises(RopeError, match="needs a record of a comparison") as refused:
        draw("convergence")
    assert "ropewalk compare" in refused.value.cure
    record(tmp_path).rename(tmp_path / "compare-hour.jsonl")
    assert ENTRIES["comparison"].ready()
    assert draw("convergence").axes
