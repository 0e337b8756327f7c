"""The training loop: updates, validation, log and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from ropewalk.errors import RopeError
from ropewalk.models.decoder import Decoder
from ropewalk.models.tokenizer import TextTokenizer
from ropewalk.training.data import Batch, TokenStream, WindowSampler, read_text, split_text, validation_batches
from ropewalk.training.events import Event, Housekeeping, Report
from ropewalk.training.interrupt import polite_interrupt
from ropewalk.training.objective import loss_by_position, next_token_loss
from ropewalk.training.optimizer import Rates, make_optimizer
from ropewalk.training.resume import RunFolder, sha256
from ropewalk.training.schedule import learning_rate
from ropewalk.training.settings import DTYPES, TrainSettings
from ropewalk.training.tokenizers import make_tokenizer


def train(
    settings: TrainSettings,
    out: str | Path,
    *,
    resume: bool = False,
    restart: bool = False,
    dtype: str = "bfloat16",
    housekeeping: Housekeeping | None = None,
    report: Report | None = None,
) -> Path:
    """Train a decoder from scratch, or go on with the run that `out` holds; returns `out`, a Hugging Face folder.

    - `settings`: what to compute. `out`: the run's folder; a run with equal settings in it is continued from its last
      checkpoint, to the same bits as one that was never stopped (same machine, same number of threads).
    - `resume`: insist that there is a run to continue. `restart`: throw the run in `out` away first.
    - `dtype`: of the finished model's weights, "bfloat16", "float32" or "float16"; training weights are float32.
    - `report`: is told what happens; see `Event`.

    Ctrl-C writes a checkpoint and raises KeyboardInterrupt. Raises `RopeError` for bad texts or settings, for a run
    with other settings in `out`, and where the loss or a gradient is not finite.
    """
    if dtype not in DTYPES:
        raise RopeError(
            "train: unknown `dtype`.", facts={"dtype": dtype, "known": tuple(DTYPES)}, cure="Pass one of these."
        )
    folder = RunFolder(out)
    with folder.locked(), torch.random.fork_rng():
        on_machine = settings.on_this_machine()
        run = Run(on_machine, FromScratch(on_machine, folder), folder, housekeeping, report)
        if run.prepare(resume=resume, restart=restart):
            run.go()
            run.finish(DTYPES[dtype])
    return folder.path


class LoopSettings(Rates, Protocol):
    """What the loop reads of a run's settings; see `TrainSettings` for what each means."""

    @property
    def text(self) -> tuple[str, ...]: ...
    @property
    def validation(self) -> tuple[str, ...]: ...
    @property
    def validation_fraction(self) -> float: ...
    @property
    def validation_windows(self) -> int: ...
    @property
    def validation_length(self) -> int | None: ...
    @property
    def seq_len(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def accumulation(self) -> int: ...
    @property
    def steps(self) -> int | None: ...
    @property
    def epochs(self) -> float | None: ...
    @property
    def final_lr(self) -> float: ...
    @property
    def warmup(self) -> int | None: ...
    @property
    def clip(self) -> float: ...
    @property
    def precision(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def seed(self) -> int: ...
    def to_json(self) -> dict[str, Any]:
        """All that decides what the run computes."""


class Beginning(Protocol):
    """Where a run's tokenizer and model come from: from scratch, or from a checkpoint that is trained further."""

    def tokenizer(self, texts: Sequence[str], *, begun: bool) -> TextTokenizer:
        """The tokenizer; `begun` says that the run's folder is that of a run that goes on."""

    def model(self, vocab_size: int) -> Decoder:
        """The model before its first update, in float32; what requires a gradient is trained."""


class FromScratch:
    """A model with random weights, and the tokenizer that the settings ask for."""

    def __init__(self, settings: TrainSettings, folder: RunFolder) -> None:
        self.settings, self.folder = settings, folder

    def tokenizer(self, texts: Sequence[str], *, begun: bool) -> TextTokenizer:
        """Of the run that goes on, or a new one."""
        return TextTokenizer.from_folder(self.folder.path) if begun else make_tokenizer(self.settings, texts)

    def model(self, vocab_size: int) -> Decoder:
        """Random weights, by torch's generator."""
        return Decoder(self.settings.decoder_config(vocab_size))


class Run:
    """One run: its texts, model, optimizer and place on disk."""

    def __init__(
        self,
        settings: LoopSettings,
        beginning: Beginning,
        folder: RunFolder,
        keeping: Housekeeping | None = None,
        report: Report | None = None,
    ) -> None:
        self.settings, self.beginning, self.folder = settings, beginning, folder
        self.keeping = keeping or Housekeeping()
        self.tell: Report = report or (lambda event: None)
        self.step, self.loss_sum, self.loss_count, self.seconds = 0, 0.0, 0, 0.0

    def prepare(self, *, resume: bool, restart: bool) -> bool:
        """Read texts, find or begin the run, build the model; False where the run is finished already."""
        settings, folder = self.settings, self.folder
        texts = [read_text(path) for path in settings.text]
        held_out = [read_text(path) for path in settings.validation]
        asked = {
            "settings": settings.to_json(),
            "sha256": {
                "text": [sha256(path) for path in settings.text],
                "validation": [sha256(path) for path in settings.validation],
            },
        }
        begun = folder.find(asked, resume=resume, restart=restart)
        if begun is not None and begun.get("finished"):
            self.tell(Event("done", begun["steps"], begun["steps"], {"out": str(folder.path), "already": True}))
            return False
        folder.remove_leftovers()
        if not held_out and settings.validation_fraction > 0:
            parts = [split_text(text, settings.validation_fraction) for text in texts]
            texts, held_out = [part[0] for part in parts], [part[1] for part in parts]
        self.tokenizer = self.beginning.tokenizer(texts, begun=begun is not None)
        self._prepare_data(texts, held_out)
        self._prepare_model()
        if begun is None:
            if restart:
                folder.clear()  # not before everything that could be refused has been accepted
            self.tokenizer.save(folder.path)
        self.run = {
            **asked,
            "steps": self.steps,
            "train_tokens": len(self.sampler.stream),
            "parameters": self.model.num_parameters(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "finished": False,
        }
        if begun is None:
            folder.begin(self.run)
        self.run |= {key: begun[key] for key in ("torch", "threads")} if begun else {}
        checkpoints = folder.checkpoints()
        if checkpoints:
            state = folder.read_checkpoint(checkpoints[-1], self.model, self.optimizer)
            self.step, self.seconds = state["step"], state["seconds"]
            self.loss_sum, self.loss_count = state["loss_sum"], state["loss_count"]
        folder.cut_log(self.step if checkpoints else -1)
        return True

    def _prepare_data(self, texts: list[str], held_out: list[str]) -> None:
        settings, tokenizer = self.settings, self.tokenizer
        end = tokenizer.eos_ids[0] if tokenizer.eos_ids else None
        stream = TokenStream.pack(texts, tokenizer.encode, end)
        self.sampler = WindowSampler(stream, seq_len=settings.seq_len, seed=settings.seed)
        self.validation: list[Batch] = []
        if held_out:
            self.validation = validation_batches(
                TokenStream.pack(held_out, tokenizer.encode, end),
                seq_len=settings.validation_length or settings.seq_len,
                limit=settings.validation_windows,
                batch_size=settings.batch_size,
            )
        per_update = settings.batch_size * settings.accumulation
        whole = math.ceil((settings.epochs or 0) * self.sampler.windows_per_epoch / per_update)
        self.steps = settings.steps or max(1, whole)
        self.warmup = min(200, self.steps // 20) if settings.warmup is None else settings.warmup
        often = max(50, self.steps // 20)
        self.validate_every = self.keeping.validate_every or often
        self.checkpoint_every = self.keeping.checkpoint_every or often

    def _prepare_model(self) -> None:
        settings = self.settings
        torch.manual_seed(settings.seed)
        self.model = self.beginning.model(self.tokenizer.vocab_size).to(settings.device).train()
        self.optimizer = make_optimizer(self.model, settings)

    def go(self) -> None:
        """Update until the last step."""
        facts = {
            "out": str(self.folder.path),
            "parameters": self.model.num_parameters(),
            "train_tokens": len(self.sampler.stream),
            "vocab_size": self.tokenizer.vocab_size,
            "precision": self.settings.precision,
            "device": self.settings.device,
            "threads": torch.get_num_threads(),
            "began_with_threads": self.run["threads"],
        }
        self.tell(Event("start", self.step, self.steps, facts))
        tokens, started = 0, time.perf_counter()
        saved, patience = time.monotonic(), 60.0 * self.keeping.checkpoint_minutes
        with polite_interrupt() as interrupted:
            while self.step < self.steps:
                loss, rate = self._update()
                self.step += 1
                self.loss_sum, self.loss_count = self.loss_sum + loss, self.loss_count + 1
                tokens += self.settings.batch_size * self.settings.accumulation * self.settings.seq_len
                self.tell(Event("step", self.step, self.steps, {"loss": loss}))
                last = self.step == self.steps
                validate = bool(self.validation) and (last or self.step % self.validate_every == 0)
                if validate or last or self.step % self.keeping.log_every == 0:
                    took = time.perf_counter() - started
                    self.seconds += took
                    self._log(rate, tokens / took, validate)
                    tokens, started = 0, time.perf_counter()
                due = self.step % self.checkpoint_every == 0 or time.monotonic() - saved > patience
                if due or last or interrupted():
                    before = time.perf_counter()
                    self._checkpoint()
                    saved, started = time.monotonic(), started + time.perf_counter() - before
                if interrupted() and not last:
                    raise KeyboardInterrupt(f"stopped at step {self.step} of {self.steps}; the checkpoint is written")

    def _update(self) -> tuple[float, float]:
        """One optimizer update; the mean loss of its batches, and the learning rate used."""
        settings = self.settings
        rate = learning_rate(self.step, peak=settings.lr, warmup=self.warmup, steps=self.steps, final=settings.final_lr)
        loss = 0.0
        for part in range(settings.accumulation):
            number = (self.step * settings.accumulation + part) * settings.batch_size
            batch = self.sampler.batch(number, settings.batch_size).to(settings.device)
            mean = next_token_loss(self.model, batch, precision=settings.precision) / settings.accumulation
            loss += self._finite("loss", float(mean.detach()))
            mean.backward()  # type: ignore[no-untyped-call]
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        self._finite("gradient norm", float(norm))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss, rate

    def _finite(self, name: str, value: float) -> float:
        if math.isfinite(value):
            return value
        checkpoints = self.folder.checkpoints()
        raise RopeError(
            f"train: the {name} is not finite, so the run stops before the weights are spoiled.",
            facts={
                name: value,
                "step": self.step + 1,
                "last good checkpoint": str(checkpoints[-1]) if checkpoints else None,
            },
            cure="Begin again (--restart) with a smaller --lr, a longer --warmup, or --precision float32.",
        )

    def _log(self, rate: float, speed: float, validate: bool) -> None:
        line: dict[str, Any] = {
            "step": self.step,
            "tokens": self.step * self.settings.batch_size * self.settings.accumulation * self.settings.seq_len,
            "loss": self.loss_sum / self.loss_count,
            "lr": rate,
        }
        self.loss_sum, self.loss_count = 0.0, 0
        if validate:
            by_position = loss_by_position(self.model, self.validation, precision=self.settings.precision)
            line["validation_by_position"] = [[a, b, round(nats, 4)] for a, b, nats in by_position]
            within = [nats for _, end, nats in by_position if end <= self.settings.seq_len] or [by_position[0][2]]
            line["validation_loss"] = round(sum(within) / len(within), 4)
        line |= {"tokens_per_second": round(speed, 1), "seconds": round(self.seconds, 2)}
        self.folder.append_log(line)
        self.tell(Event("log", self.step, self.steps, line))

    def _checkpoint(self) -> None:
        carried = {"loss_sum": self.loss_sum, "loss_count": self.loss_count, "seconds": self.seconds}
        path = self.folder.write_checkpoint(self.step, self.model, self.optimizer, carried, self.keeping.keep)
        self.tell(Event("checkpoint", self.step, self.steps, {"path": str(path)}))

    def finish(self, dtype: torch.dtype) -> None:
        """Write the model where the run is, and mark the run finished."""
        self.folder.write_model(self.model, self.tokenizer, dtype)
        self.folder.begin({**self.run, "finished": True})
        self.tell(Event("done", self.step, self.steps, {"out": str(self.folder.path), "already": False}))
