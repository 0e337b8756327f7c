"""The folder beside the output in which unfinished work is kept: whose it is, and when it goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ropewalk import ledger as ledgers
from ropewalk.atomic_io import remove_folder, sha256
from ropewalk.errors import RopeError
from ropewalk.extend.tuning import TuningRecipe
from ropewalk.measure.plan import KIND
from ropewalk.training.run_folder import RUN, RunFolder

_RUN, _LOSSES = "run", "losses"
_OF_A_RUN = {RUN, "training-log.jsonl", "checkpoints", "tokenizer.json", "tokenizer_config.json", ".lock"}
_OF_A_LEDGER = {ledgers.HEAD, ledgers.RESULTS, ledgers.LEASES}


class WorkFolder:
    """`OUT.tuning`: the tuning run in `run/`, and the losses measured so far in `losses/`, by ledgers.

    Only work that tunes or measures claims it. Files of others in it are never touched.
    """

    def __init__(self, out: Path) -> None:
        resolved = out.resolve()
        self.path = resolved.with_name(f"{resolved.name}.tuning")
        self.run = RunFolder(self.path / _RUN)
        self.losses = self.path / _LOSSES

    def check(self, *, tunes: bool, restart: bool) -> None:
        """Refuse a folder with anything else in it; and, without `restart`, a stopped tuning where nothing is tuned."""
        foreign = self._foreign()
        if foreign:
            raise RopeError(
                "extend: the folder for unfinished work, beside --out, holds something else.",
                facts={"folder": str(self.path), "files": foreign[:8]},
                cure="Pass another --out, or move that folder away.",
            )
        begun = self.run.begun()
        if begun is not None and not tunes and not restart:
            raise RopeError(
                "extend: there is a stopped tuning beside --out, and this command is not that one.",
                facts={"folder": str(self.path), "its method": begun["settings"].get("method")},
                cure="Pass another --out, or --restart to throw it away; its own command continues it.",
            )

    @contextmanager
    def claimed(self, recipe: TuningRecipe | None, *, restart: bool) -> Iterator[None]:
        """Hold the folder for the work in the block; when that is done, take the work away, and the folder if empty.

        `recipe` is that of the tuning, None where nothing is tuned. What was done by then stays when the block fails.
        Raises `RopeError` as `check`, and for a stopped tuning with another recipe or texts. With `restart` the tuning
        is thrown away: here, or by `tune_reader` when nothing can be refused any more.
        """
        self.check(tunes=recipe is not None, restart=restart)
        was_empty = self.path.is_dir() and not any(self.path.iterdir())
        begun = self.run.begun()
        if begun is not None and recipe is None:
            with self.run.locked():
                self.run.clear()
        elif begun is not None and recipe is not None and not restart:
            here = recipe.on_this_machine()
            sums = {kind: [sha256(path) for path in getattr(here, kind)] for kind in ("text", "validation")}
            self.run.check_same(begun, {"settings": here.to_json(), "sha256": sums})
        yield
        self._remove(keep_folder=was_empty)

    def _remove(self, *, keep_folder: bool) -> None:
        if not self.path.is_dir():
            return
        if self.run.path.is_dir():
            self.run.clear()
            self.run.remove_leftovers()
            (self.run.path / ".lock").unlink(missing_ok=True)
            with suppress(OSError):  # something else came in
                self.run.path.rmdir()
        for name in _names(self.losses):
            if not _foreign_in_ledger(self.losses / name):
                remove_folder(self.losses / name)
        with suppress(OSError):
            self.losses.rmdir()
        if not keep_folder:
            with suppress(OSError):
                self.path.rmdir()

    def _foreign(self) -> list[str]:
        """What no tuning and no measurement put there; [] where there is no folder."""
        if self.path.is_symlink() or self.path.is_file():
            return [self.path.name]
        strange = [name for name in _names(self.path) if name not in (_RUN, _LOSSES)]
        run = _names(self.run.path)
        locked = ".lock" in run  # every run has it from its beginning to its end
        strange += [f"{_RUN}/{name}" for name in run if not locked or not self._is_of_run(name)]
        strange += [
            f"{_LOSSES}/{name}/{file}" if file else f"{_LOSSES}/{name}"
            for name in _names(self.losses)
            for file in _foreign_in_ledger(self.losses / name)
        ]
        for folder in (self.run.path, self.losses):
            if folder.is_symlink() or folder.is_file():
                strange.append(folder.name)
        return strange

    def _is_of_run(self, name: str) -> bool:
        if name == RUN:
            settings = _content(self.run.path / name).get("settings", {})
            return isinstance(settings, dict) and {"trained_length", "target"} <= set(settings)
        return _is_known(name, _OF_A_RUN)


def _foreign_in_ledger(folder: Path) -> list[str]:
    """The files of a folder that no ledger of losses put there; [""] where it is no such ledger."""
    head, names = folder / ledgers.HEAD, _names(folder)
    if not folder.is_dir() or (head.exists() and _content(head).get("kind") != KIND):
        return [""]
    known = _OF_A_LEDGER if head.exists() else set()
    return [name for name in names if name not in known and not name.startswith(f".{ledgers.HEAD}.")]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _is_known(name: str, known: set[str]) -> bool:
    """Whether a file has a known name, or the temporary one under which such a file is written."""
    return name in known or any(name.startswith(f".{one}.") for one in known)


def _content(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where it is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
