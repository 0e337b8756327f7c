"""The settings of the doctor. The command line derives its options from them; the module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError
from ropewalk.rope.values import MOST_SEED, check_positive, check_whole

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
ALL = "all"
CPU_MINUTES = 10.0  # of a run on a CPU for which no minutes are given
ENGINES = ("vllm", "sglang", "llama.cpp", "ollama", "transformers", "python")
TextSource = str | Path | Sequence[str | Path | tuple[str, str]] | None


def _option(group: str, description: str, **more: Any) -> dict[str, Any]:
    """Return the metadata of a field that is an option, listed under the heading `group`."""
    return {"help": description, "group": group, **more}


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """All settings of `rw.doctor` and `ropewalk doctor`. Lengths are in tokens.

    Raises `RopeError` for invalid settings.

    >>> DoctorSettings(methods="yarn,crop").method_names
    ('yarn', 'crop')
    """

    target: int | None = field(
        default=None,
        metadata=_option(
            "Measurement",
            "Desired length [default: four times the trained length; less if the text or the minutes are too few].",
            unit="tokens",
        ),
    )
    trained_length: int | None = field(
        default=None,
        metadata=_option(
            "Measurement", "Trained length; overrides the config and the table of families.", unit="tokens"
        ),
    )
    text: TextSource = field(
        default=None,
        metadata=_option(
            "Measurement",
            "Text to measure on: a UTF-8 file (plain or gzipped) or a folder; repeatable [default: passages of books "
            "and code].",
            type=tuple[Path, ...],
            metavar="FILE",
        ),
    )
    methods: str | Sequence[str] | None = field(
        default=None,
        metadata=_option(
            "Measurement",
            'Extension methods, separated by commas; "all" includes those in attention [default: yarn, '
            "then llama3, ntk and dca until one works].",
            type=tuple[str, ...],
            commas=True,
            option=("--methods", "--method"),
        ),
    )
    engine: str | None = field(
        default=None,
        metadata=_option(
            "Measurement",
            f"Engine for the model: {', '.join(ENGINES)}. Only methods it can run are recommended "
            "[default: any that uses a config].",
        ),
    )
    minutes: float | None = field(
        default=None,
        metadata=_option(
            "Measurement", "End after this many minutes with the best answer so far [default: 10 on a CPU]."
        ),
    )
    windows: int | None = field(
        default=None,
        metadata=_option("Measurement", "Most windows of text to read [default: up to 8, until the answer stands]."),
    )
    seed: int = field(default=0, metadata=_option("Measurement", "Seed of the windows and of the facts."))
    dtype: str = field(
        default="float32",
        metadata=_option(
            "Machine", f"Dtype of the weights: {', '.join(DTYPES)}; auto is bfloat16 if that is fast here."
        ),
    )
    device: str = field(default="cpu", metadata=_option("Machine", "Device to compute on: cpu, cuda, ..."))
    device_map: str | None = field(
        default=None,
        metadata=_option(
            "Machine", "transformers' device_map, instead of --device: auto spreads the layers over the devices."
        ),
    )
    state: str | Path | None = field(
        default=None,
        metadata=_option(
            "Results",
            "Folder of the saved results [default: in the user's cache].",
            type=Path | None,
            metavar="FOLDER",
        ),
    )
    resume: bool = field(default=False, metadata=_option("Results", "Resume the same run."))

    def __post_init__(self) -> None:
        check_whole("doctor", target=self.target, trained_length=self.trained_length, windows=self.windows)
        check_whole("doctor", least=0, most=MOST_SEED, seed=self.seed)
        _ = self.method_names
        if self.dtype not in DTYPES:
            raise RopeError(
                "doctor: unknown dtype.", facts={"dtype": self.dtype}, cure=f"Choose from {', '.join(DTYPES)}."
            )
        if self.minutes is not None and not (isinstance(self.minutes, float) and self.minutes == math.inf):
            check_positive("doctor", minutes=self.minutes)
        if self.engine is not None and self.engine not in ENGINES:
            raise RopeError(
                "doctor: unknown engine.", facts={"engine": self.engine}, cure=f"Choose from {', '.join(ENGINES)}."
            )
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
