"""A callback for transformers' Trainer that measures the model with the doctor before, during and after training."""

from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from ropewalk.attachment import attachment_of
from ropewalk.checkpoints.opening import fast_copy, reader_of
from ropewalk.diagnosis.prepare import doctor
from ropewalk.diagnosis.record import Diagnosis
from ropewalk.errors import RopeError
from ropewalk.imports import need
from ropewalk.methods import METHODS, Reach

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    TrainerCallback = need("transformers", "transformers").TrainerCallback


@dataclass(frozen=True)
class Reading:
    """The doctor's diagnosis after `step` updates."""

    step: int
    diagnosis: Diagnosis

    def metrics(self) -> dict[str, float]:
        """Return losses in nats per token, and the share of facts found beyond the trained length."""
        evidence = self.diagnosis.evidence
        chosen = next(one for name, one in evidence.standings.items() if name not in ("plain", "crop"))
        numbers = {"doctor/loss_within": chosen.within or math.nan}
        if chosen.beyond is not None:
            numbers["doctor/found_beyond"] = chosen.beyond.share
        if chosen.loss is not None:
            numbers["doctor/beyond_minus_crop"] = chosen.loss.value
        return numbers


class DoctorCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Measure the attached model with the doctor before, during and after training.

    **Arguments:**
    - `tokenizer`: the model's. `text`: a file to measure on; None: passages of books and of code.
    - `every`: updates between two measurements; None: only before and after. `windows`: number of windows of the
      target length.

    The model must be attached to a method (`rw.attach`); its target is the measured length. plain and crop are the same
    weights under the positions from before the method. `readings` contains each diagnosis. Its metrics are added
    to the state's `log_history`, and passed to `log` if set: `callback.log = trainer.log` sends them to the Trainer's
    own loggers.

    **Raises:** `RopeError` when training begins, if the model is not attached to a method with a target, or if it is
    sharded. Measure the saved checkpoint of a sharded model with `ropewalk doctor`.

    >>> callback = DoctorCallback(tokenizer=None, every=50)  # with the model's tokenizer: Trainer(callbacks=[callback])
    >>> callback.readings
    []
    """

    def __init__(self, tokenizer: Any, *, text: Path | None = None, every: int | None = None, windows: int = 1) -> None:
        self.tokenizer, self.text, self.every, self.windows = tokenizer, text, every, windows
        self.readings: list[Reading] = []
        self.log: Callable[[dict[str, float]], None] | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Measure before the first update."""
        self._measure(state, more["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Measure after every `every`-th update."""
        if self.every and state.global_step % self.every == 0 and state.global_step < state.max_steps:
            self._measure(state, more["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Measure after the last update."""
        self._measure(state, more["model"])

    def _measure(self, state: Any, model: nn.Module) -> None:
        handle = attachment_of(model)
        method = None if handle is None else handle.method
        if handle is None or method is None or handle.target is None or handle.trained_length is None:
            raise RopeError(
                "DoctorCallback: the model is not attached to a method with a target.",
                facts={"model": type(model).__name__},
                cure='Call rw.attach(model, "yarn", target=...) before you create the Trainer.',
            )
        if any(hasattr(weight, "placements") or hasattr(weight, "ds_id") for weight in model.parameters()):
            raise RopeError(
                "DoctorCallback: a sharded model cannot be measured during training.",
                facts={"model": type(model).__name__},
                cure="Leave out the callback, and measure the saved checkpoint: ropewalk doctor FOLDER.",
            )
        if not state.is_world_process_zero:
            return
        reach = Reach(handle.trained_length, handle.target)
        reader: Any = reader_of((fast_copy(_of_one_dtype(model))[0], self.tokenizer))
        with tempfile.TemporaryDirectory() as folder:
            diagnosis = doctor(
                reader.under(METHODS["plain"].positions(handle.own, reach)), methods=[method.name],
                target=reach.target, trained_length=reach.trained, text=self.text, minutes=math.inf,
                state=folder, progress=False, windows=self.windows,
            )  # fmt: skip
        self.readings.append(Reading(state.global_step, diagnosis))
        metrics = self.readings[-1].metrics()
        if self.log is not None:
            self.log(metrics)
        else:
            state.log_history.append({**metrics, "step": state.global_step})


def _of_one_dtype(model: nn.Module) -> nn.Module:
    """Return the model, or a float32 copy of one with weights of several dtypes, which only runs under autocast."""
    dtypes = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    return model if len(dtypes) == 1 else copy.deepcopy(model).float()
