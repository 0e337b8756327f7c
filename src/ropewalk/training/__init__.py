"""Training a decoder from scratch: texts to windows, the loop, and runs that go on bit for bit after a kill."""

from __future__ import annotations

from ropewalk.training.events import Event, Housekeeping
from ropewalk.training.loop import train
from ropewalk.training.settings import SIZES, TrainSettings

__all__ = ["SIZES", "Event", "Housekeeping", "TrainSettings", "train"]
