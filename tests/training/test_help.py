"""Every field of a settings record says what it is: the command line shows that."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from ropewalk.training import Housekeeping, TrainSettings
from ropewalk.training.classification import ClassifySettings


@pytest.mark.parametrize("settings", [TrainSettings, ClassifySettings, Housekeeping])
def test_every_field_has_its_help(settings: Any) -> None:
    """One sentence as `metadata["help"]`."""
    for each in fields(settings):
        assert each.metadata["help"].endswith("."), each.name
        assert each.metadata["help"].count(". ") == 0, each.name
