"""One window over several processes: losses of every kind of method are those of one process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ropewalk.checkpoints.load import load_decoder
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.methods.ropes import Reach
from ropewalk.readers.decoder import DecoderReader
from ropewalk.readers.sharded import rounds, sharing_windows
from tests.diagnosis.models import settings_of
from tests.launch.ranks import run_all

METHODS_MEASURED = ("plain", "yarn", "dynamic", "dca", "rerope", "self-extend", "streaming", "log-n")
TOKENS, CHUNK = 197, 32

CODE = """
import json, sys
import torch
from ropewalk.checkpoints.load import load_decoder
from ropewalk.processes import joined
from ropewalk.methods import METHODS
from ropewalk.methods.ropes import Reach
from ropewalk.readers import sharded
from ropewalk.readers.decoder import DecoderReader
tokens, chunk = int(sys.argv[2]), int(sys.argv[3])
ids = torch.arange(tokens) * 7919 % 900
with joined(), sharded.sharing_windows(True):
    reader = sharded.ShardedReader.of(DecoderReader(load_decoder("tiny", dtype=torch.float32)))
    reach = Reach(trained=64, target=tokens)
    found = {}
    for name in sys.argv[1].split(","):
        under = reader.under(METHODS[name].positions(reader.positions, reach))
        found[name] = under.window_losses(ids, chunk=chunk).tolist()
json.dump(found, sys.stdout)
"""


def of_one_process(methods: Sequence[str]) -> dict[str, torch.Tensor]:
    """The losses of every method by the reader that is not sharded."""
    reader, reach = DecoderReader(load_decoder("tiny", dtype=torch.float32)), Reach(trained=64, target=TOKENS)
    ids = torch.arange(TOKENS) * 7919 % 900
    found = {}
    for name in methods:
        under = reader.under(METHODS[name].positions(reader.positions, reach))
        found[name] = torch.from_numpy(under.window_losses(ids, chunk=CHUNK))
    return found


def check(ranks: int, folder: Path, methods: Sequence[str] = METHODS_MEASURED) -> None:
    """Every rank has one process's losses within 1e-5 nats."""
    expected = of_one_process(methods)
    for out in run_all(CODE, ranks, folder, ",".join(methods), str(TOKENS), str(CHUNK)):
        found = json.loads(out)
        assert found.keys() == expected.keys()
        for name, losses in expected.items():
            torch.testing.assert_close(torch.tensor(found[name], dtype=torch.float64), losses, rtol=0, atol=1e-5)


def test_two_processes(tmp_path):
    """A window that neither the chunk nor the processes divide."""
    check(2, tmp_path, ["yarn", "dca", "streaming"])


@pytest.mark.parametrize(
    "ranks", [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.thorough)]
)
def test_every_kind_of_method(tmp_path, ranks):
    """Changed frequencies, frequencies by length, scaled logits, and remapped positions of every sort."""
    check(ranks, tmp_path)


@pytest.mark.parametrize(
    ("tokens", "chunk", "ranks"), [(421, 32, 2), (421, 32, 4), (7, 1024, 4), (4096, 512, 4), (5, 2, 8)]
)
def test_rounds(tokens, chunk, ranks):
    """Every token is somebody's once, no chunk is longer than asked, and causal work is dealt out evenly."""
    of_rounds = rounds(tokens, chunk, ranks)
    assert all(len(of_round) == ranks for of_round in of_rounds)
    assert sorted(n for of_round in of_rounds for start, stop in of_round for n in range(start, stop)) == [
        *range(tokens)
    ]
    assert max(stop - start for of_round in of_rounds for start, stop in of_round) <= chunk
    if tokens == 4096:
        work = [sum((stop - start) * stop for start, stop in spans) for spans in zip(*of_rounds, strict=True)]
        assert max(work) < 1.2 * min(work)


def test_refusals():
    """One process alone, and settings that a sharded window does not serve."""
    with pytest.raises(RopeError, match="there is only one"), sharing_windows(True):
        pass
    for more in ({"minutes": 3.0}, {"workers": 2}, {"retrieval": "numbers"}):
        with pytest.raises(RopeError, match="measure one window at a time"):
            settings_of(shard_window=True, **more)
