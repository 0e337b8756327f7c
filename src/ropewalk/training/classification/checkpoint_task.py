"""A classifier on a checkpoint as a task of the training loop: a head on frozen features, then a few layers."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.atomic_io import read_json, write_json
from ropewalk.checkpoints.load import save
from ropewalk.errors import RopeError
from ropewalk.ledger import fingerprint
from ropewalk.models.checkpoint_classifier import (
    STATE_POOLINGS,
    Body,
    CheckpointClassifier,
    CheckpointClassifierConfig,
    encode,
    require_tokenizer,
)
from ropewalk.optional import need
from ropewalk.readers.adapters import open_reader
from ropewalk.readers.classifier import body_of
from ropewalk.readers.reader import Reader
from ropewalk.training.adapters import add_adapters, merge_adapters
from ropewalk.training.checkpoint import read_tensors, write_tensors
from ropewalk.training.classification.dataset import Rows, balanced_weights, joined
from ropewalk.training.classification.features import FOLDER, read_features
from ropewalk.training.classification.head import FittedHead, fit_head
from ropewalk.training.classification.settings import ClassifySettings
from ropewalk.training.classification.task import BEST, WEIGHTS, ClassifierTask
from ropewalk.training.events import Event, Report
from ropewalk.training.run_folder import RUN

ADAPTED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
SHARES = (0.4, 0.5, 0.6, 0.7)
"""How deep the layers lie that are tried, where none is named."""


class CheckpointTask(ClassifierTask):
    """The training of one classifier from a checkpoint.

    `build` reads the texts through the frozen model and fits the head, both kept in the run's folder as they come. The
    loop then trains what `tune` says; of "none" it has no step.
    """

    model: Any

    def __init__(
        self,
        settings: ClassifySettings,
        test: str | Path | None = None,
        against: str | Path | None = None,
        report: Report | None = None,
    ) -> None:
        super().__init__(settings, test, against)
        self.report: Report = report or (lambda event: None)
        self.head: FittedHead

    @property
    def steps(self) -> int:
        """None where nothing is tuned."""
        return super().steps if self.settings.tuned else 0

    @property
    def token_dropout(self) -> float:
        """0: a language model has never read a text with gaps."""
        return 0.0

    @property
    def validates(self) -> bool:
        """Only while something is tuned."""
        return self.settings.tuned and super().validates

    def read(self) -> None:
        """The files; without tuning the validation part is trained on, as cross-validation chooses the head."""
        need("sklearn.linear_model", extra="classify")
        super().read()
        if not self.settings.tuned and self.validation is not None:
            self.train, self.validation = joined(self.train, self.validation), None

    def build(self, folder: Path, *, begun: bool) -> None:
        settings = self.settings
        reader = self._open(folder, begun)
        self.tokenizer = require_tokenizer(reader.tokenizer)
        body = body_of(reader)
        assert isinstance(body, Body)
        self.ids, self.targets = self._encoded(self.train)
        self.lengths = [len(ids) for ids in self.ids]
        self.head = self._fitted(body, folder)
        torch.manual_seed(settings.seed)
        self.model = self._classifier(body.cut(self.head.facts["layer"]), reader)
        if self.validation is not None:
            self.held_out_ids, self.held_out_targets = self._encoded(self.validation)
        self.class_weights: Tensor | None = None
        if settings.class_weights == "balanced":
            self.class_weights = torch.tensor(balanced_weights(self.train.labels, self.labels), device=settings.device)
        if self.validates and not (folder / "checkpoints").is_dir():
            self.validate(0)  # what the head alone gives: tuning must do better to be kept

    def _open(self, folder: Path, begun: bool) -> Reader:
        """The checkpoint, the one that the run began with."""
        settings = self.settings
        half = settings.precision == "bfloat16" and not settings.tuned
        dtype = torch.bfloat16 if half else torch.float32
        reader = open_reader(settings.init or "", dtype=dtype, device=settings.device)
        self.digest = reader.digest()
        before = read_json(folder / RUN).get("init", {}).get("digest") if begun else self.digest
        if before != self.digest:
            raise RopeError(
                "classify: the checkpoint is another one than the run began with.",
                facts={"init": settings.init, "digests": [before, self.digest]},
                cure="Give the one that it began with, or --restart to begin again.",
            )
        return reader

    def _encoded(self, rows: Rows) -> tuple[list[list[int]], Tensor]:
        index = {label: i for i, label in enumerate(self.labels)}
        targets = torch.tensor([index[label] for label in rows.labels], dtype=torch.int64)
        return [encode(self.tokenizer, text, self.settings.max_length) for text in rows.texts], targets

    def _fitted(self, body: Body, folder: Path) -> FittedHead:
        """The head, from the run's folder where it was fitted before."""
        settings = self.settings
        layers = feature_layers(body.num_layers, settings.feature_layers)
        poolings = STATE_POOLINGS if settings.pooling is None else (settings.pooling,)
        states = (self.digest, layers, settings.precision, settings.batch_size, self.ids)
        place = folder / FOLDER / fingerprint(*states)
        choice = (self.train.labels, poolings, settings.class_weights, settings.select)
        kept = place / f"head-{fingerprint(*choice)}"
        if not kept.with_suffix(".json").is_file():
            rows = len(self.ids)
            features = read_features(
                body,
                self.ids,
                layers,
                place,
                batch_size=settings.batch_size,
                precision=settings.precision,
                device=torch.device(settings.device),
                report=lambda done: self.report(Event("features", done, rows, {"layers": list(layers)})),
            )
            head = fit_head(
                features,
                self.train.labels,
                self.labels,
                poolings,
                class_weights=settings.class_weights,
                select=settings.select,
                report=lambda done, fits: self.report(Event("head", done, fits)),
            )
            tensors = {name: torch.from_numpy(array) for name, array in head.arrays.items()}
            write_tensors(kept.with_suffix(".safetensors"), tensors)
            write_json(kept.with_suffix(".json"), head.facts)
        arrays = read_tensors(kept.with_suffix(".safetensors"))
        return FittedHead({name: array.numpy() for name, array in arrays.items()}, read_json(kept.with_suffix(".json")))

    def _classifier(self, body: Body, reader: Reader) -> CheckpointClassifier:
        """The head on the body, and what is trained of it set to require gradients."""
        settings, head = self.settings, self.head
        layer: int = head.facts["layer"]
        assert isinstance(body, nn.Module)
        if settings.tuned:
            memo = {id(self.tokenizer): self.tokenizer}
            body = copy.deepcopy(body, memo)
        config = CheckpointClassifierConfig(
            labels=self.labels,
            layer=layer,
            pooling=head.facts["pooling"],
            max_length=settings.max_length,
            features=len(head.arrays["center"]),
            checkpoint=reader.name,
            digest=self.digest,
        )
        body.requires_grad_(False)
        assert isinstance(body, Body)
        if settings.tune == "adapters":
            add_adapters(body, settings.rank or 1, adapted(body))
            for block in body.blocks[layer:]:  # of a model that cannot be cut: they have no part in it
                block.requires_grad_(False)
        elif settings.tune == "layers":
            for block in body.blocks[:layer][-(settings.tuned_layers or 1) :]:
                block.requires_grad_(True)
        model = CheckpointClassifier(config, body).to(settings.device)
        model.tokenizer = self.tokenizer
        with torch.no_grad():
            own = {"center": model.center, "spread": model.spread}
            for name, place in (own | dict(model.classifier.named_parameters())).items():
                place.copy_(torch.from_numpy(head.arrays[name]))
        return model.train()

    def run_facts(self) -> dict[str, Any]:
        trained = sum(each.numel() for each in self.model.parameters() if each.requires_grad)
        config = dataclasses.asdict(self.model.config)
        named = {name: config[name] for name in ("checkpoint", "digest", "layer", "pooling")}
        return super().run_facts() | {"init": named, "head": self.head.facts, "trained_parameters": trained}

    def _state(self) -> dict[str, Tensor]:
        """What is trained; the rest comes from the checkpoint and the features."""
        return {name: each for name, each in self.model.named_parameters() if each.requires_grad}

    def read_weights(self, folder: Path) -> None:
        self.model.load_state_dict(read_tensors(folder / WEIGHTS), strict=False)
        if (folder / BEST).is_file():
            self.best_weights = read_tensors(folder / BEST)

    def write_model(self, folder: Path) -> None:
        """The best weights, adapters added to them."""
        if self.best_weights:
            self.model.load_state_dict(self.best_weights, strict=False)
        merge_adapters(self.model.body)
        save(self.model.requires_grad_(False).eval(), folder)


