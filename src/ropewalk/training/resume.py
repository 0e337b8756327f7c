"""A run on disk: what was asked for, its log, and checkpoints from which it goes on bit for bit."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ropewalk.errors import RopeError
from ropewalk.models.checkpoint import load, save
from ropewalk.models.decoder import Decoder
from ropewalk.models.extras import need
from ropewalk.models.files import read_json, whole_folder, write_json

RUN, LOG, CHECKPOINTS = "run.json", "training-log.jsonl", "checkpoints"
TRAINED = "trained.safetensors"


class RunFolder:
    """The folder of one run: run.json, training-log.jsonl and checkpoints/step-*/.

    A checkpoint is a folder that was renamed into place when all of it was on the disk: it is whole or it is not there.
    It holds model/ (a Hugging Face folder, float32), optimizer.safetensors (both moments, update counts, random states)
    and state.json. With `trained_only` it holds trained.safetensors instead of model/: the tensors that are trained, by
    the model's own names, for a model whose rest is frozen and comes from elsewhere.
    """

    def __init__(self, out: str | Path, *, trained_only: bool = False) -> None:
        self.path, self.trained_only = Path(out), trained_only
        self.log = self.path / LOG

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against a second run; the system lets go when the process dies, however it dies.

        What this call made is taken away again if it fails before anything was trained.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RopeError(
                "train: the output is a file.", facts={"out": str(self.path)}, cure="Pass a new folder: --out DIR."
            )
        lock = self.path / ".lock"
        made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            empty, new_lock = not set(self.path.iterdir()) - {lock}, not lock.exists()
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise RopeError(
                "train: the output folder cannot be written.",
                facts={"out": str(self.path), "error": error.strerror},
                cure="Pass a folder that may be written: --out DIR.",
            ) from error
        try:
            _lock(handle, lock)
            try:
                yield
            except BaseException:
                if empty and not self.log.exists() and not self.checkpoints():
                    self.remove_leftovers()
                    self.clear()
                if (empty or new_lock) and self.begun() is None:
                    lock.unlink(missing_ok=True)
                with suppress(OSError):  # not empty, or held by somebody: then it stays
                    for folder in made:
                        folder.rmdir()
                raise
        finally:
            os.close(handle)

    def begun(self) -> dict[str, Any] | None:
        """What run.json says, or None where no run was begun."""
        path = self.path / RUN
        return read_json(path) if path.is_file() else None

    def find(self, asked: Mapping[str, Any], *, resume: bool, restart: bool) -> dict[str, Any] | None:
        """The run to go on with, or None to begin one; a `RopeError` where the folder does not hold what was asked."""
        if restart and resume:
            raise RopeError(
                "train: --resume goes on with a run and --restart throws it away.",
                facts={"out": str(self.path)},
                cure="Pass one of them.",
            )
        begun = None if restart else self.begun()
        if begun is not None:
            self.check_same(begun, asked)
        elif resume:
            raise RopeError(
                "train: there is no run to resume.",
                facts={"out": str(self.path)},
                cure="Leave out --resume to begin one, or pass the --out of the run.",
            )
        elif not restart:
            self.check_free()
        return begun

    def begin(self, run: Mapping[str, Any]) -> None:
        """Write run.json: from now on the folder holds a run."""
        write_json(self.path / RUN, dict(run))

    def check_free(self) -> None:
        """Refuse a folder that holds somebody's model but no run."""
        found = [name for name in ("config.json", "model.safetensors") if (self.path / name).exists()]
        if found:
            raise RopeError(
                "train: the output folder holds a model that no run here made, and would replace it.",
                facts={"out": str(self.path), "files": found},
                cure="Pass a new folder: --out DIR.",
            )

    def clear(self) -> None:
        """Remove the run's files (and its model), nothing else."""
        (self.path / RUN).unlink(missing_ok=True)  # first: what is left after a kill is no run
        shutil.rmtree(self.path / CHECKPOINTS, ignore_errors=True)
        for name in (LOG, "config.json", "generation_config.json", "model.safetensors"):
            (self.path / name).unlink(missing_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (self.path / name).unlink(missing_ok=True)

    def check_same(self, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Refuse to go on with other settings or texts than the run began with; the message names them."""
        old, new = begun.get("settings", {}), now["settings"]
        differ = {key: (old.get(key), new[key]) for key in new if old.get(key) != new[key]}
        for kind in ("text", "validation"):
            sums, before = now["sha256"][kind], begun.get("sha256", {}).get(kind)
            if kind not in differ and sums != before:
                differ[f"{kind} (contents)"] = (before, sums)
        if differ:
            raise RopeError(
                "train: the output folder holds a run with other settings.",
                facts={"out": str(self.path), **{key: f"{was!r} -> {is_!r}" for key, (was, is_) in differ.items()}},
                cure="Give the same arguments to go on, another --out, or --restart to begin again.",
            )

    def checkpoints(self) -> list[Path]:
        """Whole checkpoints, oldest first."""
        folder = self.path / CHECKPOINTS
        return sorted(folder.glob("step-*")) if folder.is_dir() else []

    def write_checkpoint(
        self, step: int, model: Decoder, optimizer: torch.optim.Optimizer, carried: Mapping[str, Any], keep: int
    ) -> Path:
        """Write checkpoint `step`, then remove all but the newest `keep`. `carried` is the loop's own JSON state."""
        target = self.path / CHECKPOINTS / f"step-{step:08d}"
        if target.exists():
            return target
        target.parent.mkdir(exist_ok=True)
        with whole_folder(target, frozenset()) as staging:
            if self.trained_only:
                need("safetensors.torch").save_file(trained_tensors(model), staging / TRAINED)
            else:
                save(model, staging / "model")
            tensors = {**optimizer_tensors(model, optimizer), **random_states()}
            need("safetensors.torch").save_file(tensors, staging / "optimizer.safetensors")
            write_json(staging / "state.json", {"step": step, **carried})
        for old in self.checkpoints()[:-keep]:
            # Renamed first, so that a kill half-way leaves no half checkpoint under its own name.
            doomed = old.with_name(f".{old.name}.old")
            os.replace(old, doomed)
            shutil.rmtree(doomed, ignore_errors=True)
        return target

    def read_checkpoint(self, path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Put a checkpoint into model, optimizer and torch's generators; returns its state.json."""
        state = read_json(path / "state.json")
        if self.trained_only:
            restore_trained(model, _read_tensors(path / TRAINED))
        else:
            model.load_state_dict(load(path / "model", dtype=torch.float32).state_dict())
        tensors = _read_tensors(path / "optimizer.safetensors")
        restore_optimizer(model, optimizer, tensors)
        restore_random(tensors)
        return state

    def remove_leftovers(self) -> None:
        """Remove what a kill during a save left behind: temporary names, which all begin with a dot."""
        for folder in (self.path / CHECKPOINTS).glob(".step-*"):
            shutil.rmtree(folder, ignore_errors=True)
        for pattern in (".model.new", "..model.new.*"):
            for folder in self.path.glob(pattern):
                shutil.rmtree(folder, ignore_errors=True)
        for pattern in (".run.json.*", ".tokenizer*.json.*", f".{LOG}.cut"):
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)

    def append_log(self, line: Mapping[str, Any]) -> None:
        """One line of JSON, flushed."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def cut_log(self, step: int) -> None:
        """Keep the log's whole lines up to `step`: what came after the checkpoint will be written again."""
        if not self.log.is_file():
            return
        kept = []
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                if json.loads(line)["step"] <= step:
                    kept.append(line + "\n")
            except ValueError:
                break  # the line that a kill cut short
        temporary = self.log.with_name(f".{LOG}.cut")
        temporary.write_text("".join(kept), encoding="utf-8")
        os.replace(temporary, self.log)

    def write_model(self, model: Decoder, tokenizer: Any, dtype: torch.dtype) -> None:
        """The finished model, as a Hugging Face folder in `dtype`: config.json comes last, and makes it one."""
        staging = self.path / ".model.new"
        shutil.rmtree(staging, ignore_errors=True)
        cast = Decoder(model.config)
        cast.load_state_dict(model.state_dict())
        save(cast.to(dtype), staging, tokenizer=tokenizer)
        for file in sorted(staging.iterdir(), key=lambda path: path.name == "config.json"):
            os.replace(file, self.path / file.name)
        staging.rmdir()


def sha256(path: str | Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _lock(handle: int, lock: Path) -> None:
    """Take the lock, or say that another run has it (or took the file away); systems without flock go without."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(handle), lock.stat()):
            raise FileNotFoundError
    except OSError as error:
        raise RopeError(
            "train: another process is training into this folder.",
            facts={"out": str(lock.parent)},
            cure="Wait for it, or pass another --out.",
        ) from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of one file of a checkpoint."""
    try:
        tensors: dict[str, Tensor] = need("safetensors.torch").load_file(path)
    except Exception as error:  # safetensors has its own exception, which is not importable when it is missing
        raise RopeError(
            "train: a checkpoint cannot be read.",
            facts={"file": str(path), "error": str(error)},
            cure="Remove this checkpoint's folder: the run goes on from the one before it.",
        ) from error
    return tensors


def trained_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by name."""
    return {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


@torch.no_grad()
def restore_trained(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put into the model what `trained_tensors` gave; raises `RopeError` where it was of another model."""
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if shapes != {name: tuple(parameter.shape) for name, parameter in wanted.items()}:
        raise RopeError(
            "train: the checkpoint holds other tensors than the model trains.",
            facts={"only in one of them": sorted(shapes.keys() ^ wanted.keys())[:4]},
            cure="Begin again, or go on with the settings that it was begun with.",
        )
    for name, parameter in wanted.items():
        parameter.copy_(tensors[name])


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """AdamW's state by parameter: `exp_avg.NAME`, `exp_avg_sq.NAME`, `step.NAME`."""
    return {
        f"{kind}.{name}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for kind, value in optimizer.state[parameter].items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put into the optimizer what `optimizer_tensors` gave."""
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        optimizer.state[parameter] = {
            kind: tensors[f"{kind}.{name}"].to(parameter.device) for kind in ("step", "exp_avg", "exp_avg_sq")
        }


def random_states() -> dict[str, Tensor]:
    """The states of torch's generators."""
    states = {"random.cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["random.cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: Mapping[str, Tensor]) -> None:
    """Put torch's generators into the states that `random_states` gave."""
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
