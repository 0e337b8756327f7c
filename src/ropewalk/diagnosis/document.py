"""The doctor's result as data and as a JSON document, the source of reports."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.atomic_io import finite, write_output
from ropewalk.audit.audit import Audit, text_frequencies
from ropewalk.audit.findings import Finding
from ropewalk.audit.sources import inspection
from ropewalk.diagnosis.rules import Evidence, LossTable, standings
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.diagnosis.wording import attach_call, next_step
from ropewalk.errors import RopeError
from ropewalk.measure.copies import CopyMeasurement
from ropewalk.measure.losses import CROP, Measurement
from ropewalk.measure.plan import Plan
from ropewalk.measure.scaling import ScalingReading
from ropewalk.methods import METHODS, main_rope, rope_parameters
from ropewalk.report.formatting import shareable
from ropewalk.report.write import report_figure, report_page
from ropewalk.rope.config import RopeConfig
from ropewalk.statistics import over_windows, plus_minus

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def document(
    name: str,
    measurement: Measurement,
    verdict: Verdict,
    audits: Sequence[Audit],
    findings: Sequence[Finding],
    *,
    environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return all measurements as JSON: losses in nats per token, lengths in tokens, times in seconds.

    Numbers are finite or null. `ci_by_block` contains [low, high] of the 95 % interval for each block, or null if there
    is one window. `difference_*` are paired with plain and have the intervals of the verdict's evidence.
    """
    protocol, methods, all_standings = measurement.protocol, [], standings(measurement)
    for method in measurement.results:
        by_block = [over_windows(values) for values in zip(*measurement.block_means(method), strict=True)]
        standing, shared = all_standings[method], measurement.same_as.get(method)
        methods.append(
            {
                "name": method,
                **config_changes(method, measurement),
                "extension": extension_of(method, measurement),
                "at_run_time": at_run_time(method, measurement),
                **turning(method, measurement),
                "loss_by_block": [mean for mean, _ in by_block],
                "ci_by_block": [interval for _, interval in by_block],
                "loss_within": standing.within,
                "loss_beyond": standing.beyond,
                "difference_within": standing.within_difference,
                "difference_within_ci": standing.within_interval,
                "difference_beyond": standing.beyond_difference,
                "difference_beyond_ci": standing.beyond_interval,
                "affordable": standing.affordable,
                "loss_by_window_and_block": measurement.block_means(method),
                "seconds": 0.0 if shared else sum(result.seconds for result in measurement.results[method]),
                **_against_crop(method, measurement),
                "windows": len(measurement.results[method]),
                "peak_rss_bytes": max(result.peak_rss_bytes or 0 for result in measurement.results[method]) or None,
                "same_as": shared,
            }
        )
    cleaned: dict[str, Any] = finite(
        {
            **inspection(name, audits, findings),
            "trained_length": protocol.trained_length,
            "target": protocol.target,
            "protocol": {**protocol.to_json(), "sentence": how_measured(measurement)},
            "blocks": [list(block) for block in protocol.blocks],
            "methods": methods,
            "token_frequencies_loss_by_window": measurement.frequencies,
            "verdict": verdict.to_json(),
            "recommended": verdict.method,
            "environment": dict(environment or {}),
        }
    )
    return cleaned


def _against_crop(method: str, measurement: Measurement) -> dict[str, Any]:
    """Return a method's loss minus crop's in each block, with intervals; nothing if crop was not measured."""
    table = LossTable.of(measurement)
    own = measurement.same_as.get(method, method)
    if CROP not in table.losses:
        return {}
    found = Evidence(table).by_block(own, CROP)
    return {
        "crop_difference_by_block": [mean for mean, _ in found],
        "crop_difference_by_block_ci": [interval for _, interval in found],
    }


def how_measured(measurement: Measurement) -> str:
    """Return a description of the protocol and of the intervals of differences between methods."""
    return (
        f"{measurement.protocol.sentence()} {measurement.windows} of them were measured. Differences are paired by "
        "window. Their intervals are moderated t intervals over windows at 98 %, which corrects for looks after 1, 2, "
        "4, 8 and 16 windows."
    )


