"""The work of `ropewalk extend`: measuring, tuning, measuring again, and the files that say what it brought."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropewalk.cli.command_line import environment_of
from ropewalk.cli.extend_folder import WorkFolder
from ropewalk.errors import RopeError

if TYPE_CHECKING:
    from rich.console import Console

    from ropewalk.context.protocol import Protocol
    from ropewalk.extend.export import Exported
    from ropewalk.extend.outcome import Variant
    from ropewalk.extend.tune import TuneSettings
    from ropewalk.models.decoder import Decoder


class ExtendJob:
    """One extension on its way: what is measured and tuned, and the folder beside --out that keeps it meanwhile."""

    def __init__(
        self,
        name: str,
        out: Path,
        source: Decoder,
        method: str,
        trained: int,
        target: int,
        device: str,
        *,
        unscaled_tokens: int = 0,
    ) -> None:
        self.name, self.work = name, WorkFolder(out)
        self.folder = self.work.path
        self.source, self.method, self.trained, self.target, self.device = source, method, trained, target, device
        self.unscaled_tokens = unscaled_tokens
        self.variants: list[Variant] = []
        self.protocol: Protocol | None = None
        self.tuning: dict[str, Any] | None = None
        self.record: dict[str, Any] = {}

    def in_float32(self) -> Decoder:
        """The source in float32, on the device where the work is done."""
        import torch

        self.source = self.source.to(device=self.device, dtype=torch.float32)
        return self.source

    def prepare_measurement(
        self,
        validation: Path | None,
        start_char: int,
        windows: int | None,
        block: int | None,
        seed: int,
    ) -> None:
        """The held-out text's windows, by the doctor's protocol."""
        from ropewalk.context.doctor import take_windows
        from ropewalk.context.protocol import Protocol
        from ropewalk.context.sources import read_text

        if self.source.tokenizer is None:
            raise RopeError(
                "extend: the checkpoint has no tokenizer, so no text can be measured or tuned on.",
                facts={"model": self.name},
                cure="Put its tokenizer.json beside the weights.",
            )
        name, contents = read_text(validation)
        tokens = self.source.tokenizer.encode(contents[max(start_char, 0) :])
        self.protocol = Protocol.choose(
            trained_length=self.trained,
            text=name,
            target=self.target,
            block=block,
            windows=windows,
            start_char=start_char,
            seed=seed,
            unscaled_tokens=self.unscaled_tokens,
            tokens=len(tokens),
        )
        self.chosen = take_windows(tokens, self.protocol)

    def check_unseen(self, texts: list[Path], validation: Path | None) -> None:
        """Refuse a held-out text that shares passages with those to tune on; unmeasured, all of it counts."""
        import torch

        from ropewalk.context.sources import read_text
        from ropewalk.extend.overlap import check_unseen
        from ropewalk.training.data import read_text as read_training_text

        if self.source.tokenizer is None or (self.protocol is None and validation is None):
            return  # nothing is held out, or tuning says what is missing
        encode = self.source.tokenizer.encode
        name, contents = read_text(validation)
        windows = torch.tensor([encode(contents)]) if self.protocol is None else self.chosen
        check_unseen(
            windows,
            (encode(read_training_text(path)) for path in texts),
            work="tune",
            names=[str(path) for path in texts],
            validation=str(validation or name),
        )

    def go(self, adapted: Decoder, settings: TuneSettings | None, keeping: Any, *, restart: bool) -> Decoder:
        """Measure before, tune, measure after; what there is to do of it. Returns the model to write."""
        from ropewalk.cli.train import Shown
        from ropewalk.extend.outcome import ITS_CROP, PLAIN, TUNED
        from ropewalk.extend.tune import tune, tuning_form

        if self.protocol is not None:
            self._measure(self.source, PLAIN, baselines=True)
            if self.method != "plain":
                self._measure(adapted, self.method)
        if settings is None:
            return adapted
        shown = Shown("extend")
        try:
            form = tuning_form(adapted, settings.method)
            final = tune(form, settings, self.folder, restart=restart, housekeeping=keeping, report=shown)
        finally:
            shown.close()
        final = final.with_extension(adapted.config.extension)
        self.tuning = _tuning(self.folder, settings, adapted)
        if self.protocol is not None:
            self._measure(final, TUNED)
            if self.target > self.trained > 1:
                self._measure(final, ITS_CROP)
        return final

    def _measure(self, model: Decoder, name: str, *, baselines: bool = False) -> None:
        from ropewalk.extend.outcome import measure

        assert self.protocol is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        with _bar() as (begin, advance):
            self.variants += measure(
                model,
                self.chosen,
                self.protocol,
                name=name,
                baselines=baselines,
                state=self.folder / f"losses-{name.replace(' ', '-')}.json",
                begin=begin,
                advance=advance,
            )

    def files(self, found: Exported) -> dict[str, str | bytes]:
        """README.md; and extend.json, the figure and the log of the tuning, where there are any."""
        from ropewalk.extend.card import card
        from ropewalk.extend.export import CARD, FIGURE, LOG, RECORD
        from ropewalk.extend.outcome import record

        self.record = record(
            model=Path(self.name).name,
            method=self.method,
            protocol=self.protocol,
            variants=self.variants,
            config=found.config,
            tuning=self.tuning,
            environment=environment_of(self.device, self.source),
            unscaled_tokens=self.unscaled_tokens,
        )
        drawn = self.protocol is not None and find_spec("matplotlib") is not None
        files: dict[str, str | bytes] = {CARD: card(self.record, figure=FIGURE if drawn else None)}
        if self.protocol is not None or self.tuning is not None:
            files[RECORD] = json.dumps(self.record, indent=1, allow_nan=False) + "\n"
        if self.tuning is not None:
            files[LOG] = (self.folder / LOG).read_bytes()
        if drawn:
            files[FIGURE] = self._figure()
        return files

    def _figure(self) -> bytes:
        from ropewalk.extend.outcome import curves
        from ropewalk.figures.loss import loss_by_position
        from ropewalk.figures.style import render

        assert self.protocol is not None
        figure = loss_by_position(
            self.protocol.blocks,
            curves(self.variants),
            trained_length=self.trained,
            title=f"{Path(self.name).name}: loss by position, before and after",
        )
        drawn: bytes = render(figure, "png")
        return drawn

    def tell(self, console: Console, found: Exported) -> None:
        """What was found and written, in a few lines."""
        from ropewalk.context.recommend import signed

        for variant in self.record["variants"]:
            beyond = variant["loss_beyond"]
            line = f"{variant['name']:<12} within {variant['loss_within']:.3f}"
            console.print(line + ("" if beyond is None else f"  beyond {beyond:.3f}"), markup=False)
        for key in ("tuned_minus_crop_beyond", "method_minus_crop_beyond"):
            difference = self.record["verdict"].get(key)
            if difference is not None:
                interval = None if difference["ci"] is None else tuple(difference["ci"])
                console.print(
                    f"{key.split('_')[0]} - crop beyond {self.trained:,} tokens: "
                    f"{signed(difference['nats'], interval)} nats per token",
                    markup=False,
                )
                break
        if found.rope is not None:
            console.print(f"rope_parameters: {json.dumps(found.rope.parameters)[:300]}", markup=False, soft_wrap=True)
        console.print(f"extend: wrote {found.folder}", markup=False, soft_wrap=True)


def _tuning(folder: Path, settings: TuneSettings, before: Decoder) -> dict[str, Any]:
    """What tuning was and how it went, from its own files; texts by name, not by path."""
    from ropewalk.extend.trainable import trained_count
    from ropewalk.training.resume import LOG, RUN

    run = json.loads((folder / RUN).read_text(encoding="utf-8"))
    log = [json.loads(line) for line in (folder / LOG).read_text(encoding="utf-8").splitlines()]
    plain = settings.to_json()
    plain |= {name: [Path(path).name for path in plain[name]] for name in ("text", "validation")}
    return {
        "settings": plain,
        "precision": run["settings"]["precision"],
        "sha256": run["sha256"],
        "text_tokens": run["train_tokens"],
        "tokens": log[-1]["tokens"],
        "seconds": log[-1]["seconds"],
        "parameters_trained": trained_count(before, settings.train, rank=settings.rank),
        "threads": run["threads"],
        "log": log,
    }


@contextmanager
def _bar() -> Iterator[tuple[Any, Any]]:
    """Callbacks that show what is measured and its tokens: a bar on a terminal, a line for each name elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("extend: measures {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        seen: set[str] = set()

        def begin(name: str, tokens: int) -> None:
            bar.update(task, description=name, total=tokens, completed=0)
            if name not in seen and not console.is_terminal:
                console.print(f"extend: measures {name}", markup=False)
            seen.add(name)

        yield begin, lambda tokens: bar.advance(task, tokens)
