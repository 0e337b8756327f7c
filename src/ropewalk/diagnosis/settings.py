"""The settings of the doctor. The module does not import torch, so that the help is quick."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.errors import RopeError, shell_command
from ropewalk.rope.values import MOST_SEED, check_positive, check_whole
from ropewalk.serving.engines import RUNNERS

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
CPU_MINUTES = 10.0  # of a run on a CPU for which no minutes are given
TextSource = str | Path | Sequence[str | Path | tuple[str, str]] | None


def listed(value: Any) -> list[Any]:
    """Return the values of a setting that may be one or several."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """All settings of `rw.doctor` and `ropewalk doctor`. Lengths are in tokens.

    Raises `RopeError` for invalid settings.

    >>> DoctorSettings(methods="yarn,crop").method_names
    ('yarn', 'crop')
    """

    target: int | None = None
    trained_length: int | None = None
    text: TextSource = None
    methods: str | Sequence[str] | None = None
    engine: str | None = None
    minutes: float | None = None
    windows: int | None = None
    seed: int = 0
    dtype: str = "float32"
    device: str = "cpu"
    state: str | Path | None = None
    resume: bool = False

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

    def changes(self, name: str) -> bool:
        """Return whether a setting differs from its default."""
        return bool(getattr(self, name) != self.__dataclass_fields__[name].default)

    @property
    def method_names(self) -> tuple[str, ...]:
        """Return the names of the given methods; none if the doctor chooses them."""
        from ropewalk.methods import named_methods

        return tuple(named_methods(self.methods))

    def command(self, model: object, *, kept: Sequence[str] = (), resume: bool = False, **changes: Any) -> str:
        """Return the command of another run, or the call in Python if the model or a text is an object.

        - `changes`: settings that differ. `kept`: words at the end of the command, such as --json FILE.
        - `resume`: whether it goes on from the saved results.

        >>> DoctorSettings(methods="yarn,ntk").command("tiny", minutes=20.0)
        'ropewalk doctor tiny --methods yarn,ntk --minutes 20'
        """
        other = dataclasses.replace(self, **changes)
        names = [field.name for field in dataclasses.fields(other) if field.name not in ("state", "resume")]
        given = {name: getattr(other, name) for name in names if other.changes(name)}
        if not isinstance(model, str | Path) or any(isinstance(text, tuple) for text in listed(self.text)):
            live = "(model, tokenizer)" if isinstance(model, tuple) else "model"
            call = [repr(str(model)) if isinstance(model, str | Path) else live]
            call += [f"{name}={'text' if name == 'text' else repr(value)}" for name, value in given.items()]
            return f"rw.doctor({', '.join([*call, *['resume=True'] * resume])})"
        words: list[str | Path] = ["ropewalk", "doctor", Path(model)]
        for name, value in given.items():
            for one in [",".join(other.method_names)] if name == "methods" else listed(value):
                words += [f"--{name.replace('_', '-')}", f"{one:g}" if isinstance(one, float) else str(one)]
        words += [*["--resume"] * resume, *([] if self.state is None else ["--state", str(self.state)])]
        return shell_command(*words, *kept)
