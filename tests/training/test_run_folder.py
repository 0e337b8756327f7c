"""Stopped runs go on to the bits of one that was never stopped; what does not fit is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ropewalk.checkpoints.load import load
from ropewalk.errors import RopeError
from ropewalk.training import Event, Housekeeping, run_folder, train
from ropewalk.training.run_folder import RunFolder
from tests.training.killed import digest
from tests.training.material import EVERY, prose, small


class Stop(Exception):
    """What a test raises to break a run off."""


def stop_at(step: int, kind: str = "step"):
    """A reporter that raises at a step."""

    def report(event: Event) -> None:
        if event.kind == kind and event.step == step:
            raise Stop

    return report


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """A text, and the digest of a run on it that was never stopped."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "text.txt").write_text(prose(1200), encoding="utf-8")
    train(small(str(folder / "text.txt")), folder / "run", housekeeping=EVERY)
    return str(folder / "text.txt"), digest(folder / "run")


@pytest.mark.parametrize(("kind", "step"), [("step", 2), ("step", 3), ("checkpoint", 6), ("log", 8), ("step", 12)])
def test_a_resumed_run_is_the_same_bit_for_bit(
    whole: tuple[str, dict[str, str]], tmp_path: Path, kind: str, step: int
) -> None:
    """Broken off before, at and after checkpoints: weights, optimizer, random state and log all equal."""
    text, expected = whole
    with pytest.raises(Stop):
        train(small(text), tmp_path / "stopped", housekeeping=EVERY, report=stop_at(step, kind))
    assert not (tmp_path / "stopped" / "config.json").exists()
    train(small(text), tmp_path / "stopped", housekeeping=EVERY)
    assert digest(tmp_path / "stopped") == expected


def raising(error: BaseException):
    """A reporter that raises when the run is about to begin."""

    def report(event: Event) -> None:
        if event.kind == "start":
            raise error

    return report


@pytest.mark.parametrize(
    ("settings", "how", "error"),
    [
        ({"text": ("nowhere.txt",)}, {}, RopeError),
        ({}, {"resume": True}, RopeError),
        ({"seq_len": 10_000_000}, {}, RopeError),
        ({"tokenizer": "nowhere.json"}, {}, RopeError),
        ({"lr": 1e38, "warmup": 0, "clip": 1e38}, {"housekeeping": Housekeeping(log_every=10**6)}, RopeError),
        ({}, {"report": raising(KeyboardInterrupt())}, KeyboardInterrupt),
        ({}, {"report": raising(OSError(28, "No space left on device"))}, OSError),
    ],
    ids=["no text", "nothing to resume", "text too short", "no tokenizer", "diverges", "Ctrl-C", "disk full"],
)
def test_a_failure_before_anything_is_trained_leaves_nothing(text, tmp_path, settings, how, error) -> None:
    """Folders that the call made are gone, those that were there stay as they were."""
    run = dataclasses.replace(small(text), **settings)
    with pytest.raises(error):
        train(run, tmp_path / "runs" / "new", **how)
    assert not (tmp_path / "runs").exists()
    for name, before in (("empty", []), ("mine", ["notes.txt"]), ("left by an older version", [".lock"])):
        (tmp_path / name).mkdir()
        for file in before:
            (tmp_path / name / file).touch()
    for name, after in (("empty", set()), ("mine", {"notes.txt"}), ("left by an older version", set())):
        with pytest.raises(error):
            train(run, tmp_path / name, **how)
        left = {path.name for path in (tmp_path / name).iterdir()}
        assert left == after or (name == "mine" and "run.json" in left)  # among other files a run that began stays


