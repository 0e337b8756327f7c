"""The doctor's choice, read from its record: a method, its lengths, and the model that they were measured on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ropewalk.errors import RopeError
from ropewalk.extend.settings import ApplySettings
from ropewalk.readers.reader import TunableReader
from ropewalk.report.record import read_record, understood

CHOSEN = ("method", "target", "trained_length", "unscaled_tokens")
"""The settings that a record holds."""
_INSTEAD = {
    "keep": "Leave the model as it is: nothing has to be written.",
    "cut": "Give the model the last tokens of its trained length: nothing has to be written.",
    "unfit": "Measure on a text that the model can predict: ropewalk doctor MODEL --text FILE.",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Choice:
    """What a doctor's record recommends.

    - `settings`: the method, the target, the trained length and the first tokens without scaling.
    - `model`: its name. `digest`: the model's, in `dtype`.
    """

    settings: Mapping[str, Any]
    model: str
    digest: str
    dtype: torch.dtype

    @classmethod
    def read(cls, record: str | os.PathLike[str] | Mapping[str, Any]) -> Choice:
        """The choice in a record: the file that `ropewalk doctor --json` wrote, or its content.

        Raises `RopeError` for another file, for a record without a verdict, and where its action is not "extend".
        """
        document = dict(record) if isinstance(record, Mapping) else read_record(Path(record))
        with understood(document):
            verdict = document.get("verdict")
            if verdict is None:
                raise RopeError(
                    "extend: the record holds no verdict: it was made by an earlier version.",
                    facts={"model": str(document["model"])},
                    cure="Measure again: ropewalk doctor MODEL --json FILE; or name the method with --method.",
                )
            if verdict["action"] != "extend":
                following = (verdict["next"] or {}).get("command")
                raise RopeError(
                    "extend: the doctor does not recommend to extend this model.",
                    facts={"action": verdict["action"], "verdict": verdict["sentence"]},
                    cure=_INSTEAD.get(verdict["action"])
                    or (f"Measure more: {following}" if following else "Name the method with --method all the same."),
                )
            protocol, environment = document["protocol"], document["environment"]
            return cls(
                settings={
                    "method": verdict["method"],
                    "target": document["target"],
                    "trained_length": document["trained_length"],
                    "unscaled_tokens": protocol.get("unscaled_tokens", 0),
                },
                model=str(document["model"]),
                digest=str(environment["model_digest"]),
                dtype=getattr(torch, environment["dtype"]),
            )

    def over(self, settings: ApplySettings) -> ApplySettings:
        """These settings with the record's method and lengths.

        Raises `RopeError` for a method or a length among them that is another than its default: one of both would be
        ignored.
        """
        fields = ApplySettings.__dataclass_fields__
        given = {name: getattr(settings, name) for name in CHOSEN if getattr(settings, name) != fields[name].default}
        if given:
            refuse_beside_a_record(given)
        return dataclasses.replace(settings, **self.settings)

    def check_model(self, reader: TunableReader, name: str) -> None:
        """Raise `RopeError` unless the model is, to the bit, the one that was measured."""
        digest = reader.to(dtype=self.dtype).digest()
        if digest != self.digest:
            raise RopeError(
                "extend: the record was measured on another model.",
                facts={
                    "model": f"{name}, digest {digest}",
                    "record": f"{self.model}, digest {self.digest}",
                },
                cure="Give the model that the doctor measured, or measure this one.",
            )


def refuse_beside_a_record(given: Mapping[str, Any]) -> None:
    """Raise `RopeError` for settings that a record holds as well."""
    raise RopeError(
        "extend: --from takes the method and the lengths from the doctor's record.",
        facts={f"--{name.replace('_', '-')}": value for name, value in given.items()},
        cure="Leave these options out, or --from.",
    )
