"""The settings of the doctor. The command line derives its options from them; the module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.values import MOST_SEED, check_positive, check_whole
from ropewalk.serving.engines import RUNNERS

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
CPU_MINUTES = 10.0  # of a run on a CPU for which no minutes are given
TextSource = str | Path | Sequence[str | Path | tuple[str, str]] | None


def _option(default: Any, description: str, group: str = "Measurement", **more: Any) -> Any:
    """Return a field that is an option, listed under the heading `group`."""
    return field(default=default, metadata={"help": description, "group": group, **more})


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """All settings of `rw.doctor` and `ropewalk doctor`. Lengths are in tokens.

    Raises `RopeError` for invalid settings.

    >>> DoctorSettings(methods="yarn,crop").method_names
    ('yarn', 'crop')
    """

    target: int | None = _option(
        None,
        "Desired length [default: four times the trained length; less if the text or the minutes are too few].",
        unit="tokens",
    )
    trained_length: int | None = _option(
        None, "Trained length; overrides the config and the table of families.", unit="tokens"
    )
    text: TextSource = _option(  # noqa: RUF009
        None,
        "Text to measure on: a UTF-8 file (plain or gzipped) or a folder; repeatable [default: passages of books and "
        "code].",
        type=tuple[Path, ...],
        metavar="FILE",
    )
    methods: str | Sequence[str] | None = _option(
        None,
        'Extension methods, separated by commas; "all" includes those in attention [default: the first three '
        "of yarn, llama3, dca and ntk that the engine runs].",
        type=tuple[str, ...],
        commas=True,
        option=("--methods", "--method"),
    )
    engine: str | None = _option(
        None,
        f"Engine for the model: {', '.join(RUNNERS)}. The best method that it runs is recommended [default: the best "
        "of all, and the best for engines].",
    )
    minutes: float | None = _option(
        None, "End after this many minutes with the best answer so far [default: 10 on a CPU]."
    )
    windows: int | None = _option(None, "Most windows of text to read [default: up to 8, until the answer stands].")
    seed: int = _option(0, "Seed of the windows and of the facts.")
    dtype: str = _option(
        "float32", f"Dtype of the weights: {', '.join(DTYPES)}; auto is bfloat16 if that is fast here.", "Machine"
    )
    device: str = _option("cpu", "Device to compute on: cpu, cuda, ...", "Machine")
    device_map: str | None = _option(
        None, "transformers' device_map, instead of --device: auto spreads the layers over the devices.", "Machine"
    )
    state: str | Path | None = _option(  # noqa: RUF009
        None,
        "Folder of the saved results [default: in the user's cache].",
        "Results",
        type=Path | None,
        metavar="FOLDER",
    )
    resume: bool = _option(False, "Resume the same run.", "Results")

    def __post_init__(self) -> None:
        check_whole("doctor", target=self.target, trained_length=self.trained_length, windows=self.windows)
        check_whole("doctor", least=0, most=MOST_SEED, seed=self.seed)
        _ = self.method_names
        for name, known in (("dtype", DTYPES), ("engine", (None, *RUNNERS))):
            if getattr(self, name) not in known:
                cure = f"Choose from {', '.join(filter(None, known))}."
                raise RopeError(f"doctor: unknown {name}.", facts={name: getattr(self, name)}, cure=cure)
        if self.minutes is not None and not (isinstance(self.minutes, float) and self.minutes == math.inf):
            check_positive("doctor", minutes=self.minutes)
        if self.device_map is not None and self.changes("device"):
            raise RopeError(
                "doctor: `device` and `device_map` are mutually exclusive.",
                facts={"device": self.device, "device_map": self.device_map},
                cure="Pass one of them.",
            )

    def changes(self, name: str) -> bool:
        """Return whether a setting differs from its default."""
        return bool(getattr(self, name) != self.__dataclass_fields__[name].default)

    @property
    def method_names(self) -> tuple[str, ...]:
        """Return the names of the given methods; none if the doctor chooses them."""
        from ropewalk.methods import named_methods

        return tuple(named_methods(self.methods))
