"""The settings of the doctor: `Protocol` contains those of the measurement, `DoctorSettings` all others.

The command line derives its options from both. The module does not import torch, so the help is quick.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from ropewalk.atomic_io import as_path, parse_object, read_text
from ropewalk.errors import RopeError, check_kind
from ropewalk.readers import CHUNK
from ropewalk.rope.values import MOST_SEED, check_positive, check_whole, names_of

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
ALL = "all"
CPU_MINUTES = 10.0  # of a run on a CPU for which no minutes are given
MEASURED = ("loss", "copies")
ENGINES = ("vllm", "sglang", "llama.cpp", "ollama", "transformers", "python")
TextSource = str | Path | Sequence[str | Path | tuple[str, str]] | None


def _option(group: str, description: str, **more: Any) -> dict[str, Any]:
    """Return the metadata of a field that is an option, listed under the heading `group`."""
    return {"help": description, "group": group, **more}


def _in_file(description: str) -> dict[str, Any]:
    """Return the metadata of a field that is set only in the file of --protocol."""
    return {"help": description, "command_line": False}


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Settings of the doctor's measurement. `rw.doctor` describes the fields; all have defaults. Lengths are in tokens.

    Raises `RopeError` for a value of the wrong type. The other checks need the model and its text.

    >>> Protocol(windows=4, seed=7).changed
    ('windows', 'seed')
    """

    windows: int | None = field(
        default=None, metadata=_option("Measurement", "Most windows of text to measure [default: up to 16].")
    )
    device_map: str | None = field(
        default=None,
        metadata=_option(
            "Machine", "transformers' device_map, instead of --device: auto spreads the layers over the devices."
        ),
    )
    start_char: int = field(default=0, metadata=_in_file("Character at which each text starts."))
    block: int | None = field(
        default=None, metadata=_in_file("Tokens of a block of positions; an eighth of the tokens beyond.")
    )
    stride: int | None = field(default=None, metadata=_in_file("Stride of crop; a quarter of the trained length."))
    seed: int = field(default=0, metadata=_in_file("Seed of the windows."))
    keep_going: bool = field(
        default=False, metadata=_in_file("Measure every window under every method, even after the verdict is final.")
    )
    chunk: int = field(
        default=CHUNK, metadata=_in_file("Tokens of one forward pass; fewer need less memory and more time.")
    )
    workers: int | None = field(
        default=None, metadata=_in_file("Windows measured at the same time; by default as cores and memory allow.")
    )

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            value, kinds = getattr(self, name), tuple(get_origin(kind) or kind for kind in get_args(hint) or (hint,))
            matches = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
            if not matches:
                raise RopeError(
                    f"protocol: `{name}` has the wrong type.",
                    facts={"given": repr(value), "type": getattr(hint, "__name__", str(hint))},
                    cure="Give a value of this type, or leave it out for the default.",
                )
        ones = ("windows", "stride", "chunk", "workers")
        check_whole("protocol", **{name: getattr(self, name) for name in ones})
        check_whole("protocol", least=2, block=self.block)
        check_whole("protocol", least=0, most=10**8, start_char=self.start_char)
        check_whole("protocol", least=0, most=MOST_SEED, seed=self.seed)

    @property
    def changed(self) -> tuple[str, ...]:
        """Return the names of the fields that differ from their defaults."""
        return tuple(one.name for one in fields(self) if getattr(self, one.name) != one.default)


OPTIONS_OF_PROTOCOL = tuple(one.name for one in fields(Protocol) if one.metadata.get("command_line", True))
FILE_ONLY = tuple(one.name for one in fields(Protocol) if one.name not in OPTIONS_OF_PROTOCOL)


