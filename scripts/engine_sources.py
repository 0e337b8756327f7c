"""Compare the newest releases of the engines with the lines that the caveats of `ropewalk.serving.engines` rely on.

Downloads the newest vllm, sglang and transformers wheels and the source distribution of llama-cpp-python (which
contains llama.cpp) with `pip download --no-deps`, about 500 MB, and installs nothing. Prints the lines that are new or
gone since the record, with the caveats to check, and exits with 1 if there are any. After the caveats are checked,
--update writes the record, benchmarks/results/engine_sources.json, which contains a hash of each line.

usage: python scripts/engine_sources.py [--downloads FOLDER] [--only PACKAGE] [--update]
"""

from __future__ import annotations

import argparse
import ast
import difflib
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

RECORD = Path(__file__).resolve().parents[1] / "benchmarks" / "results" / "engine_sources.json"


class Piece(NamedTuple):
    """A function or class of an engine.

    - `path`: the end of the file's path in the package. `name`: of a function or class, or Class.function; None for the
      whole file.
    - `about`: the beginnings of the texts of caveats and of the reasons of limits that rely on it.
    """

    package: str
    path: str
    name: str | None
    about: tuple[str, ...]


_ROPE = "vllm/model_executor/layers/rotary_embedding/"
_SGLANG = "sglang/srt/layers/rotary_embedding/"
_LENGTH = ("Without --context-length", "It refuses a --context-length")
_EXTENDS_NOTHING = "it fixes one base when it starts, so that"
_EVERY_LENGTH = "it fixes one base when it starts, that of"
_DROPPED = "`attention_factor` in a yarn block is ignored"
_PROPORTIONAL = "it applies proportional"
_MROPE = "under M-RoPE it applies theta and yarn"
_ONLY_THETA = "its class of this family takes only theta"
_DEEPSEEK = "its DeepSeek classes compute"
_DEEPSEEK_SG = "its DeepSeek class sets"
_COHERE = "llama.cpp's converter removes the scaling"
_CONVERTER = (
    "`truncate` in a yarn block is not applied",
    "The rule is left out of the file",
    "`attention_factor`, `mscale` and `mscale_all_dim` in a yarn block are not applied",
    "The divisors are written for Phi-3 only",
    "ropewalk copies no .gguf file of this architecture, and",
)

