"""The folder beside --out in which `ropewalk extend` keeps unfinished work: whose it is, and when it goes."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from ropewalk.extend.tune import TuneSettings

_LOSSES = re.compile(r"losses-.+\.json")
_OF_A_RUN = re.compile(r"run\.json|training-log\.jsonl|checkpoints|tokenizer(_config)?\.json")
_LOCK = re.compile(r"\.lock")
_HALF_WRITTEN = re.compile(r"\.(run\.json|losses-.+\.json|tokenizer(_config)?\.json|training-log\.jsonl)\..+")


class WorkFolder:
    """`OUT.tuning`: a tuning run and the losses measured so far. Only a command that tunes or measures claims it."""

    def __init__(self, out: Path) -> None:
        resolved = out.resolve()
        self.path = resolved.with_name(f"{resolved.name}.tuning")
        self.claimed = self.found_empty = False

    def check(self, *, tunes: bool, restart: bool) -> None:
        """Refuse a folder with anything else in it; and, without `restart`, a stopped tuning for who only measures."""
        from ropewalk.training.resume import RunFolder

        foreign = self._foreign()
        if foreign:
            raise RopeError(
                "extend: the folder for unfinished work, beside --out, holds something else.",
                facts={"folder": str(self.path), "files": foreign[:8]},
                cure="Pass another --out, or move that folder away.",
            )
        begun = RunFolder(self.path).begun()
        if begun is not None and not tunes and not restart:
            raise RopeError(
                "extend: a stopped tuning stands beside --out, and this command is not that one.",
                facts={"folder": str(self.path), "its method": begun["settings"].get("method")},
                cure="Pass another --out, or --restart to throw it away; its own command goes on with it.",
            )

    def claim(self, settings: TuneSettings | None, *, restart: bool) -> None:
        """Take the folder, before any work; `settings` are those of the tuning, None where it only measures.

        Raises `RopeError` as `check`, and for a stopped tuning with other settings or texts. With `restart` it is
        thrown away: here, or by `tune` when nothing can be refused any more.
        """
        from ropewalk.training.resume import RunFolder, sha256

        self.check(tunes=settings is not None, restart=restart)
        self.found_empty = self.path.is_dir() and not any(self.path.iterdir())
        kept = RunFolder(self.path, trained_only=True)
        begun = kept.begun()
        if begun is not None and settings is None:
            with kept.locked():
                kept.clear()
        elif begun is not None and settings is not None and not restart:
            here = settings.on_this_machine()
            sums = {kind: [sha256(path) for path in getattr(here, kind)] for kind in ("text", "validation")}
            kept.check_same(begun, {"settings": here.to_json(), "sha256": sums})
        self.claimed = True

    def remove(self) -> None:
        """Take away the finished work, where this command claimed the folder; what came in beside it stays."""
        if not self.claimed or not self.path.is_dir():
            return
        for path in self.path.iterdir():
            if any(known.fullmatch(path.name) for known in (_LOSSES, _OF_A_RUN, _LOCK, _HALF_WRITTEN)):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        if not self.found_empty:
            with suppress(OSError):  # something else came in
                self.path.rmdir()

    def _foreign(self) -> list[str]:
        """What no tuning and no measurement put there; [] where there is no folder."""
        if self.path.is_symlink() or self.path.is_file():
            return [self.path.name]
        names = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        locked = ".lock" in names  # every run has it from its beginning to its end
        return [name for name in names if not self._ours(name, locked=locked)]

    def _ours(self, name: str, *, locked: bool) -> bool:
        if _LOSSES.fullmatch(name):
            from ropewalk.context.state import KEYS

            return set(_content(self.path / name)) == KEYS
        if name == "run.json":
            settings = _content(self.path / name).get("settings", {})
            return locked and isinstance(settings, dict) and {"trained_length", "target"} <= set(settings)
        return _HALF_WRITTEN.fullmatch(name) is not None or (
            locked and (_OF_A_RUN.fullmatch(name) or _LOCK.fullmatch(name)) is not None
        )


def _content(path: Path) -> dict[str, object]:
    """The JSON object in a file; {} where it is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
