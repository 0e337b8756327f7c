"""The folder of a run: its settings, its log, and checkpoints from which it resumes bit for bit."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from filelock import lock_descriptor
from torch import Tensor, nn

from ropewalk.atomic_io import read_json, remove_folder, whole_folder, write_json, write_whole
from ropewalk.errors import RopeError
from ropewalk.optional import need

RUN, LOG, CHECKPOINTS = "run.json", "training-log.jsonl", "checkpoints"
STATE = "state.json"
_MODEL = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
_STAGING = ".model.new"


class RunFolder:
    """The folder of one run: run.json, training-log.jsonl, checkpoints/step-*/, and the finished model.

    A checkpoint is written under a temporary name and renamed when it is complete. It contains state.json and the files
    of the task. `results` names files made from the finished model, or folders that are part of it; they are removed
    with the run.
    """

    def __init__(self, out: str | Path, *, results: tuple[str, ...] = ()) -> None:
        self.path, self.results = Path(out), results
        self.log = self.path / LOG

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for one run; the system releases the lock when the process ends.

        If the block raises before any training, the files created by this call are removed.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RopeError(
                "train: --out must be a folder, but it is a file.",
                facts={"out": str(self.path)},
                cure="Pass a new folder: --out DIR.",
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
                cure="Pass a writable folder: --out DIR.",
            ) from error
        try:
            _lock(handle, lock)
            try:
                yield
            except BaseException:
                if empty and not self.log.exists() and not self.checkpoints():
                    with suppress(RopeError):  # the first error is more specific
                        self.remove_leftovers()
                        self.clear()
                if (empty or new_lock) and self.begun() is None:
                    with suppress(OSError):  # Windows removes no open file
                        lock.unlink()
                with suppress(OSError):  # it is not empty
                    for folder in made:
                        folder.rmdir()
                raise
        finally:
            os.close(handle)

    def begun(self) -> dict[str, Any] | None:
        """Return the content of run.json, or None if the folder contains no run."""
        path = self.path / RUN
        return read_json(path) if path.is_file() else None

    def find(self, asked: Mapping[str, Any], *, resume: bool, restart: bool) -> dict[str, Any] | None:
        """Return run.json of the run to resume, or None to begin one; raise `RopeError` for a different run."""
        if restart and resume:
            raise RopeError(
                "train: `resume` and `restart` are mutually exclusive.",
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
                cure="Leave out `resume` to begin one, or pass the folder of the run.",
            )
        elif not restart:
            self.check_free()
        return begun

    def write_run(self, run: Mapping[str, Any]) -> None:
        """Write run.json, which marks the folder as a run's."""
        write_json(self.path / RUN, dict(run))

    def check_free(self) -> None:
        """Raise `RopeError` if the folder contains a model or checkpoints but no run."""
        present = [name for name in ("config.json", "model.safetensors") if (self.path / name).exists()]
        present += [f"{CHECKPOINTS}/{path.name}" for path in self.checkpoints() if not (path / STATE).is_file()]
        if present:
            raise RopeError(
                "train: the output folder contains a model without a run, which would be replaced.",
                facts={"out": str(self.path), "files": present},
                cure="Pass a new folder: --out DIR.",
            )

    def clear(self) -> None:
        """Remove the run's files, including its model and results, and nothing else."""
        (self.path / RUN).unlink(missing_ok=True)  # first: a kill leaves no run
        self.remove_checkpoints()
        for name in (LOG, *_MODEL, *self.results):
            if (self.path / name).is_dir():
                remove_folder(self.path / name)
            (self.path / name).unlink(missing_ok=True)

    def check_same(self, begun: Mapping[str, Any], now: Mapping[str, Any]) -> None:
        """Raise `RopeError`, with the differences, if settings or texts differ from those of the run."""
        old, new = begun.get("settings", {}), now["settings"]
        differ = {key: (old.get(key), new[key]) for key in new if old.get(key) != new[key]}
        for kind in ("text", "validation"):
            sums, before = now["sha256"][kind], begun.get("sha256", {}).get(kind)
            if kind not in differ and sums != before:
                differ[f"{kind} (contents)"] = (before, sums)
        if differ:
            raise RopeError(
                "train: the output folder contains a run with other settings.",
                facts={"out": str(self.path), **{key: f"{was!r} -> {is_!r}" for key, (was, is_) in differ.items()}},
                cure="Pass the same arguments to resume, a different --out, or --restart to start over.",
            )

    def checkpoints(self) -> list[Path]:
        """Return the complete checkpoints, oldest first."""
        return sorted((self.path / CHECKPOINTS).glob("step-*"))

    def checkpoint(self, step: int) -> Path:
        """Return the path of the checkpoint of a step, which may not exist."""
        return self.path / CHECKPOINTS / f"step-{step:08d}"

    def remove_checkpoints(self, *, keep: int = 0) -> None:
        """Remove all checkpoints but the newest `keep`."""
        checkpoints = self.checkpoints()
        for checkpoint in checkpoints[: len(checkpoints) - keep]:
            remove_folder(checkpoint)
        with suppress(OSError):  # it does not exist, or contains something else
            (self.path / CHECKPOINTS).rmdir()

    def write_checkpoint(
        self, step: int, write: Callable[[Path], None], state: Mapping[str, Any], *, keep: int
    ) -> Path:
        """Write checkpoint `step`, then remove all but the newest `keep`.

        `write` writes the tensors into a folder; `state` becomes state.json. Raises `RopeError` if an old checkpoint
        cannot be removed.
        """
        target = self.checkpoint(step)
        if target.exists():
            return target
        target.parent.mkdir(exist_ok=True)
        with whole_folder(target, frozenset()) as staging:
            write(staging)
            write_json(staging / STATE, {"step": step, **state})
        self.remove_checkpoints(keep=keep)
        return target

    def remove_leftovers(self) -> None:
        """Remove temporary files of an interrupted save; their names begin with a dot."""
        for folder in (self.path / CHECKPOINTS).glob(".step-*"):
            remove_folder(folder)
        for pattern in (_STAGING, f".{_STAGING}.*"):
            for folder in self.path.glob(pattern):
                remove_folder(folder)
        for pattern in (".run.json.*", ".tokenizer*.json.*", f".{LOG}.*"):
            for file in self.path.glob(pattern):
                file.unlink(missing_ok=True)

    def append_log(self, line: Mapping[str, Any]) -> None:
        """Append one line of JSON to the log."""
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def read_log(self) -> list[dict[str, Any]]:
        """Return the log's complete lines, oldest first; [] without a log."""
        lines: list[dict[str, Any]] = []
        if self.log.is_file():
            for line in self.log.read_text(encoding="utf-8").splitlines():
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    break  # a kill cut this line short
        return lines

    def cut_log(self, step: int) -> None:
        """Keep only the log's complete lines up to `step`; the run writes the later ones again."""
        if self.log.is_file():
            kept = [line for line in self.read_log() if line["step"] <= step]
            write_whole(self.log, "".join(json.dumps(line) + "\n" for line in kept))

    def write_model(self, write: Callable[[Path], None]) -> None:
        """Write the finished model by `write` into a temporary folder, then move its files here, config.json last."""
        staging = self.path / _STAGING
        remove_folder(staging)
        write(staging)
        for file in sorted(staging.iterdir(), key=lambda path: path.name == "config.json"):
            if file.is_dir():
                remove_folder(self.path / file.name)  # of a run that was killed at this line
            os.replace(file, self.path / file.name)
        staging.rmdir()