PIECES: tuple[Piece, ...] = (
    Piece(
        "vllm",
        _ROPE + "__init__.py",
        "get_rope",
        ("Older servers ignore `attention_factor`", "`mscale` and `mscale_all_dim` in a yarn block are ignored",
         "It extends nothing", "One list of divisors", _EXTENDS_NOTHING, _PROPORTIONAL, _MROPE),
    ),
    Piece("vllm", "vllm/model_executor/models/gpt_oss.py", "OAIAttention", ("its gpt-oss class builds yarn",)),
    Piece("vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2Attention", (_DEEPSEEK,)),
    Piece("vllm", "vllm/model_executor/models/deepseek_v2.py", "DeepseekV2MLAAttention", (_DEEPSEEK,)),
    Piece(
        "vllm",
        _ROPE + "yarn_scaling_rope.py",
        None,
        ("Older servers ignore `attention_factor`", "`mscale` and `mscale_all_dim` in a yarn block are ignored"),
    ),
    Piece("vllm", _ROPE + "dynamic_ntk_scaling_rope.py", None, ("It extends nothing", _EXTENDS_NOTHING)),
    Piece("vllm", _ROPE + "phi3_long_rope_scaled_rope.py", None, ("One list of divisors",)),
    Piece("vllm", "vllm/config/model.py", "_get_and_verify_max_len", ("It extends nothing",)),
    Piece(
        "vllm",
        "vllm/transformers_utils/config.py",
        "patch_rope_parameters",
        ("With transformers 4", "Older servers call"),
    ),
    Piece("vllm", "vllm/model_executor/models/gemma3.py", "Gemma3Attention", ("Only some model classes apply",)),
    Piece("sglang", _SGLANG + "factory.py", "get_rope", (_DROPPED, _PROPORTIONAL, _MROPE)),
    Piece("sglang", "sglang/srt/models/deepseek_v2.py", "DeepseekV2AttentionMLA.__init__", (_DEEPSEEK_SG,)),
    Piece("sglang", "sglang/srt/models/gemma2.py", "Gemma2Attention.__init__", (_ONLY_THETA,)),
    Piece("sglang", "sglang/srt/models/stablelm.py", "StablelmAttention.__init__", (_ONLY_THETA,)),
    Piece("sglang", "sglang/srt/models/starcoder2.py", "Starcoder2Attention.__init__", (_ONLY_THETA,)),
    Piece("sglang", _SGLANG + "yarn.py", None, (_DROPPED,)),
    Piece("sglang", _SGLANG + "rope_variant.py", "DynamicNTKScalingRotaryEmbedding", (_EVERY_LENGTH,)),
    Piece("sglang", _SGLANG + "rope_variant.py", "Gemma4RotaryEmbedding", (_PROPORTIONAL,)),
    Piece("sglang", "sglang/srt/models/gemma3_causal.py", "Gemma3Attention", ("On CPUs with AMX",)),
    Piece("sglang", "sglang/srt/models/gemma3_causal.py", "Gemma3TextModel", ("On CPUs with AMX",)),
    Piece("sglang", "sglang/srt/utils/hf_transformers/config.py", "get_config", ("Overrides of the outer config",)),
    Piece("sglang", "sglang/srt/utils/hf_transformers/common.py", "get_context_length", _LENGTH),
    Piece("sglang", "sglang/srt/configs/model_config.py", "_derive_context_length", _LENGTH),
    Piece(
        "transformers",
        "transformers/modeling_rope_utils.py",
        "_compute_yarn_parameters",
        ("Version 4 takes YaRN's factor",),
    ),
    Piece("transformers", "transformers/modeling_rope_utils.py", "dynamic_rope_update", ("With a cache, keys keep",)),
    Piece("llama-cpp-python", "conversion/command_r.py", "CommandR2Model.set_gguf_parameters", (_COHERE,)),
    Piece("llama-cpp-python", "conversion/command_r.py", "Cohere2Model.set_gguf_parameters", (_COHERE,)),
    Piece("llama-cpp-python", "conversion/base.py", "TextModel.set_gguf_parameters", _CONVERTER),
    Piece(
        "llama-cpp-python",
        "conversion/llama.py",
        "LlamaModel.generate_extra_tensors",
        ("Some versions take the original length",),
    ),
    Piece("llama-cpp-python", "src/llama-model.cpp", "get_rope_factors", ("The length of the server's context",)),
)  # fmt: skip
SOURCE_ONLY = frozenset({"llama-cpp-python"})
"""Packages whose wheels contain no sources."""
PACKAGES = tuple(dict.fromkeys(piece.package for piece in PIECES))


def download(package: str, folder: Path) -> None:
    """Download the newest release of a package, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    if package in SOURCE_ONLY:
        command += ["--no-binary", package]
    subprocess.run([*command, package], check=True)


def archive_of(package: str, folder: Path) -> tuple[str, Path] | None:
    """Return version and file of a package's newest download, or None."""
    pattern = re.compile(package.replace("-", "[-_]") + r"-([0-9][^-]*?)(?:-.*\.whl|\.tar\.gz)$")
    found = [(match[1], path) for path in folder.iterdir() if (match := pattern.match(path.name))]
    return max(found, key=lambda one: [int(part) for part in re.findall(r"\d+", one[0])], default=None)


def reader_of(archive: Path) -> Callable[[str], str | None]:
    """Return a function that returns the text of the file whose path has an ending, or None."""
    if archive.suffix == ".whl":
        wheel = zipfile.ZipFile(archive)
        names, read = wheel.namelist(), wheel.read
    else:
        source = tarfile.open(archive)  # noqa: SIM115
        names = source.getnames()

        def read(name: str) -> bytes:
            file = source.extractfile(name)
            assert file is not None, "a folder has no ending"
            return file.read()

    def text(ending: str) -> str | None:
        paths = [name for name in names if name == ending or name.endswith("/" + ending)]
        return read(min(paths, key=len)).decode("utf-8") if paths else None

    return text


