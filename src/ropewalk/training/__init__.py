"""Training a decoder from scratch: texts to windows, the loop, and runs that continue bit for bit after a kill."""

from __future__ import annotations

from ropewalk.training.events import Event, Housekeeping
from ropewalk.training.from_scratch import train
from ropewalk.training.settings import SIZES, TrainSettings

__all__ = ["SIZES", "Event", "Housekeeping", "TrainSettings", "train"]
