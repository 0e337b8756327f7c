"""Which options of `ropewalk extend` belong together: one that would be ignored is refused."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from ropewalk.cli.command_line import refuse_ignored
from ropewalk.context.methods import EXTENSIONS
from ropewalk.errors import RopeError

OF_SEARCH = ("answers", "budget", "minutes", "monotone", "search_windows", "search_record")
OF_TUNING = (
    "train", "rank", "batch_size", "tokens_per_step", "recompute", "lr", "final_lr", "warmup", "weight_decay", "clip",
    "precision", "log_every", "checkpoint_every",
)  # fmt: skip
OF_WRITING = ("dtype", "overwrite", "native", "steps", "measure", "block", *OF_TUNING)


def check_options(given: Collection[str], values: Mapping[str, Any]) -> None:
    """Refuse an option that this command would ignore, and a learning rate that trains nothing.

    `given` are the names on the command line, `values` every parameter's value. Raises `RopeError`.
    """
    search, tunes, writes = values["search"], values["steps"] is not None, values["out"] is not None
    measure, validation = values["measure"], values["validation"] is not None
    measures = bool(measure) or (measure is None and (tunes or validation))
    belongs = partial(refuse_ignored, "extend")
    belongs(given, OF_SEARCH, search, "--search", "add --search")
    if not writes and not search:
        raise RopeError("extend: --out names the folder to write.", facts={"out": None}, cure="Pass --out DIR.")
    belongs(given, OF_WRITING, writes, "a folder that is written", "pass --out DIR")
    belongs(given, OF_TUNING, tunes, "tuning", "add --steps and --text")
    belongs(given, ("seed",), tunes or search or measures, "tuning, --search and measuring", "add one of them")
    belongs(given, ("restart",), tunes or search or measures, "work that can be stopped", "add --steps or --measure")
    belongs(given, ("block",), measures, "measuring", "add --measure")
    belongs(given, ("windows", "start_char"), measures or search, "measuring", "add --measure")
    belongs(given, ("validation",), measures or search or tunes, "measuring", "leave out --no-measure")
    if search and "method" in given:
        raise RopeError(
            "extend: --search starts from every method, so --method would be ignored.",
            facts={"method": values["method"]},
            cure="Leave one of them out.",
        )
    if values["unscaled_tokens"] and not search and values["method"] not in EXTENSIONS:
        raise RopeError(
            "extend: --unscaled-tokens belongs to methods that change frequencies, and would be ignored.",
            facts={"method": values["method"]},
            cure=f"Choose from {', '.join(EXTENSIONS)}, or leave it out.",
        )
    if values["unscaled_tokens"] and writes and not values["native"]:
        raise RopeError(
            "extend: no key of transformers says that the first tokens keep their angles.",
            facts={"unscaled_tokens": values["unscaled_tokens"]},
            cure="Pass --native, for a folder that ropewalk alone reads, or leave --unscaled-tokens out.",
        )
    if "rank" in given and "lora" not in str(values["train"]).split("+"):
        raise RopeError(
            "extend: --rank is that of lora's adapters.",
            facts={"rank": values["rank"], "train": values["train"]},
            cure="Add lora: --train lora, or leave out --rank.",
        )
    rate = values["lr"]
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise RopeError(
            "extend: --lr must be above 0.", facts={"lr": rate}, cure="Leave it out for the default, 2e-5 or 2e-4."
        )