def piece_of(text: str, path: str, name: str | None) -> tuple[int, list[str]] | None:
    """Return the number of the first line and the lines of a function or class, without blank ones at the end."""
    lines = text.splitlines()
    if name is None:
        return 1, lines
    if path.endswith(".py"):
        kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
        node: ast.AST | None = ast.parse(text)
        for part in name.split("."):
            inside = ast.walk(node) if node is not None else ()
            node = next((one for one in inside if isinstance(one, kinds) and one.name == part), None)
        if not isinstance(node, kinds):
            return None
        return node.lineno, lines[node.lineno - 1 : node.end_lineno]
    for number, line in enumerate(lines):
        if re.match(rf"\S.*\b{name}\(", line) and not line.rstrip().endswith(";"):
            end = next(end for end in range(number, len(lines)) if lines[end].startswith("}"))
            return number + 1, lines[number : end + 1]
    return None


def hashes_of(lines: Sequence[str]) -> list[str]:
    """Return eight hexadecimal digits for each line, without its indentation; blank lines are left out."""
    return [hashlib.sha256(line.strip().encode()).hexdigest()[:8] for line in lines if line.strip()]


def changes(recorded: Sequence[str], first: int, lines: Sequence[str]) -> list[str]:
    """Return the new lines with their numbers, and how many recorded ones are gone."""
    numbered = [(number, line) for number, line in enumerate(lines, first) if line.strip()]
    matcher = difflib.SequenceMatcher(None, list(recorded), hashes_of(lines), autojunk=False)
    shown = []
    for kind, begin, end, start, stop in matcher.get_opcodes():
        if kind == "equal":
            continue
        if end > begin:
            where = numbered[min(start, len(numbered) - 1)][0] if numbered else first
            shown.append(f"  {where:>5} - {end - begin} recorded lines are gone")
        shown += [f"  {number:>5} + {line.strip()}" for number, line in numbered[start:stop]]
    return shown


def check(
    package: str, archive: Path, version: str, record: dict[str, Any], show: Callable[[str], None]
) -> dict[str, Any]:
    """Show what has changed in one package; return its entry for the record, with "changed": number of pieces."""
    text, before = reader_of(archive), record.get(package, {"version": "none", "pieces": {}})
    pieces, changed = {}, 0
    for piece in (piece for piece in PIECES if piece.package == package):
        key = piece.path if piece.name is None else f"{piece.path}: {piece.name}"
        content = text(piece.path)
        found = None if content is None else piece_of(content, piece.path, piece.name)
        recorded = before["pieces"].get(key, "").split()
        if found is None:
            shown = ["  is not there"] if recorded or key not in before["pieces"] else []
        else:
            pieces[key] = " ".join(hashes_of(found[1]))
            shown = changes(recorded, *found)
        pieces.setdefault(key, "")
        if shown:
            changed += 1
            show(f"{package} {version}, {key} (recorded: {before['version']})")
            for line in shown:
                show(line)
            for about in piece.about:
                show(f"  check: {about} ...")
    show(f"{package} {version}: {changed} of {len(pieces)} pieces differ from those of {before['version']}")
    return {"version": version, "pieces": pieces, "changed": changed}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--downloads", type=Path, help="folder of downloads; missing ones are added")
    parser.add_argument("--only", action="append", choices=PACKAGES, help="one package; may be repeated")
    parser.add_argument("--update", action="store_true", help="write the record")
    given = parser.parse_args(arguments)
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    changed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.downloads or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for package in given.only or PACKAGES:
            if archive_of(package, folder) is None:
                download(package, folder)
            newest = archive_of(package, folder)
            assert newest is not None, "pip download succeeded"
            entry = check(package, newest[1], newest[0], record, print)
            changed += entry.pop("changed")
            if given.update:
                record[package] = {**entry, "date": time.strftime("%Y-%m-%d", time.gmtime())}
    if given.update:
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return int(changed > 0 and not given.update)


if __name__ == "__main__":
    sys.exit(main())