def _lock(handle: int, lock: Path) -> None:
    """Lock the open file; raise `RopeError` if another run holds or removed it, or if the system cannot lock files."""
    try:
        if lock_descriptor(handle, blocking=False) and os.path.samestat(os.fstat(handle), lock.stat()):
            return
    except FileNotFoundError:
        pass  # another run failed, and removed its files
    except OSError as error:
        raise RopeError(
            "train: the output folder cannot be locked.",
            facts={"out": str(lock.parent), "error": error.strerror},
            cure="Pass a folder on a file system that supports locks: --out DIR.",
        ) from error
    raise RopeError(
        "train: another process is training into this folder.",
        facts={"out": str(lock.parent)},
        cure="Wait for it, or pass a different --out.",
    )


# The tensors of a checkpoint

OPTIMIZER = "optimizer.safetensors"
TRAINED = "trained.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors by name to a safetensors file."""
    need("safetensors.torch").save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path
    )


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of one file of a checkpoint; raise `RopeError` if it is missing or damaged."""
    read = need("safetensors.torch").load_file
    try:
        tensors: dict[str, Tensor] = read(path)
    except Exception as error:  # safetensors has its own exception, which is not importable when it is missing
        raise RopeError(
            "train: a checkpoint cannot be read.",
            facts={"file": str(path), "error": str(error)},
            cure="Remove this checkpoint's folder to resume from the checkpoint before it.",
        ) from error
    return tensors


def write_training_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the state of AdamW (`exp_avg.NAME`, ...) and of torch's generators into a checkpoint's folder."""
    tensors = {
        f"{kind}.{name}": value
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        for kind, value in optimizer.state[parameter].items()
    }
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    write_tensors(folder / OPTIMIZER, tensors)


def read_training_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore what `write_training_state` wrote. Call it last: creating a model draws random numbers."""
    tensors = read_tensors(folder / OPTIMIZER)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            optimizer.state[parameter] = {
                kind: tensors[f"{kind}.{name}"].to(parameter.device) for kind in ("step", "exp_avg", "exp_avg_sq")
            }
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])


def check_rotations(checkpoint: Path, stored: Sequence[str] | None, now: Sequence[str]) -> None:
    """Raise `RopeError` if the ropes differ from those of the checkpoint; older checkpoints have None.

    Tensors do not show such a difference. Without this check, a run could silently resume with a different YaRN factor.
    """
    if stored is None or list(stored) == list(now):
        return
    layer = next((at for at, (was, is_) in enumerate(zip(stored, now, strict=False)) if was != is_), None)
    was, is_ = (f"{len(stored)} layers", f"{len(now)} layers") if layer is None else (stored[layer], now[layer])
    raise RopeError(
        "train: the model's rope differs from that of the checkpoint.",
        facts={"checkpoint": str(checkpoint), "layer": layer, "in the checkpoint": was, "now": is_},
        cure="Resume with the rope of the run, or start over (--restart).",
    )
