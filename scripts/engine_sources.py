"""Compare the newest releases of the engines with the lines that the deviations of `ropewalk.serving.engines` rely on.

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
    - `about`: the beginnings of the texts of the deviations that rely on it.
    """

    package: str
    path: str
    name: str | None
    about: tuple[str, ...]


_ROPE = "vllm/model_executor/layers/rotary_embedding/"
_VLLM = "vllm/model_executor/models/"
_SGLANG = "sglang/srt/layers/rotary_embedding/"
_MODELS = "sglang/srt/models/"
_EXTENDS_NOTHING = "it fixes one base when it starts, so that"
_NOT_BEYOND = "The dynamic rule is not applied beyond"
_EVERY_LENGTH = "it fixes one base when it starts, that of"
_IGNORED = "`attention_factor`, `mscale` and `mscale_all_dim` in a yarn block are ignored"
_DROPPED = "`attention_factor` in a yarn block is ignored"
_PROPORTIONAL = "its classes except Gemma 4's rotate"
_MROPE = "under M-RoPE it applies theta and yarn"
_RAMP = "under M-RoPE its class of this family computes"
_HALVES = "it rotates halves under longrope"
_ONE_LIST = "One list of divisors"
_ONLY_THETA = "its class of this family takes only theta"
_DEEPSEEK = "its DeepSeek classes compute"
_DEEPSEEK_SG = "its DeepSeek class sets"
_AMX = "On CPUs with AMX"
_REMOVES = "llama.cpp's converter removes the scaling"
_NO_THETA = "llama.cpp's converter writes neither theta"
_PHI3 = "llama.cpp's converter writes only theta and longrope"
_LONGROPE = "llama.cpp's converter writes longrope's divisors"
_CONVERTER = (
    "`truncate` in a yarn block is not applied",
    "`attention_factor`, `mscale` and `mscale_all_dim` in a yarn block are not applied",
    "llama.cpp's converter leaves the rule out",
    _NOT_BEYOND,
    _LONGROPE,
)

