"""A callback of transformers' Trainer that checks the rotary modules before the first update."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ropewalk.audit.findings import Finding
from ropewalk.audit.live_check import check, raise_errors
from ropewalk.imports import need

if TYPE_CHECKING:
    from transformers import TrainerCallback
else:
    TrainerCallback = need("transformers", "transformers").TrainerCallback

logger = logging.getLogger("ropewalk.audit")
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "note": logging.INFO}


class RopeCheck(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """Check the model's rotary modules by `check` when training begins, on the device and in the dtype of training.

    **Arguments:**
    - `config`: the expected config, as in `check`. Defaults to the model's own config.
    - `strict`: stop the training if there is an error; False only logs it.

    Findings are stored in `findings` and logged to "ropewalk.audit".
    **Raises:** `RopeError` when training begins, if `strict` and there is a finding of severity "error".

    >>> callback = RopeCheck(strict=False)  # Trainer(..., callbacks=[callback])
    >>> callback.findings
    ()
    """

    def __init__(self, config: Any = None, *, strict: bool = True) -> None:
        self.config, self.strict = config, strict
        self.findings: tuple[Finding, ...] = ()

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Check the model before the first update."""
        self.findings = check(more["model"], self.config)
        for finding in self.findings:
            logger.log(_LEVELS[finding.severity], "%s: %s. %s", finding.code, finding.message, finding.cure)
        if self.strict:
            raise_errors(self.findings, "RopeCheck")
