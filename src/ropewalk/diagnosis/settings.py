"""What can be asked of the doctor: one record, from which the command line takes its options.

The module imports no torch, so that the help can be shown without it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ropewalk.errors import RopeError
from ropewalk.measure import DEFAULT_TASKS, SAMPLES, TASKS
from ropewalk.readers import CHUNK

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
ALL = "all"
MEASURED = ("loss", "use", "retrieval")
TextSource = str | Path | Sequence[str | Path | tuple[str, str]] | None


def _tokens(description: str) -> dict[str, str]:
    """The metadata of a length."""
    return {"help": description, "unit": "tokens"}


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """Everything that `rw.doctor` and `ropewalk doctor` may be asked. Lengths are in tokens.

    Raises `RopeError` for what cannot be, and for a setting that would be ignored.

    >>> DoctorSettings(methods="yarn,crop").method_names
    ('yarn', 'crop')
    """

    target: int | None = field(
        default=None,
        metadata=_tokens(
            "Length wanted, in tokens [default: four times the trained length; twice where the text holds no more]."
        ),
    )
    trained_length: int | None = field(
        default=None,
        metadata=_tokens(
            "Trained length in tokens; overrides what the config and the table of families say [default: as they say; "
            "measured where they do not say whether a scaling belongs to the model]."
        ),
    )
    text: TextSource = field(
        default=None,
        metadata={
            "help": "UTF-8 text to measure on, plain or gzipped; repeatable [default: Moby Dick].",
            "type": tuple[Path, ...],
            "metavar": "FILE",
        },
    )
    start_char: int = field(default=0, metadata={"help": "Start each text at this character."})
    block: int | None = field(
        default=None, metadata=_tokens("Tokens of a block of positions [default: a quarter of the trained length].")
    )
    windows: int | None = field(default=None, metadata={"help": "Number of windows of each text [default: up to 16]."})
    stride: int | None = field(
        default=None, metadata=_tokens("Stride of crop, in tokens [default: a quarter of the trained length].")
    )
    methods: str | Sequence[str] | None = field(
        default=None,
        metadata={
            "help": 'Extension methods, with commas; "all" includes those of attention [default: what a config can '
            "express, and crop].",
            "type": tuple[str, ...],
            "commas": True,
            "option": ("--methods", "--method"),
        },
    )
    unscaled_tokens: int = field(
        default=0,
        metadata=_tokens("Number of first tokens that keep their angles under changed frequencies (LongRoPE's n-hat)."),
    )
    measure: str | Sequence[str] = field(
        default=("loss", "use"),
        metadata={
            "help": "What is measured, with commas: loss (always), use (of far tokens), retrieval.",
            "type": tuple[str, ...],
            "commas": True,
        },
    )
    retrieval: str | Sequence[str] | None = field(
        default=None,
        metadata={
            "help": "Also measure retrieval of distant facts, for plain, the best method and crop unless methods are "
            "named: numbers (named numbers, the plainest), passkey or all [default with --measure retrieval: "
            "numbers].",
            "type": tuple[str, ...],
            "commas": True,
        },
    )
    retrieval_lengths: Sequence[int] | None = field(
        default=None,
        metadata={
            "help": "Lengths of retrieval, with commas [default: from half the trained length to the target].",
            "type": tuple[int, ...],
            "commas": True,
            "unit": "tokens",
        },
    )
    retrieval_samples: int = field(
        default=SAMPLES,
        metadata={"help": "Texts for each task and length."},
    )
    retrieval_chat: bool = field(
        default=False, metadata={"help": "Put the questions into the frame of the model's chat template."}
    )
    seed: int = field(default=0, metadata={"help": "Seed of the windows and the retrieval texts."})
    chunk: int = field(
        default=CHUNK, metadata=_tokens("Tokens of one forward pass; fewer need less memory and more time.")
    )
    workers: int | None = field(
        default=None, metadata={"help": "Windows measured at the same time [default: as cores and memory allow]."}
    )
    minutes: float | None = field(
        default=None,
        metadata={"help": "Measure the windows and methods that fit into this many minutes; plain and crop always."},
    )
    dtype: str = field(
        default="float32",
        metadata={"help": f"Dtype of the weights: {', '.join(DTYPES)}; auto is bfloat16 where that is fast."},
    )
    device: str = field(default="cpu", metadata={"help": "Device to compute on: cpu, cuda, ..."})
    device_map: str | None = field(
        default=None,
        metadata={
            "help": "transformers' device_map, in place of --device: auto spreads the layers over the devices here."
        },
    )
    tp_plan: str | None = field(
        default=None,
        metadata={
            "help": "transformers' tp_plan, in place of --device: auto gives each process of torchrun its heads."
        },
    )
    shard_window: bool = field(
        default=False,
        metadata={
            "help": "Under torchrun: put the rows of each window on all processes, for windows that one device cannot "
            "hold; else each process measures windows of its own."
        },
    )
    state: str | Path | None = field(
        default=None,
        metadata={
            "help": "Folder of the results so far [default: in the user's cache].",
            "type": Path | None,
            "metavar": "FOLDER",
        },
    )
    resume: bool = field(
        default=False, metadata={"help": "Continue the same run where it was stopped, or join it while it runs."}
    )

    def __post_init__(self) -> None:
        _ = self.method_names
        names = self.task_names
        unknown = [name for name in names if name not in (ALL, *TASKS)]
        if unknown or ("retrieval" in self.measured and not names):
            raise RopeError(
                "retrieval: unknown task.",
                facts={"task": ", ".join(unknown)},
                cure=f"Choose from {ALL}, {', '.join(TASKS)}; RULER's tasks are in lm-eval (see docs/extending.md).",
            )
        if self.dtype not in DTYPES:
            raise RopeError(
                "doctor: unknown dtype.", facts={"dtype": self.dtype}, cure=f"Choose from {', '.join(DTYPES)}."
            )
        for name in ("chunk", "workers"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise RopeError(
                    f"doctor: `{name}` must be at least 1.",
                    facts={name: getattr(self, name)},
                    cure=f"Leave --{name} out for the default.",
                )
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise RopeError(
                "doctor: `minutes` must be above 0.", facts={"minutes": self.minutes}, cure="Give --minutes 10."
            )
        alone = [name for name in ("workers", "minutes") if getattr(self, name) is not None]
        alone += ["retrieval"] if "retrieval" in self.measured and self.shard_window else []
        if self.together and alone:
            raise RopeError(
                "doctor: processes that compute each window together measure one after the other, --shard-window no "
                "retrieval.",
                facts={"given": [f"--{name}" for name in alone]},
                cure="Leave these out, or --shard-window and --tp-plan.",
            )
        placed = [name for name in ("device_map", "tp_plan", "shard_window", "device") if self.changes(name)]
        if len(placed) > 1 and placed != ["shard_window", "device"]:
            raise RopeError(
                "doctor: these settings each say where the model is computed.",
                facts={"given": [f"--{name.replace('_', '-')}" for name in placed]},
                cure="Pass one of them; --shard-window goes with --device.",
            )
        unknown = [name for name in self.measured if name not in MEASURED]
        if unknown or "loss" not in self.measured:
            raise RopeError(
                "doctor: `measure` names what is measured, and the loss always is: the verdict rests on it.",
                facts={"measure": ",".join(self.measured)},
                cure=f"Choose from {', '.join(MEASURED)}: --measure loss,use.",
            )
        of_retrieval = ("retrieval_lengths", "retrieval_samples", "retrieval_chat")
        given = [name for name in of_retrieval if self.changes(name)]
        refuse_ignored(given, "retrieval" in self.measured, "--retrieval", "Add --retrieval numbers")

    @property
    def together(self) -> bool:
        """Whether all processes of a launch compute each window together."""
        return self.shard_window or self.tp_plan is not None

    def changes(self, name: str) -> bool:
        """Whether a setting differs from its default."""
        return bool(getattr(self, name) != self.__dataclass_fields__[name].default)

    @property
    def method_names(self) -> tuple[str, ...]:
        """The methods asked for, one by one; none where the choice is left to the doctor."""
        from ropewalk.methods import named_methods

        return tuple(named_methods(_words(self.methods)))

    @property
    def names_methods(self) -> bool:
        """Whether methods were named one by one, not left to the doctor, and not all of them."""
        return self.methods is not None and ALL not in ",".join(_words(self.methods)).split(",")

    @property
    def measured(self) -> tuple[str, ...]:
        """What is measured, one by one; tasks of retrieval imply retrieval."""
        words = [word.strip() for given in _words(self.measure) for word in given.split(",")]
        implied = ["retrieval"] if self.retrieval is not None else []
        return tuple(dict.fromkeys(word for word in [*words, *implied] if word))

    @property
    def task_names(self) -> tuple[str, ...]:
        """The retrieval tasks, one by one, each once; "all" stands for those that fit."""
        words = (word.strip() for given in _words(self.retrieval) for word in given.split(","))
        named = tuple(dict.fromkeys(word for word in words if word))
        return DEFAULT_TASKS if self.retrieval is None and "retrieval" in self.measured else named


def refuse_ignored(given: Sequence[str], present: bool, owner: str, cure: str) -> None:
    """Raise `RopeError` for settings that were given while what they belong to is not there."""
    if given and not present:
        raise RopeError(
            f"doctor: these settings belong to {owner}, and would be ignored.",
            facts={"given": [f"--{name.replace('_', '-')}" for name in given]},
            cure=f"{cure}, or leave them out.",
        )


def _words(given: str | Sequence[str] | None) -> Sequence[str]:
    return [given] if isinstance(given, str) else given or ()