def config_changes(method: str, measurement: Measurement) -> dict[str, Any]:
    """Return the keys of config.json that make a checkpoint use `method`: rope_parameters and max_position_embeddings.

    `max_position_embeddings` is the target, with these exceptions: the trained length if the rule starts from it
    (dynamic), and for plain, crop and methods in attention; the config's own length if the method keeps the scaling.
    `rope_parameters` has a block for each layer type if the config does; it is None if no config can express the ropes
    (`block_of`).
    """
    rope, record = main_rope(measurement.positions[method].ropes), METHODS[method]
    parameters, length = rope_parameters_of(method, measurement), measurement.protocol.target
    if rope is None or parameters is None:
        return {"rope_parameters": None, "max_position_embeddings": length}
    unchanged = record.scaling is None and (record.keeps_own or rope.scaling is not None)
    if unchanged and rope.max_position_embeddings is not None:
        length = rope.max_position_embeddings
    elif record.scaling is None or (rope.scaling is not None and rope.scaling.starts_at_max_length):
        length = measurement.protocol.trained_length
    return {"rope_parameters": parameters, "max_position_embeddings": length}


def rope_parameters_of(method: str, measurement: Measurement) -> dict[str, Any] | None:
    """Return the `rope_parameters` of the ropes that a method was measured with, or None.

    None without a rope (drope), and if layers that share a block differ: those with a window keep their rope.
    """
    ropes = measurement.positions[method].ropes
    return rope_parameters(measurement.config_form, measurement.own.ropes, ropes, block_of)


def block_under(method: str, plan: Plan) -> dict[str, Any] | None:
    """Return the `rope_parameters` of a planned method, or None; see `rope_parameters_of`."""
    positions = plan.positions[method]
    if any(positions.extensions) or METHODS[method].crops:
        return None
    return rope_parameters(plan.config_form, plan.own.ropes, positions.ropes, block_of)


def block_of(rope: RopeConfig) -> dict[str, Any] | None:
    """Return the `rope_parameters` block of a rope, or None if there is none.

    None for a rule on top of the scaling that the model was trained with, because longrope's two lists cannot express
    both.
    """
    try:
        return rope.to_hf()
    except RopeError:
        return None


def extension_of(method: str, measurement: Measurement) -> str | None:
    """Return the extension of a method in attention as a Python expression; None for all others."""
    return next((repr(one) for one in measurement.positions[method].extensions if one is not None), None)


def at_run_time(method: str, measurement: Measurement) -> str | None:
    """Return the call of `rw.attach` that applies a method if no config can express it; None for other methods."""
    positions = measurement.positions[method]
    rope = main_rope(positions.ropes)
    if not any(positions.extensions) and (rope is None or rope_parameters_of(method, measurement) is not None):
        return None
    protocol = measurement.protocol
    return attach_call(method, protocol.target, protocol.trained_length)


def turning(method: str, measurement: Measurement) -> dict[str, Any]:
    """Return the frequencies of a method's main rope at the target and in training, and its attention factor."""
    rope, length = main_rope(measurement.positions[method].ropes), measurement.protocol.target
    if rope is None:
        return {"inv_freq": None, "inv_freq_unscaled": None, "attention_factor": 1.0}
    scaled, factor = text_frequencies(rope, length)
    plain, _ = text_frequencies(rope.as_trained(), length)
    return {"inv_freq": scaled.tolist(), "inv_freq_unscaled": plain.tolist(), "attention_factor": factor}


