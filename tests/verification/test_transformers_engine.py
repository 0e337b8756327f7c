"""A transformers model in process: right, and with the rope of another config."""

from __future__ import annotations

import pytest

import ropewalk as rw
from ropewalk.checkpoints.load import save

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(small, tmp_path_factory):
    """The small model as a Hugging Face folder."""
    path = tmp_path_factory.mktemp("verify") / "small"
    save(small, path)
    return path


def test_a_folder_started_here(folder):
    """By its name: as expected, its tokens are compared, and float32 leaves no error."""
    found = rw.verify(folder, "transformers")
    assert found.outcome.kind == "as expected"
    assert found.tokenisation.startswith("the same")
    assert found.standings[0].misfit < 1e-4


def test_a_live_model_with_another_theta(folder):
    """A config that was changed on the way."""
    config = transformers.AutoConfig.from_pretrained(folder)
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e5}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config).eval()
    found = rw.verify(folder, model)
    assert (found.outcome.kind, found.outcome.applied) == ("other", ("theta 100000",))