def test_what_was_trained_stays(text: str, tmp_path: Path) -> None:
    """A run that is broken off after a line of its log, or whose settings are refused, keeps all its files."""
    with pytest.raises(Stop):
        train(small(text), tmp_path / "run", housekeeping=EVERY, report=stop_at(2, "log"))
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    assert {"run.json", "training-log.jsonl", "tokenizer.json"} <= set(before)
    with pytest.raises(RopeError, match="other settings"):
        train(small(text, layers=1), tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message contains the system's error instead of a process that does not exist."""

    def refusing(handle: int, *, blocking: bool) -> bool:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(run_folder, "lock_descriptor", refusing)
    with pytest.raises(RopeError, match="cannot be locked"), RunFolder(tmp_path / "run").locked():
        pass


def test_a_lock_that_was_taken_away_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever opened the lock just before a failed run removed it would train beside the next one: he is refused."""
    opened = os.open

    def just_before(path, *arguments):
        handle = opened(path, *arguments)
        if Path(path).name == ".lock":
            Path(path).unlink()
        return handle

    monkeypatch.setattr("ropewalk.training.run_folder.os.open", just_before)
    with pytest.raises(RopeError, match="another process is training"), RunFolder(tmp_path / "run").locked():
        pytest.fail("two runs in one folder")


NO_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
NOBODY = ["--reuid=65534", "--regid=65534", "--clear-groups"]
ROOT = Path(__file__).parents[2]


def without_rights() -> list[str]:
    """The beginning of a command that starts it without root's rights: file permissions hold for it.

    As the user nobody; where nobody may not read this Python, as root with no capability. Skips where neither can be.
    Another user has none to drop.
    """
    if os.getuid() != 0:
        return []
    look_up = (
        "import os; from importlib.util import find_spec as f; print(os.__file__, f('torch') and f('tests') and 1)"
    )
    for prefix in ([*NO_RIGHTS, *NOBODY], NO_RIGHTS):
        with suppress(OSError):
            command = [*prefix, sys.executable, "-c", look_up]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if done.stdout.split() == [os.__file__, "1"]:  # this Python, not one that stands elsewhere
                return prefix
    pytest.skip("setpriv cannot start this Python without root's rights")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may write to, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="ropewalk-") as name:
        os.chmod(name, 0o777)
        yield Path(name)


@pytest.mark.parametrize(
    ("privileged", "attempts"),
    [pytest.param(True, 6, marks=pytest.mark.thorough), (False, 2)],
    ids=["this user", "without root's rights"],
)
def test_killed_at_any_line_it_resumes_bit_for_bit(open_folder: Path, privileged: bool, attempts: int) -> None:
    """SIGKILL at random lines of loop, checkpoint and file writing, twice a run: the third start ends as the unhurt.

    Without root's rights as well: a folder's missing permissions stop it. The newest checkpoints stay, and no folder
    under a temporary name: also where a run was not killed.
    """
    text = open_folder / "text.txt"
    text.write_text(prose(1200), encoding="utf-8")
    command = [sys.executable, "-m", "tests.training.killed", str(text), str(open_folder), str(attempts), "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HOME": str(open_folder)}
    prefix = [] if privileged else without_rights()
    done = subprocess.run(
        [*prefix, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["obeys_permissions"] or privileged
    assert answer["six"] == ["step-00000005", "step-00000006"]
    assert answer["kills"] >= attempts
    for number, killed in enumerate(answer["killed"]):
        assert killed == answer["whole"], f"attempt {number}"
        assert answer["checkpoints"][number] == ["step-00000009", "step-00000012"]


def test_a_checkpoint_is_written_whole_or_not_at_all(
    whole: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save that fails half-way (a full disk) leaves the earlier checkpoint the last, and nothing under its name."""
    from ropewalk.training import run_folder

    text, expected = whole
    write = run_folder.write_json

    def full_disk(path: Path, content: dict[str, object]) -> None:
        if path.name == "state.json" and content["step"] == 6:
            raise OSError(28, "No space left on device")
        write(path, content)

    monkeypatch.setattr(run_folder, "write_json", full_disk)
    with pytest.raises(RopeError, match="No space left"):
        train(small(text), tmp_path / "run", housekeeping=EVERY)
    assert [path.name for path in RunFolder(tmp_path / "run").checkpoints()] == ["step-00000003"]
    monkeypatch.undo()
    train(small(text), tmp_path / "run", housekeeping=EVERY)
    assert digest(tmp_path / "run") == expected


def test_ctrl_c_ends_the_step_and_writes_a_checkpoint(text: str, tmp_path: Path) -> None:
    """SIGINT at step 4, where no checkpoint was due: there is one, and the run goes on from it."""

    def interrupt(event: Event) -> None:
        if event.kind == "step" and event.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt, match="stopped at step 4 of 12"):
        train(small(text), tmp_path / "run", housekeeping=EVERY, report=interrupt)
    assert signal.getsignal(signal.SIGINT) is before
    assert RunFolder(tmp_path / "run").checkpoints()[-1].name == "step-00000004"
    starts = []
    train(small(text), tmp_path / "run", housekeeping=EVERY, report=lambda e: starts.append((e.kind, e.step)))
    assert starts[0] == ("start", 4)
    train(small(text), tmp_path / "whole", housekeeping=EVERY)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_other_arguments_are_refused_by_name(text: str, tmp_path: Path) -> None:
    """The message names each setting that differs, both values, and what to do."""
    with pytest.raises(Stop):
        train(small(text), tmp_path / "run", housekeeping=EVERY, report=stop_at(5))
    with pytest.raises(
        RopeError, match=r"(?s)other settings.*steps .*'12 -> 13'.*lr .*'0.003 -> 0.1'.*--restart"
    ) as caught:
        train(small(text, lr=0.1, steps=13), tmp_path / "run")
    assert set(caught.value.facts) == {"out", "lr", "steps"}
    Path(text).write_text(prose(1200, seed=1))
    with pytest.raises(RopeError, match=r"text \(contents\)"):
        train(small(text), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(RopeError, match="mutually exclusive"):
        train(small(text), tmp_path / "run", restart=True, resume=True, housekeeping=EVERY)
    with pytest.raises(RopeError):
        train(small(text, tokenizer="nosuch"), tmp_path / "run", restart=True, housekeeping=EVERY)
    assert {path: path.read_bytes() for path in before} == before  # a refused restart loses nothing
    train(small(text), tmp_path / "run", restart=True, housekeeping=EVERY)
    assert load(tmp_path / "run").config.vocab_size == 257


def test_a_finished_run_is_left_alone(text: str, tmp_path: Path) -> None:
    """The same command again says so, and writes nothing."""
    train(small(text), tmp_path / "run", housekeeping=EVERY)
    before = digest(tmp_path / "run")
    events = []
    train(small(text), tmp_path / "run", housekeeping=EVERY, report=events.append)
    assert [(event.kind, event.facts["already"]) for event in events] == [("done", True)]
    assert digest(tmp_path / "run") == before


def test_resume_insists_on_a_run(text: str, tmp_path: Path) -> None:
    """With resume=True an empty folder is an error, a begun run is not."""
    with pytest.raises(RopeError, match="no run to resume"):
        train(small(text), tmp_path / "run", resume=True)
    with pytest.raises(Stop):
        train(small(text), tmp_path / "run", housekeeping=EVERY, report=stop_at(5))
    train(small(text), tmp_path / "run", housekeeping=EVERY, resume=True)


def test_somebody_elses_model_is_not_replaced(text: str, tmp_path: Path) -> None:
    """A folder with a config.json but no run is refused, and a file too."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RopeError, match="contains a model without a run"):
        train(small(text), tmp_path)
    with pytest.raises(RopeError, match="must be a folder, but it is a file"):
        train(small(text), text)


def test_two_runs_do_not_share_a_folder(text: str, tmp_path: Path) -> None:
    """The second finds the lock held; when the first is gone it is free."""
    folder = RunFolder(tmp_path / "run")
    with folder.locked(), pytest.raises(RopeError, match="another process is training"):
        train(small(text), tmp_path / "run")
    train(small(text), tmp_path / "run", housekeeping=EVERY)


def test_a_damaged_checkpoint_is_named(text: str, tmp_path: Path) -> None:
    """A truncated optimizer file stops the run by name; without that checkpoint it goes on from the one before."""
    with pytest.raises(Stop):
        train(small(text), tmp_path / "run", housekeeping=EVERY, report=stop_at(8))
    last = RunFolder(tmp_path / "run").checkpoints()[-1]
    file = last / "optimizer.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(
        RopeError, match=r"(?s)cannot be read.*step-00000006.optimizer.safetensors.*checkpoint before it"
    ):
        train(small(text), tmp_path / "run", housekeeping=EVERY)
    last.rename(tmp_path / "aside")
    train(small(text), tmp_path / "run", housekeeping=EVERY)


def test_checkpoints_are_models_and_the_newest_stay(text: str, tmp_path: Path) -> None:
    """Two are kept; each loads as a float32 model; nothing in them is a pickle."""
    train(small(text), tmp_path / "run", housekeeping=EVERY)
    kept = RunFolder(tmp_path / "run").checkpoints()
    assert [path.name for path in kept] == ["step-00000009", "step-00000012"]
    assert str(load(kept[0] / "model").embed_tokens.weight.dtype) == "torch.float32"
    names = {path.suffix for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert names == {".json", ".jsonl", ".safetensors", ""}
    assert not list((tmp_path / "run").rglob(".*.*"))


def test_what_cannot_be_removed_is_reported(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An old checkpoint that stays would fill the disk unseen: the run stops, and names it."""

    def refuse(path: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise PermissionError(13, "Permission denied", str(path))

    folder = RunFolder(tmp_path)
    folder.write_checkpoint(1, lambda staging: None, {}, keep=1)
    monkeypatch.setattr("ropewalk.atomic_io.shutil.rmtree", refuse)
    with pytest.raises(RopeError, match=r"(?s)cannot be removed.*step-00000001.*Permission denied"):
        folder.write_checkpoint(2, lambda staging: None, {}, keep=1)


def test_checkpoints_without_their_run_are_not_resumed(text: str, tmp_path: Path) -> None:
    """What a kill in the middle of --restart leaves, with run.json gone, is no run: the next one begins at step 0."""
    with pytest.raises(Stop):
        train(small(text), tmp_path / "run", housekeeping=EVERY, report=stop_at(8))
    (tmp_path / "run" / "run.json").unlink()
    starts: list[int] = []
    train(small(text, lr=1e-3), tmp_path / "run", housekeeping=EVERY, report=lambda event: starts.append(event.step))
    assert starts[0] == 0
    train(small(text, lr=1e-3), tmp_path / "whole", housekeeping=EVERY)
    assert digest(tmp_path / "run") == digest(tmp_path / "whole")


def test_somebody_elses_checkpoints_are_not_removed(text: str, tmp_path: Path) -> None:
    """Folders of the same name that no run here wrote."""
    theirs = tmp_path / "run" / "checkpoints" / "step-5" / "weights.bin"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"mine")
    with pytest.raises(RopeError, match=r"(?s)a model without a run.*checkpoints/step-5"):
        train(small(text), tmp_path / "run")
    assert theirs.read_bytes() == b"mine"


def test_a_checkpoint_of_several_processes_is_refused(text: str, tmp_path: Path) -> None:
    """Older versions wrote shards: the message names the folder and what to do."""
    with pytest.raises(Stop):
        train(small(text), tmp_path / "run", housekeeping=EVERY, report=stop_at(5))
    (tmp_path / "run" / "checkpoints" / "step-00000003" / "shards").mkdir()
    with pytest.raises(RopeError, match=r"(?s)several processes.*step-00000003.*--restart"):
        train(small(text), tmp_path / "run", housekeeping=EVERY)


def test_a_kill_between_a_save_and_the_removal_of_old_checkpoints(
    whole: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last save nothing else is saved: the resumed run removes the checkpoint that should have gone."""
    from ropewalk.training import run_folder

    text, expected = whole
    remove = run_folder.remove_folder

    def die(folder: Path) -> None:
        if folder.name == "step-00000006":
            raise Stop
        remove(folder)

    monkeypatch.setattr(run_folder, "remove_folder", die)
    with pytest.raises(Stop):
        train(small(text), tmp_path / "run", housekeeping=EVERY)
    monkeypatch.undo()
    train(small(text), tmp_path / "run", housekeeping=EVERY)
    assert digest(tmp_path / "run") == expected
