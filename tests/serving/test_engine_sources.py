"""The script that compares engines' newest sources with the lines that the caveats rely on, on small archives."""

from __future__ import annotations

import io
import json
import re
import runpy
import tarfile
import zipfile
from pathlib import Path

import pytest

from ropewalk.serving.engines import CONVERTER, DEVIATIONS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "engine_sources.py"
pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="the source distribution has no scripts")


@pytest.fixture
def script():
    return runpy.run_path(str(SCRIPT))


def test_every_statement_with_a_file_is_covered(script) -> None:
    """Each beginning names one deviation; those whose source is a file of these packages have a piece."""
    texts = [one.text for one in DEVIATIONS]
    covered = set()
    for piece in script["PIECES"]:
        assert piece.about
        for about in piece.about:
            matches = [text for text in texts if text.startswith(about)]
            assert len(matches) == 1, about
            covered.update(matches)
    of_engines = {"vllm", "sglang", CONVERTER}
    for text, one in zip(texts, DEVIATIONS, strict=True):
        if re.search(r"\w\.py\b", one.source) and of_engines & set(one.engines) and "src/ropewalk" not in one.source:
            assert text in covered, text


def test_the_record_has_every_piece(script) -> None:
    """With a hash of each line; no piece was missing from its package."""
    record = json.loads(script["RECORD"].read_text())
    assert set(record) == set(script["PACKAGES"])
    for package, entry in record.items():
        of_package = [piece for piece in script["PIECES"] if piece.package == package]
        assert len(entry["pieces"]) == len(of_package)
        assert all(re.fullmatch(r"[0-9a-f]{8}( [0-9a-f]{8})+", hashes) for hashes in entry["pieces"].values())


def small(script, package, change=""):
    """The text of each file of a package, with one function or class for each piece."""
    files: dict[str, str] = {}
    for piece in script["PIECES"]:
        if piece.package == package:
            name = piece.name or "anything"
            owner, _, function = name.rpartition(".")
            indent = "    " if owner else ""
            body = f"{indent}def {function}(x):\n{indent}    return x + 1{change}\n\n\n"
            body = f"class {owner}:\n{body}" if owner else body
            if not piece.path.endswith(".py"):
                body = f"int f::{name}(int x);\nint f::{name}(int x) {{\n    return x + 1{change};\n}}\n"
            files[piece.path] = files.get(piece.path, "# unrelated\n") + body
    return files


def pack(folder: Path, package: str, version: str, files: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    name = package.replace("-", "_")
    if package == "llama-cpp-python":
        with tarfile.open(folder / f"{name}-{version}.tar.gz", "w:gz") as source:
            for path, text in files.items():
                info = tarfile.TarInfo(f"{name}-{version}/vendor/llama.cpp/{path}")
                info.size = len(text)
                source.addfile(info, io.BytesIO(text.encode()))
        return
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


@pytest.mark.parametrize("package", ["vllm", "llama-cpp-python"])
def test_changed_lines_are_named(script, package, tmp_path, capsys) -> None:
    """Unchanged sources end with 0; a changed line is shown with its number, the caveats to check, and 1."""
    main = script["main"]
    main.__globals__["RECORD"] = tmp_path / "record.json"
    arguments = ["--only", package, "--downloads"]
    pack(tmp_path / "old", package, "0.9.0", small(script, package))
    assert main([*arguments, str(tmp_path / "old"), "--update"]) == 0
    capsys.readouterr()
    unrelated = {path: "# another line\n\n" + text for path, text in small(script, package).items()}
    pack(tmp_path / "moved", package, "0.9.1", unrelated)
    whole_files = sum(piece.package == package and piece.name is None for piece in script["PIECES"])
    assert main([*arguments, str(tmp_path / "moved")]) == int(whole_files > 0)
    assert f"{whole_files} of" in capsys.readouterr().out
    pack(tmp_path / "new", package, "0.10.0", small(script, package, " + 1"))
    pack(tmp_path / "new", package, "0.9.2", small(script, package))
    assert main([*arguments, str(tmp_path / "new")]) == 1
    shown = capsys.readouterr().out
    assert f"{package} 0.10.0: " in shown
    assert "recorded: 0.9.0" in shown
    assert "+ return x + 1 + 1" in shown
    assert "1 recorded lines are gone" in shown
    for piece in script["PIECES"]:
        assert all(f"check: {about} ..." in shown for about in piece.about if piece.package == package)


def test_a_function_that_is_gone(script, tmp_path, capsys) -> None:
    """It was renamed: the caveats that rely on it are named."""
    main = script["main"]
    main.__globals__["RECORD"] = tmp_path / "record.json"
    pack(tmp_path / "old", "sglang", "1.0", small(script, "sglang"))
    main(["--only", "sglang", "--downloads", str(tmp_path / "old"), "--update"])
    files = small(script, "sglang")
    path = next(path for path in files if path.endswith("factory.py"))
    pack(tmp_path / "new", "sglang", "1.1", {**files, path: files[path].replace("get_rope", "rope_of")})
    assert main(["--only", "sglang", "--downloads", str(tmp_path / "new")]) == 1
    shown = capsys.readouterr().out
    assert "get_rope" in shown
    assert "is not there" in shown
    assert "1 of 15 pieces" in shown