def read_protocol(source: str) -> dict[str, Any]:
    """Return the fields of a `Protocol` that a JSON or TOML file sets, or that JSON text ("{...}") sets.

    Raises `RopeError` if the file cannot be read or contains an unknown field.

    >>> read_protocol('{"seed": 3}')
    {'seed': 3}
    """
    cure = "Give a file NAME.toml or NAME.json, or JSON text: --protocol '{\"seed\": 3}'."
    path = as_path(source, "protocol")
    text = source if source.lstrip().startswith("{") else read_text(path, "protocol", cure)
    content = parse_object(text, source, "protocol", cure, toml=source.endswith(".toml"))
    names = [one.name for one in fields(Protocol)]
    unknown = [name for name in content if name not in names]
    if unknown:
        raise RopeError(
            "protocol: the file contains unknown fields.",
            facts={"protocol": source, "unknown": unknown},
            cure=f"Choose from {', '.join(names)}.",
        )
    return content


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """All settings of `rw.doctor` and `ropewalk doctor`. Lengths are in tokens.

    Raises `RopeError` for invalid settings, and for a setting that would be ignored.

    >>> DoctorSettings(methods="yarn,crop").method_names
    ('yarn', 'crop')
    """

    target: int | None = field(
        default=None,
        metadata=_option(
            "Measurement",
            "Desired length [default: four times the trained length; less if the text is shorter].",
            unit="tokens",
        ),
    )
    trained_length: int | None = field(
        default=None,
        metadata=_option(
            "Measurement",
            "Trained length; overrides the config and the table of families.",
            unit="tokens",
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
            'Extension methods, separated by commas; "all" includes those in attention [default: those that a config '
            "can express, dca and crop].",
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
    measure: str | Sequence[str] = field(
        default=("loss", "copies"),
        metadata=_option(
            "Measurement",
            "Measurements, separated by commas: loss (always), copies.",
            type=tuple[str, ...],
            commas=True,
        ),
    )
    minutes: float | None = field(
        default=None,
        metadata=_option(
            "Measurement",
            "End after this many minutes with the best answer so far [default: 10 on a CPU].",
        ),
    )
    dtype: str = field(
        default="float32",
        metadata=_option(
            "Machine", f"Dtype of the weights: {', '.join(DTYPES)}; auto is bfloat16 if that is fast here."
        ),
    )
    device: str = field(default="cpu", metadata=_option("Machine", "Device to compute on: cpu, cuda, ..."))
    state: str | Path | None = field(
        default=None,
        metadata=_option(
            "Results",
            "Folder of the saved results [default: in the user's cache].",
            type=Path | None,
            metavar="FOLDER",
        ),
    )
    resume: bool = field(
        default=False,
        metadata=_option("Results", "Resume the same run."),
    )
    protocol: Protocol = field(default=Protocol(), metadata={"command_line": False})

    def __post_init__(self) -> None:
        check_whole("doctor", target=self.target, trained_length=self.trained_length)
        _ = self.method_names
        if self.dtype not in DTYPES:
            raise RopeError(
                "doctor: unknown dtype.", facts={"dtype": self.dtype}, cure=f"Choose from {', '.join(DTYPES)}."
            )
        check_kind("doctor", Protocol, "For example, pass Protocol(windows=4).", protocol=self.protocol)
        if self.minutes is not None and not (isinstance(self.minutes, float) and self.minutes == math.inf):
            check_positive("doctor", minutes=self.minutes)
        if self.engine is not None and self.engine not in ENGINES:
            raise RopeError(
                "doctor: unknown engine.", facts={"engine": self.engine}, cure=f"Choose from {', '.join(ENGINES)}."
            )
        if "device_map" in self.protocol.changed and self.changes("device"):
            raise RopeError(
                "doctor: `device` and `device_map` are mutually exclusive.",
                facts={"device": self.device, "device_map": self.protocol.device_map},
                cure="Pass one of them.",
            )
        unknown = [name for name in self.measured if name not in MEASURED]
        if unknown or "loss" not in self.measured:
            raise RopeError(
                "doctor: `measure` must contain loss, which the verdict needs, and no unknown names.",
                facts={"measure": ",".join(self.measured)},
                cure=f"Choose from {', '.join(MEASURED)}: --measure loss,copies.",
            )

    def changes(self, name: str) -> bool:
        """Return whether a setting differs from its default."""
        return bool(getattr(self, name) != self.__dataclass_fields__[name].default)

    @property
    def method_names(self) -> tuple[str, ...]:
        """Return the names of the given methods; none if the doctor chooses them."""
        from ropewalk.methods import named_methods

        return tuple(named_methods(self.methods))

    @property
    def names_methods(self) -> bool:
        """Return whether methods are named one by one: not "all", and not chosen by the doctor."""
        return self.methods is not None and ALL not in self.method_names

    @property
    def measured(self) -> tuple[str, ...]:
        """Return the names of the measurements."""
        return tuple(dict.fromkeys(names_of("doctor: `measure`", self.measure)))


def refuse_ignored(given: Sequence[str], present: bool, owner: str, cure: str) -> None:
    """Raise `RopeError` for given settings that belong to `owner` when it is not present."""
    if given and not present:
        raise RopeError(
            f"doctor: these settings apply only to {owner}, and would be ignored.",
            facts={"given": list(given)},
            cure=f"{cure}, or leave them out.",
        )
