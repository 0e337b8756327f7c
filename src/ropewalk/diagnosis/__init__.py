"""The doctor: what it measures, and what it concludes."""

from __future__ import annotations

from ropewalk.diagnosis.settings import Protocol as Protocol
