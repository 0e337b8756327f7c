"""The model that is extended, and from which length to which."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ropewalk.errors import RopeError
from ropewalk.extend.decoder_tuning import tunable
from ropewalk.extend.settings import OutputSettings
from ropewalk.measure.plan import trained_length_of
from ropewalk.methods import Reach, settled, settled_by_length, unsettled
from ropewalk.models.tokens import Tokenizer
from ropewalk.readers.adapters import open_reader, reader_of
from ropewalk.readers.reader import Reader, TunableReader

GIVEN = "--trained-length"
Model = Any  # a path or name that rw.load takes, a Decoder, or a reader


@dataclass(frozen=True, kw_only=True)
class SourceModel:
    """A model to extend: its reader, its name in reports, where it was loaded from, and the dtype of its weights."""

    reader: TunableReader
    name: str
    place: str | os.PathLike[str] | None
    stored: torch.dtype

    @classmethod
    def open(cls, model: Model, trained_length: int | None = None) -> SourceModel:
        """Load a checkpoint by its path or name, or take a model that is loaded; raises `RopeError` as `rw.load`.

        `trained_length`: tokens; it also says of a scaling whether the model was trained with it, where that is open.
        """
        place = model if isinstance(model, str | os.PathLike) else None
        reader = tunable(
            reader_of(model) if place is None else open_reader(Path(place) if isinstance(place, os.PathLike) else place)
        )
        unknown = unsettled(reader.positions)
        answer = None if unknown is None or trained_length is None else settled_by_length(unknown, trained_length)
        if answer is not None:
            reader = reader.under(settled(reader.positions, answer, GIVEN))
        return cls(reader=reader, name=reader.name, place=place, stored=reader.dtype)

    def in_float32(self, device: str, dtype: torch.dtype = torch.float32) -> SourceModel:
        """The same in float32, or in another dtype, on a device: what is measured and tuned."""
        return replace(self, reader=self.reader.to(device=device, dtype=dtype))

    def tokenizer(self, work: str) -> Tokenizer:
        """The model's tokenizer; raises `RopeError` where it has none. `work` says what it is needed for."""
        if self.reader.tokenizer is None:
            raise RopeError(
                f"extend: the checkpoint has no tokenizer, so no text can be {work}.",
                facts={"model": self.name},
                cure="Put its tokenizer.json beside the weights.",
            )
        return self.reader.tokenizer


def reach_of(reader: Reader, settings: OutputSettings) -> Reach:
    """The lengths that the settings ask for: four times the trained length where they name no target.

    Raises `RopeError` where the model has no rope, or neither it nor the settings state the trained length.
    """
    trained = trained_length_of(reader, settings.trained_length)
    return Reach(trained, 4 * trained if settings.target is None else settings.target, settings.unscaled_tokens)
