"""The figures of an extension's record and of a search's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ropewalk.figures.loss import loss_by_position
from ropewalk.figures.search import search_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def extension_figure(record: Mapping[str, Any]) -> Figure:
    """The loss by position before and after; the fresh windows of method and tuned weights are left to the table."""
    return loss_by_position(
        record["blocks"],
        {
            variant["name"]: np.mean(variant["loss_by_window_and_block"], axis=0).tolist()
            for variant in record["variants"]
            if not variant["name"].endswith(" crop")
        },
        trained_length=record["protocol"]["trained_length"],
        title=f"{record['model']}: loss by position, before and after",
    )


def search_record_figure(record: Mapping[str, Any]) -> Figure:
    """The divisors of each pair, and the loss by evaluation."""
    rows = [*record["starts"], {**record["best"], "name": "searched"}]
    unit = "texts" if record["answers"] else "windows"
    return search_figure(
        {row["name"]: row["divisors"] for row in rows},
        {row["name"]: row["attention_factor"] for row in rows},
        record["losses"],
        {row["name"]: row["loss"] for row in record["starts"]},
        factor=record["target"] / record["trained_length"],
        title=f"{record['model']}: factors searched from {record['trained_length']:,} to {record['target']:,} tokens",
        note=f"{record['evaluations']} evaluations on {record['windows']} {unit} of {record['text']}; "
        f"seed {record['seed']}.",
        axis=f"loss {'of the answers' if record['answers'] else 'beyond the trained length'}, nats per token",
    )
