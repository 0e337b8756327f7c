"""A model that the tests of a file share."""

from __future__ import annotations

import pytest
from torch import nn

from tests.attachment.families import small_model


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    """A small Llama; tests leave it detached."""
    return small_model("llama")