PIECES: tuple[Piece, ...] = (
    Piece("vllm", _ROPE + "__init__.py", "get_rope", (_IGNORED, _EXTENDS_NOTHING, _MROPE)),
    Piece("vllm", _ROPE + "mrope.py", "MRotaryEmbedding.__init__", (_RAMP,)),
    Piece("vllm", _VLLM + "qwen3_vl.py", "mrope_positions_factor", (_RAMP,)),
    Piece("vllm", _VLLM + "gpt_oss.py", "OAIAttention",
          ("its gpt-oss class builds yarn", "`attention_factor` in the block is ignored")),
    Piece("vllm", _VLLM + "deepseek_v2.py", "DeepseekV2Attention", (_DEEPSEEK,)),
    Piece("vllm", _VLLM + "deepseek_v2.py", "DeepseekV2MLAAttention", (_DEEPSEEK,)),
    Piece("vllm", _VLLM + "mistral.py", "MistralAttention.__init__", ("`llama_4_scaling_beta` in the block",)),
    Piece("vllm", _VLLM + "gemma3.py", "Gemma3Attention", ("Older servers apply one flat block",)),
    Piece("vllm", _ROPE + "yarn_scaling_rope.py", None, (_IGNORED,)),
    Piece("vllm", _ROPE + "dynamic_ntk_scaling_rope.py", None, (_EXTENDS_NOTHING, _NOT_BEYOND)),
    Piece("vllm", _ROPE + "phi3_long_rope_scaled_rope.py", None, (_ONE_LIST, _HALVES)),
    Piece("vllm", "vllm/config/model.py", "_get_and_verify_max_len", (_EXTENDS_NOTHING,)),
    Piece("vllm", "vllm/transformers_utils/config.py", "patch_rope_parameters", ("Older servers call",)),
    Piece("sglang", _SGLANG + "factory.py", "get_rope", (_DROPPED, _PROPORTIONAL, _MROPE)),
    Piece("sglang", _SGLANG + "mrope.py", "YaRNScalingMRotaryEmbedding.__init__", ("under M-RoPE it stops",)),
    Piece("sglang", _MODELS + "deepseek_v2.py", "DeepseekV2AttentionMLA.__init__", (_DEEPSEEK_SG,)),
    Piece("sglang", _MODELS + "gemma2.py", "Gemma2Attention.__init__", (_ONLY_THETA,)),
    Piece("sglang", _MODELS + "stablelm.py", "StablelmAttention.__init__", (_ONLY_THETA,)),
    Piece("sglang", _MODELS + "starcoder2.py", "Starcoder2Attention.__init__", (_ONLY_THETA,)),
    Piece("sglang", _MODELS + "gemma4_causal.py", "Gemma4Attention.__init__",
          ("its class of this family takes only the rope_type",)),
    Piece("sglang", _MODELS + "olmo2.py", "Olmo2Attention.__init__", ("its config class of OLMo 3",)),
    Piece("sglang", _MODELS + "ministral3.py", "Ministral3DecoderLayer.__init__",
          ("its class of this family makes longrope's table",)),
    Piece("sglang", _SGLANG + "yarn.py", None, (_DROPPED,)),
    Piece("sglang", _SGLANG + "rope_variant.py", "DynamicNTKScalingRotaryEmbedding", (_EVERY_LENGTH,)),
    Piece("sglang", _SGLANG + "rope_variant.py", "Phi3LongRoPEScaledRotaryEmbedding",
          ("The longest prompt of a batch", _HALVES)),
    Piece("sglang", _SGLANG + "rope_variant.py", "Gemma4RotaryEmbedding", (_PROPORTIONAL,)),
    Piece("sglang", _MODELS + "gemma3_causal.py", "Gemma3Attention", (_AMX,)),
    Piece("sglang", _MODELS + "gemma3_causal.py", "Gemma3TextModel", (_AMX,)),
    Piece("transformers", "transformers/modeling_rope_utils.py", "_compute_yarn_parameters",
          ("Version 4 takes YaRN's factor",)),
    Piece("transformers", "transformers/modeling_rope_utils.py", "dynamic_rope_update", ("With a cache, keys keep",)),
    Piece("llama-cpp-python", "conversion/__init__.py", None, ("llama.cpp's converter has no class",)),
    Piece("llama-cpp-python", "conversion/command_r.py", "CommandR2Model.set_gguf_parameters", (_REMOVES,)),
    Piece("llama-cpp-python", "conversion/command_r.py", "Cohere2Model.set_gguf_parameters", (_REMOVES,)),
    Piece("llama-cpp-python", "conversion/bert.py", "ModernBertModel.set_gguf_parameters", (_REMOVES,)),
    Piece("llama-cpp-python", "conversion/gptneox.py", "GPTNeoXModel.set_gguf_parameters", (_NO_THETA,)),
    Piece("llama-cpp-python", "conversion/stablelm.py", "StableLMModel.set_gguf_parameters", (_NO_THETA,)),
    Piece("llama-cpp-python", "conversion/phi.py", "Phi3MiniModel.set_gguf_parameters", (_PHI3,)),
    Piece("llama-cpp-python", "conversion/phi.py", "Phi3MiniModel.generate_extra_tensors", (_PHI3, _LONGROPE)),
    Piece("llama-cpp-python", "conversion/mistral3.py", "Mistral3Model", ("llama.cpp's converter takes only yarn",)),
    Piece("llama-cpp-python", "conversion/gemma.py", "Gemma4Model.generate_extra_tensors",
          ("llama.cpp's converter applies proportional",)),
    Piece("llama-cpp-python", "conversion/base.py", "TextModel.set_gguf_parameters", _CONVERTER),
    Piece("llama-cpp-python", "conversion/llama.py", "LlamaModel.generate_extra_tensors",
          ("llama.cpp's converter writes llama3's",)),
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