def shared_sentences(measurement: Measurement) -> list[str]:
    """Return one sentence for each method that shares the numbers of another one."""
    sentences = []
    for method, first in measurement.same_as.items():
        sentence = f"{method} has the same frequencies as {first} at this length: measured once."
        sentences.append(" ".join(filter(None, (sentence, METHODS[method].when_shared))))
    return sentences


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Diagnosis:
    """The doctor's measurement of one model, and its verdict.

    - `name`: the model's name. `measurement`: losses by method, window and block, in nats.
    - `verdict`: the recommended action, and the reasons.
    - `audits`: the properties of each rope, without running the model. `findings`: known traps in its config.
    - `copies`: each method's gains of copying from its context, if measured. `looks`: the conclusions after 1, 2, 4, 8
      and 16 windows.
    - `reading`: whether the model was trained with its scaling, if this had to be measured.
    - `environment`: versions, machine and settings. `left_out`: sentences about work that exceeded the time limit.
    """

    name: str
    measurement: Measurement
    verdict: Verdict
    audits: tuple[Audit, ...]
    findings: tuple[Finding, ...]
    copies: CopyMeasurement | None = None
    looks: tuple[dict[str, Any], ...] = ()
    reading: ScalingReading | None = None
    environment: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    left_out: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """Return the verdict and the other results as sentences."""
        lines = [] if self.reading is None else [self.reading.sentence]
        lines += [*shared_sentences(self.measurement), self.verdict.sentence]
        return lines if self.copies is None else [*lines, *self.copies.sentences()]

    def table(self) -> str:
        """Return each method's loss within and beyond the trained length and its differences beyond, as text."""
        heads, rows = standing_rows(self)
        cells = [["method", *heads], *([name, *row] for name, row in rows.items())]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in cells
        )

    def next_command(
        self, *, model: str | None = None, trained_length: int | None = None, record: str | Path | None = None
    ) -> str | None:
        """Return the next command to run; None if there is none.

        - `model`: its path or name on the command line; None: `name`. `trained_length`: if it had to be given.
          `record`: the file of this diagnosis, if it was written.
        """
        return next_step(
            self.verdict,
            self.name if model is None else model,
            self.measurement.protocol.target,
            trained_length=trained_length,
            record=None if record is None else str(record),
        )

    def to_json(self, path: str | Path | None = None) -> dict[str, Any]:
        """Return all results as one JSON document; if `path` is given, write it, completely or not at all.

        The file contains no names of folders.
        """
        content = document(
            self.name,
            self.measurement,
            self.verdict,
            self.audits,
            self.findings,
            environment=dict(self.environment),
        )
        content["left_out"] = list(self.left_out)
        content["copies"] = None if self.copies is None else self.copies.to_json()
        content["looks"] = finite(list(self.looks))
        content["scaling_reading"] = None if self.reading is None else finite(self.reading.to_json())
        if path is not None:
            write_output(path, json.dumps(shareable(content), indent=1, allow_nan=False) + "\n")
        return content

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the report as one HTML page with figures; if `path` is given, write it, completely or not at all.

        Raises `RopeError` if the extra `figures` is not installed.
        """
        page = report_page(self.to_json())
        if path is not None:
            write_output(path, page)
        return page

    def figure(self, name: str = "loss") -> Figure:
        """Return one matplotlib figure of the report: "loss", "copies", "frequencies" or "wavelengths".

        Raises `RopeError` if the data were not measured, or if the extra `figures` is not installed.
        """
        return report_figure(self.to_json(), name)

    def __str__(self) -> str:
        first = [f"{self.name}: {self.verdict.sentence}", *self.left_out]
        following = self.next_command()
        rest = [line for line in self.sentences() if line != self.verdict.sentence]
        return "\n".join([*first, "", self.table(), *rest, *([f"Next: {following}"] if following else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the verdict, the table and the other sentences for a notebook; needs no extra."""
        heads, rows = standing_rows(self)
        verdict, following = self.verdict, self.next_command()
        lines = [f"<p><b>{escape(self.name)}: {escape(verdict.headline)}</b> {escape(' '.join(verdict.reasons))}</p>"]
        lines += [f"<p>{escape(line)}</p>" for line in self.left_out]
        lines += ["<table><tr>", *(f"<th>{escape(head)}</th>" for head in ("method", *heads))]
        for name, row in rows.items():
            lines += ["</tr><tr>", *(f"<td>{escape(cell)}</td>" for cell in (name, *row))]
        lines.append("</tr></table>")
        lines += [f"<p>{escape(line)}</p>" for line in self.sentences() if line != self.verdict.sentence]
        return "".join([*lines, *([f"<pre>{escape(following)}</pre>"] if following else [])])


def standing_rows(found: Diagnosis) -> tuple[tuple[str, ...], dict[str, list[str]]]:
    """Return the headers, and a row for each distinct method: losses, the difference from crop, and how far it copies.

    A label contains all methods that share numbers: "ntk = dynamic". Empty columns are left out.
    """
    measurement, rows = found.measurement, {}
    heads = ("loss within", "loss beyond", "less crop's", "copies", "windows")
    for name, standing in standings(measurement).items():
        if name in measurement.same_as:
            continue
        label = " = ".join([name, *(other for other, first in measurement.same_as.items() if first == name)])
        apart = standing.crop_difference
        rows[label] = [
            f"{standing.within:.3f}",
            "" if standing.beyond is None else f"{standing.beyond:.3f}",
            "" if apart is None else plus_minus(apart, standing.crop_interval),
            copied_in_words(found.copies, name),
            "" if standing.windows == measurement.windows else str(standing.windows),
        ]
    told = [number for number in range(len(heads)) if any(row[number] for row in rows.values())]
    return tuple(heads[number] for number in told), {
        label: [row[number] for number in told] for label, row in rows.items()
    }


def copied_in_words(copies: CopyMeasurement | None, method: str) -> str:
    """Return how far back a method copies, in a few words; empty if not measured."""
    if copies is None or copies.design is None or not copies.can_copy:
        return ""
    if METHODS[method].crops:
        return f"to {copies.trained_length:,}"
    if method not in copies.methods:
        return ""
    reach = copies.reach(method)
    if reach is not None:
        return f"to {reach:,}"
    return "not beyond" if copies.copies(method, 0) == "refuted" else "open"
