"""Run `ropewalk doctor tiny` and draw what it prints as a terminal: docs/assets/doctor-tiny.svg.

    python scripts/terminal_picture.py            # a minute on two busy cores

The command runs as a user would run it, in a terminal of 100 columns. The record that it writes becomes
benchmarks/results/doctor-terminal.json; a test compares the two.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "assets" / "doctor-tiny.svg"
RECORD = ROOT / "benchmarks" / "results" / "doctor-terminal.json"
COMMAND, COLUMNS = ("doctor", "tiny", "--json", "result.json"), 100
THEME = TerminalTheme(
    (27, 29, 32), (222, 222, 218),
    [(27, 29, 32), (240, 113, 103), (126, 200, 120), (226, 186, 96), (112, 168, 245), (205, 144, 220), (104, 196, 204),
     (222, 222, 218)],
)  # fmt: skip


def run() -> str:
    """Return what the command prints, with a terminal's colours, and keep its record."""
    with TemporaryDirectory() as folder:  # nothing measured before is taken over
        environment = {**os.environ, "FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(COLUMNS),
                       "XDG_CACHE_HOME": folder}  # fmt: skip
        command = [sys.executable, "-m", "ropewalk", *COMMAND]
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        shutil.copyfile(Path(folder, COMMAND[-1]), RECORD)
    return done.stdout.replace(f"{ROOT}/", "")  # a clone is the working folder


def picture(printed: str) -> str:
    """Return the SVG, with fonts of the reader's own machine and nothing that is fetched."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.assemble(("$ ", "green"), (f"ropewalk {' '.join(COMMAND)}", "bold")))
    console.print(Text.from_ansi(printed.rstrip("\n")))
    svg = console.export_svg(title="ropewalk", theme=THEME, unique_id="doctor-tiny")
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = svg.replace("Fira Code, monospace", "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace")
    return re.sub(r"^\s*<!-- .*? -->\n", "", svg, flags=re.MULTILINE)


def main() -> int:
    PICTURE.write_text(picture(run()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
