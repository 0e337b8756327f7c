"""The doctor: its measurements and its conclusions."""

from __future__ import annotations

from ropewalk.diagnosis.settings import Protocol as Protocol
