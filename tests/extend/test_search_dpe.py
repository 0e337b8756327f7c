"""The search over DPE's divisors: part by part, what is kept and read back, and the model that is written."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import ropewalk as rw
from ropewalk.attention.extensions import DPE
from ropewalk.checkpoints.load import save
from ropewalk.checkpoints.tokenizer import TextTokenizer
from ropewalk.cli.app import main
from ropewalk.extend.dpe import Divisors, DPESpace, dpe_space
from ropewalk.extend.evaluation import Objective
from ropewalk.extend.point_search import SearchResult, search_points
from ropewalk.methods import METHODS, Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.reader import Reader
from ropewalk.rope.config import RopeConfig
from tests.diagnosis.models import ROPE, tiny_decoder

REACH = Reach(64, 256)
BEST = (1, 2, 8, 32, 8, 4, 16, 8)
READER = DecoderReader(
    tiny_decoder(
        RopeConfig(64, interleaved=True, max_position_embeddings=64),
        head_dim=64, hidden_size=64, num_attention_heads=1, num_key_value_heads=1,
    )
)  # fmt: skip


def off(model: Reader) -> float:
    """How far the divisors are from BEST, in doublings; models without DPE are at 9 and more."""
    extension, rope = model.positions.extensions[0], model.positions.ropes[0]
    if not isinstance(extension, DPE):
        assert rope is not None
        return 9.0 + (rope.scaling is None)
    return float(sum(abs(math.log2(found / best)) for found, best in zip(extension.divisors, BEST, strict=True)))


def run(**more: Any) -> SearchResult:
    """A search in the small model for BEST."""
    cost = more.pop("cost", off)
    objective = Objective(name="toy", items=2, cost=lambda model, item: cost(model) + 0.01 * item)
    return search_points(READER, dpe_space(READER.positions, REACH), objective, **more)


def test_the_best_divisors_are_found_part_by_part(tmp_path: Path) -> None:
    """Every part alone, from twice the ratio of lengths; then the best of each together; resumed, the same points."""
    result = run(folder=tmp_path)
    space, best = result.space, result.best.point
    assert isinstance(space, DPESpace)
    assert isinstance(best, Divisors)
    assert (space.window, space.usual, space.choices) == (8, 8, (1, 2, 4, 8, 16, 32))
    assert [start.name for start in space.starts] == [
        "plain", "pi", "ntk", "yarn", "llama3", "rerope", "self-extend", "dca", "log-n", "uniform",
    ]  # fmt: skip
    assert (best.divisors, best.name) == (BEST, "candidate 52")
    assert result.found_better
    assert len(result.evaluations) == space.budget == 10 + 41 + 1 + 16
    for line in result.evaluations[10:51]:
        assert isinstance(line.point, Divisors)
        assert sum(one != 8 for one in line.point.divisors) <= 1
    again = run(folder=tmp_path, resume=True)
    assert [line.point for line in again.evaluations] == [line.point for line in result.evaluations]


def test_later_generations_move_two_parts() -> None:
    """Where one part must grow as another shrinks, each alone finds nothing; steps of two do."""

    def cost(model: Reader) -> float:
        extension = model.positions.extensions[0]
        if not isinstance(extension, DPE):
            return 99.0
        doublings = [math.log2(one) for one in extension.divisors]
        wanted = (4, 2) * 4
        return abs(sum(doublings) - 24) + sum(abs(a - b) for a, b in zip(doublings, wanted, strict=True)) / 4

    alone, more = run(cost=cost, budget=52), run(cost=cost, budget=52 + 4 * 16)
    assert alone.best.point.name == "uniform"
    assert more.best.loss < alone.best.loss - 0.4


def test_a_point_acts_in_the_layers_that_see_all_tokens() -> None:
    """Their rope is the plain one; analytic starts are the methods themselves; others keep what they have."""
    space = dpe_space(READER.positions, REACH)
    found = space.apply(READER, space.point([math.log(one) for one in BEST], "candidate 1"))
    assert found.positions.extensions == (DPE(BEST, 8),) * found.positions.num_layers
    assert found.positions.ropes == READER.positions.ropes
    for number, name in ((3, "yarn"), (7, "dca")):
        assert space.apply(READER, space.starts[number]).positions == METHODS[name].positions(READER.positions, REACH)
        assert space.read(space.starts[number].to_json()) == space.starts[number]
    assert (space.rope(space.starts[7]), space.profile(space.starts[7])) == (None, ((), 1.0))
    divisors, factor = space.profile(Divisors("x", BEST, 8))
    assert (divisors[::4], divisors[3::4], factor) == (BEST, BEST, 1.0)
    assert space.rope(Divisors("x", BEST, 8)) is None
    mixed = DecoderReader(tiny_decoder(ROPE, sliding_window=(4, None)))
    some = dpe_space(mixed.positions, Reach(16, 64))
    assert some.parts == 4
    assert [one is None for one in some.apply(mixed, Divisors("x", (2,) * 4, 2)).positions.extensions] == [True, False]


@pytest.mark.parametrize(
    ("windows", "reach", "rule"),
    [(40, Reach(16, 64), "see all earlier tokens"), (None, Reach(16, 64, unscaled_tokens=2), "see all earlier tokens")],
)
def test_what_it_cannot_search_is_refused(windows: int | None, reach: Reach, rule: str) -> None:
    """Layers whose window is longer than the trained length, and first tokens that stay unscaled."""
    positions = DecoderReader(tiny_decoder(ROPE, sliding_window=windows)).positions
    with pytest.raises(rw.RopeError, match=rule):
        dpe_space(positions, reach)


def test_the_command_writes_a_folder_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --native alone, refused before the work; read back it has the divisors that were found."""
    pytest.importorskip("typer")
    rope = dataclasses.replace(ROPE, max_position_embeddings=32)
    save(tiny_decoder(rope, vocab_size=256), tmp_path / "model", tokenizer=TextTokenizer.bytes())
    for name, words in (("seen", "It was the best of times. "), ("unseen", "Call me Ishmael. Some years ago. ")):
        (tmp_path / f"{name}.txt").write_text(words * 24)
    words = [
        "extend", "search", tmp_path / "model", "--target", 64, "--text", tmp_path / "seen.txt", "--validation",
        tmp_path / "unseen.txt", "--windows", 2, "--search-windows", 2, "--over", "dpe", "--within", "inf",
        "--record", tmp_path / "search.json", "--out", tmp_path / "out",
    ]  # fmt: skip

    def call(*more: str) -> int:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, words), *more])
        return int(ended.value.code or 0)

    assert call() == 2
    assert "--native" in capsys.readouterr().err
    assert call("--native") == 0
    printed = capsys.readouterr().out
    record = json.loads((tmp_path / "search.json").read_text())
    assert (record["over"], len(record["points"][10]["parts"])) == ("dpe", 4)
    found = rw.load(tmp_path / "out")
    if record["best"]["rule"] == "dpe":
        assert record["rope_parameters"] is None
        assert f"DPE({record['best']['parts']}, window=4)".replace("[", "(").replace("]", ")") in printed
        assert found.config.extensions[0] == DPE(tuple(record["best"]["parts"]), record["best"]["window"])
    ids = torch.arange(64)[None]
    with torch.no_grad():
        assert found(ids).isfinite().all()
