"""Exports of a small checkpoint under a method, and the methods that a config can express."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ropewalk.extend.output import Exported
from ropewalk.extend.output import export as export_reader
from ropewalk.extend.tunable import TunableDecoder
from ropewalk.methods import METHODS, Reach
from ropewalk.models.decoder import Decoder
from tests.extend.material import (
    REACH,
    reader_under,
)

INEXPRESSIBLE = tuple(name for name, method in METHODS.items() if method.config is None)
EXPORTABLE = tuple(name for name in METHODS if name not in INEXPRESSIBLE)
HOW = {"reach": REACH}


def extended(folder: Path, method: str) -> Decoder:
    """The checkpoint under a method, in float32."""
    return reader_under(folder, method).module


def under(model: Decoder, method: str, reach: Reach = REACH) -> Decoder:
    """A model under a method."""
    return reader_under(model, method, reach).module


def export(model: Decoder, out: Path, **how: Any) -> Exported:
    """`extend.export.export` of a decoder."""
    return export_reader(TunableDecoder(model), out, **how)