def feature_layers(layers: int, wanted: Sequence[int]) -> tuple[int, ...]:
    """The layers whose states are tried: those that are wanted, else four around the middle, where SmolLM2's tell most.

    >>> feature_layers(30, ()), feature_layers(2, ())
    ((12, 15, 18, 21), (1,))
    """
    if any(not 1 <= layer <= layers for layer in wanted):
        raise RopeError(
            "classify: the checkpoint has no such layer.",
            facts={"feature_layers": tuple(wanted), "layers": layers},
            cure=f"Name layers from 1 to {layers}.",
        )
    chosen = wanted or [max(1, round(layers * share)) for share in SHARES]
    return tuple(sorted(set(chosen)))


def adapted(body: nn.Module) -> tuple[str, ...]:
    """The linear layers that adapters are put on: those of Llama's names, else all but heads.

    >>> adapted(nn.ModuleDict({"up_proj": nn.Linear(2, 2), "norm": nn.LayerNorm(2)}))
    ('up_proj',)
    """
    names = {name.rpartition(".")[2] for name, each in body.named_modules() if isinstance(each, nn.Linear)}
    found = names & set(ADAPTED) or names - {"lm_head"}
    if not found:
        raise RopeError(
            "classify: the checkpoint has no linear layers that adapters could be put on.",
            facts={"tune": "adapters"},
            cure="Pass --tune layers.",
        )
    return tuple(sorted(found))
