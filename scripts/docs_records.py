"""Write tables of benchmarks/results, of names and of commands, and figures into README and docs/, between their marks.

A table of a record stands between `<!-- record: NAME -->` and `<!-- /record -->`, a figure of scripts/figures.py in all
its versions between `<!-- figure: PATH: DESCRIPTION -->` and `<!-- /figure -->`, a still of the explorer's picture
(scripts/explorer_stills.py) in the same way after `picture`.
"""

from __future__ import annotations

import itertools
import json
import re
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from docs_reference import commands, names_table

from ropewalk.atomic_io import write_whole
from ropewalk.errors import RopeError
from ropewalk.methods import METHODS
from ropewalk.statistics import mean_and_interval, plus_minus

ROOT = Path(__file__).resolve().parents[1]
RESULTS, README, DOCS = ROOT / "benchmarks" / "results", ROOT / "README.md", ROOT / "docs"
MEASURED = ROOT / "src" / "ropewalk" / "serving" / "measured.json"
ENGINES_PAGE = runpy.run_path(str(ROOT / "benchmarks" / "engines" / "page.py"))
MARKS = re.compile(
    r"<!-- (?P<kind>record|names of|commands|figure|picture): (?P<what>[\w ./-]+?)(?:: (?P<alt>.*?))? -->"
    r".*?<!-- /(?P=kind) -->",
    re.DOTALL,
)
PICTURES = {
    "sentence": "before=3", "add": "position=7", "clocks": "position=40", "pairing": "convention=half&pairing.case=1",
    "sum": "distance=20", "past": "position=400", "wavelengths": "model=llama_2_7b", "grid": "size=20",
    "encodings": "encoding=alibi",
}  # fmt: skip
"""Pictures of the explorer that stand on pages, and the values that their stills show."""
Record = dict[str, Any]


def with_tables(markdown: str) -> str:
    """Return a page with new tables and figures between its marks; raise KeyError for an unknown name."""

    def drawn(found: re.Match[str]) -> str:
        kind, what, alt = found["kind"], found["what"], found["alt"]
        if kind in ("figure", "picture"):
            text = figure(what, alt) if kind == "figure" else figure(what, alt, [""], "png")
        else:
            text = TABLES[what]() if kind == "record" else names_table(what) if kind == "names of" else commands()
        head = found[0].partition("-->")[0]
        return f"{head}-->\n\n{text}\n\n<!-- /{kind} -->" if text else found[0]

    return MARKS.sub(drawn, markdown)


def figure(path: str, alt: str, sizes: Sequence[str] = ("-narrow", "-wide"), kind: str = "svg") -> str:
    """Return an image for each width and colour scheme of a page."""
    sources = []
    for size, scheme in itertools.product(sizes, ("dark", "light")):
        terms = ["(max-width: 44.9em)"] * (size == "-narrow") + ["(prefers-color-scheme: dark)"] * (scheme == "dark")
        sources.append(f'  <source media="{" and ".join(terms)}" srcset="{path}{size}-{scheme}.{kind}">')
    image = f'  <img src="{path}{sizes[-1]}-light.{kind}" alt="{alt}">'
    return "\n".join(["<picture>", *sources[:-1], image, "</picture>"])


def document(name: str) -> Any:
    """Read a record of one JSON document."""
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def lines(name: str, results: Path = RESULTS) -> list[Record]:
    """Read a record of one JSON document per line; none if there is no such file."""
    path = results / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()] if path.is_file() else []


def last_run(name: str) -> list[Record]:
    """Return the records of the last run in a file of `rotation.py`."""
    records = lines(name)
    return [record for record in records if record["run"] == records[-1]["run"]]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; columns of numbers are right-aligned."""
    numbers = [all(re.match(r"[+-]?\d|$", row[column]) for row in rows) for column in range(len(heads))]
    rule = ["--:" if number and column else "---" for column, number in enumerate(numbers)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *rows))


def where(record: Record) -> str:
    """Return the machine and the versions of a record in one line."""
    known = record["versions"]
    versions = ", ".join(f"{name} {known[name]}" for name in ("torch", "transformers") if name in known)
    threads = f"{record['threads']} thread{'s' * (record['threads'] != 1)}"
    return f"{record['device']}, {threads}, {versions}, {record['date'][:10]}"


def chance() -> str:
    """Return what a blind model finds, and how often chance seems refuted."""
    rows = [
        [one["model"], one["kind"], f"{one['trained_length']:,} of {one['target']:,}", str(one["windows"]),
         f"{one['found']} of {one['asked']}", f"{one['share']:.3f}", f"{100 * one['runs_with_a_false_works']:.1f} %"]
        for name, one in document("facts.json").items() if name.startswith("blind")
    ]  # fmt: skip
    return table(["model", "facts", "tokens seen", "windows", "found", "share", "runs with a false `works`"], rows)


def agreement() -> str:
    """Return how often two runs of the doctor on separate stretches give the same answer."""
    rows = []
    for name, one in document("facts.json").items():
        if name.startswith("agreement"):
            answers = Counter(f"{run['action']} {run['method'] or ''}".strip() for run in one["runs"])
            said = ", ".join(f"{answer} {count}" for answer, count in answers.most_common())
            same = one["same_length_of_those"]
            rows.append([one["engine"], said, f"{one['same_action_and_method']:.2f}",
                         "" if same is None else f"{same:.2f}"])  # fmt: skip
    return table(["engine", "answers of 30 runs", "pairs that agree", "of those on the length"], rows)


def league(model: str) -> str:
    """Return what each method finds that needs no tuning, the best first."""
    runs = list(document("league.json")[model].values())
    same = runs[0]["same_as"]
    found: list[tuple[float, list[str]]] = []
    for method in runs[0]["rows"]:
        if method in METHODS and METHODS[method].crops:
            continue
        of = [(run, run["rows"][method]) for run in runs if method in run["rows"]]
        given_up = [row["given_up_at"] for _, row in of if row["given_up_at"]]
        pairs = [pair for run, row in of for pair in zip(row["right"], run["far"], strict=False)]
        hits = [[hit for hit, far in pairs if far == wanted] for wanted in (True, False)]
        cells = [f"{sum(one)} of {len(one)}" if one else f"given up at {min(given_up):,}" for one in hits]
        means = [[row[key] for _, row in of if row[key] is not None] for key in ("loss_less_crops", "cost")]
        cells += [f"{sum(one) / len(one):+.2f}" if one and not given_up else "" for one in means]
        seconds = sum(row["seconds"] for _, row in of) / len(of)
        name = ", ".join([method, *(other for other, first in same.items() if first == method)])
        found.append((sum(hits[0]) / max(1, len(hits[0])),
                      [name, *cells, f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"]))  # fmt: skip
    rows = [cells for _, cells in sorted(found, key=lambda one: -one[0])]
    heads = ["method", "finds beyond (chance 1 in 4)", "near", "extra loss against a cut prompt", "cost",
             "seconds a window"]  # fmt: skip
    return f"{table(heads, rows)}\n\n{where(runs[0]['environment'])}; {runs[0]['environment']['dtype']}."


def tasks() -> str:
    """Return what each method finds in the tasks, and the correlations of the doctor's two measures with them."""
    result = document("tasks.json")["result"]
    counted, outcomes, values = result["counted"], result["outcomes"], result["values"]
    controls = [f"{one['control']['found']} of {one['control']['asked']}" for one in outcomes.values()]
    rows = [
        [method, f"{values['smollm2']['far facts'][method]:.2f}", f"{-values['smollm2']['loss'][method]:+.2f}",
         *(f"{one[method]['found']} of {one[method]['asked']}" for one in outcomes.values())]
        for method in values["smollm2"]["loss"]
    ]  # fmt: skip
    heads = ["method", "SmolLM2: far facts", "extra loss", *(n.replace("smollm2", "SmolLM2") for n in outcomes)]
    found = []
    for measure, by_predictor in result["predictors"].items():
        for predictor, one in by_predictor.items():
            low, high = one["interval"]
            p = "< 0.001" if one["holm"] < 0.001 else f"{one['holm']:.3f}"
            found.append([predictor, {"margin": "margin", "found": "right answers"}[measure],
                          *(f"{one['each'][name]:+.2f}" for name in counted),
                          f"{one['mean']:+.2f} ({low:+.2f} to {high:+.2f})", p])  # fmt: skip
    names = [name.replace("smollm2", "SmolLM2") for name in counted]
    correlations = table(["predictor", "of", *names, "mean (90 % interval)", "p"], found)
    tasks = table(heads, [["control", "", "", *controls], *rows])
    return f"{tasks}\n\nSpearman's correlation over the nine methods:\n\n{correlations}"


def answers() -> str:
    """Return the doctor's answers about SmolLM2 on texts that are not in the repository, with their times."""
    rows = [
        [
            case,
            ". ".join(one["answer"].split(". ")[:2]).rstrip("."),
            f"{one['seconds']:,}",
            f"{one['processor_seconds']:,}",
        ]
        for case, one in document("doctor-answers.json").items()
    ]  # fmt: skip
    return table(["text", "answer", "seconds", "processor seconds"], rows)


def share(counts: Sequence[int]) -> str:
    """Return a part of a whole in percent; nothing of nothing."""
    return f"{100 * counts[0] / counts[1]:.0f} %" if counts[1] else "-"


GOOD = {
    **{f"plain and {many} equal, half {half};": f"plain is as good as {of}, {reach}"
       for half, reach in (("9", "to the end"), ("0.75", "to 3/4 of the target"))
       for many, of in ((1, "one method"), (3, "three methods"))},
    **{f"plain and 1 equal know {known}%; {trained}": f"the same of one: know {known} %, trained length {trained:,}"
       for known in (45, 60) for trained in (1024, 2048)},
}  # fmt: skip
REACHES = {"plain.*half 0.75": "plain and methods to 3/4 of 4,096",
           "yarn to .*1/64;": "a method to 3/8, ... 7/8 of 4,096, steep end", "yarn to .*1/8;": "the same, gradual end",
           "yarn to .*1/32;": "a method to 5/8, 6/8, 7/8 of 16,384"}  # fmt: skip
BOTH = {"plain": "plain is as good as the methods", "yarn to": "a method reaches 3/8 to 7/8"}
ERRORS = [  # what, its count in the record, the truths by patterns of the cells' names, the bar
    ("`extend`", "extend", GOOD, "at most 2 %"),
    ("`extend`", "extend", {f"yarn knows {known}%": f"a method knows {known} % of far facts"
                            for known in (0, 8, 12, 30)}, "at most 2 %"),
    ("`extend`", "extend", {"yarn knows 50%": "a method knows 50 % of far facts: it works"}, ""),
    ("`extend`", "extend", {"1 blind": "one blind method", "3 blind": "three blind methods",
                            r"\d\d blind": "all methods, blind"}, "at most 1 %"),
    ("`undecided`", "undecided", BOTH, ""),
    ("promise exceeds the reach", "promised_more", REACHES, "at most 10 %"),
    ("interval contains the reach", "covered", REACHES, "at least 90 %"),
    ("two runs: same action and method", "same_answer", BOTH, "at least 90 %"),
    ("of those: lengths within 1/8 of the trained length", "same_length", BOTH, "at least 80 %"),
    ("names both answers", "at_limit", {"yarn costs": "a method's cost is the limit, 0.05"}, ""),
]  # fmt: skip


def rule_errors() -> str:
    """Return how often simulated runs err at each look, with independent facts and with twice the variance."""
    record = document("rule-errors.json")

    def shares(key: str, pattern: str, look: str) -> str:
        """Return the shares of one count at a look, in all cells of a pattern: for each variance."""
        found: dict[float, list[Sequence[int]]] = {}
        for name, one in record["cells"].items():
            for at in one["looks"] if re.match(pattern, name) else []:
                if at["windows"] == look:
                    count = at.get(key, at["actions"].get(key, 0))
                    found.setdefault(one["over"], []).append((count, one["runs"]) if isinstance(count, int) else count)
        return ", ".join(share([sum(part) for part in zip(*of, strict=True)]) for _, of in sorted(found.items()))

    looks = {"1 window": "1", "2": "2", "4": "4", "8": "8", "at the run's end": "run"}
    rows = [[what, truth, *(shares(key, pattern, look) for look in looks.values()), bar]
            for what, key, truths, bar in ERRORS for pattern, truth in truths.items()]  # fmt: skip
    every = record["cells"].values()
    differ, compared, runs = (sum(one[key] for one in every) for key in ("differ", "compared", "runs"))
    read = sum(one["looks"][-1]["read"] for one in every) / runs
    said = [f"{runs:,} runs; first with independent facts, then with twice the variance.",
            "The control knows 70 % of its facts, so a method that works must know 35 %.",
            "Plain fails, unless it is named. The trained length is 1,024; of 16,384 tokens it is 8,192.",
            "The reach is the distance at which finding falls half-way to chance in truth.",
            f"A run ends at its first settled look, at the latest after eight windows; on average after {read:.1f}.",
            f"Another implementation of the rule differs in {differ} of {compared:,} cases.",
            f"Commit {record['environment']['commit']}."]  # fmt: skip
    return f"{table(['what happens', 'truth', *looks, 'should be'], rows)}\n\n{' '.join(said)}"


def phantoms() -> str:
    """Return what the doctor concludes about models whose reach is known, by model, reach and windows."""
    record, rows = document("phantoms.json"), []
    for name, of in record["result"].items():
        for one in of:
            if one["windows_read"] < 4 and one["window"] is not None:
                continue
            found = sorted(tokens for tokens in one["estimates"] if tokens is not None)
            estimates = f"{found[0]:,} to {found[-1]:,}" if found and one["window"] is not None else ""
            keys = ("decided", "covered", "promised_more", "same_answer", "same_length")
            reach = "all" if one["window"] is None else f"{one['window']:,}"
            rows.append([name, reach, str(one["windows_read"]), estimates, *(share(one[key]) for key in keys)])
    heads = ["model", "reach", "windows", "estimates", "right answer", "interval holds", "promises more",
             "pairs: same answer", "within an eighth"]  # fmt: skip
    return f"{table(heads, rows)}\n\n{where(record['environment'])}, commit {record['environment']['commit']}."


def rotation() -> str:
    """Return the bounds of `benchmarks/rotation.py`: ratios of medians, worst over the shapes measured."""
    bench = runpy.run_path(str(ROOT / "benchmarks" / "rotation.py"))
    runs = {name: last_run(file) for name, file in (("AVX-512", "rotation"), ("AVX2", "rotation-avx2"))}
    judged = zip(*(bench["judge"](bench["CPU_BOUNDS"], of) for of in runs.values()), strict=True)
    rows = [[each[0][0].name, " or ".join(each[0][0].against).removeprefix("ropewalk, "),
             *("" if ratio is None else f"{ratio:.2f}" for _, ratio in each), f"{each[0][0].at_most:.2f}"]
            for each in judged]  # fmt: skip
    return f"{table(['rotation', 'compared with', *runs, 'allowed'], rows)}\n\n{measured_on(runs)}"


def measured_on(runs: dict[str, list[Record]]) -> str:
    """Return the machine of each column in one line."""
    return ". ".join(f"{name}: {where(of[-1])}" for name, of in runs.items()) + "."


def attention() -> str:
    """Return the ratio of attention's median to torch's, on each machine."""
    runs = {name: lines(file) for name, file in (("AVX-512", "attention"), ("AVX2", "attention-avx2"))}
    ratios: dict[tuple[str, str], dict[str, str]] = {}
    for name, of in runs.items():
        for one in of:
            case = f"{one['tokens']:,} tokens, {one['heads']} heads of {one['head_dim']}, {one['kv_heads']} of keys"
            ours, theirs = (one["microseconds"][which]["p50"] for which in ("ropewalk", "sdpa"))
            ratios.setdefault((case, one["dtype"]), {})[name] = f"{ours / theirs:.2f}"
    rows = [[*case, *(of.get(name, "") for name in runs)] for case, of in ratios.items()]
    return f"{table(['attention', 'dtype', *runs], rows)}\n\n{measured_on(runs)}"


def encodings() -> str:
    """Return the loss of each encoding at the trained length, and its rise beyond, with intervals over seeds."""
    first, *measured = lines("compare")
    settings, losses = first["settings"], dict[tuple[str, str | None], dict[int, list[float | None]]]()
    for one in measured:
        if one["kind"] == "loss":
            by_length = losses.setdefault((one["encoding"], one["scaling"]), {})
            by_length.setdefault(one["length"], []).append(one["loss"])
    trained, *longer = (settings["seq_len"] * multiple for multiple in settings["multiples"])
    titles = {"learned": "learned table", "rope": "RoPE", "t5": "T5 bias", "alibi": "ALiBi", "kerple": "KERPLE"}
    rows = []
    for (name, scaling), by_length in losses.items():
        base = losses[name, None][trained]
        cells = [f"{sum(base) / len(base):.3f}"]
        for length in longer:
            if None in by_length[length]:
                cells.append("none")
                continue
            rises = [far - near for far, near in zip(by_length[length], base, strict=True)]
            cells.append(plus_minus(*mean_and_interval(rises)))
        rows.append([titles.get(name, name) + (f", {scaling} when tested" if scaling else ""), *cells])
    heads = ["encoding", *(f"at {length:,}" for length in (trained, *longer))]
    return f"{table(heads, rows)}\n\n{where(first)}."


def classification() -> str:
    """Return the accuracy of the classifier and of the linear model, and their difference, with intervals."""
    record, rows = document("classifier-banking77.json"), []
    titles = {"classifier": "encoder from scratch", "linear": "linear model", "difference": "difference"}
    for who, title in titles.items():
        one, sign = record[who], "+" if who == "difference" else ""
        low, high = one["interval"]
        spent = f"{one['cpu_seconds'] / 60:.1f}" if "cpu_seconds" in one else ""
        rows.append([title, f"{one['accuracy']:{sign}.3f} ({low:{sign}.3f} to {high:{sign}.3f})", spent])
    return table([f"banking77, {record['test_rows']:,} test texts", "accuracy", "minutes of one core"], rows)


def models() -> str:
    """Return how many of transformers' classes and causal families are exact."""
    record = document("parity.json")
    of_class: dict[str, str] = {}  # a class has a row for each config that it takes
    for row in record["classes"]:
        if of_class.get(row["class"], "exact") == "exact":
            of_class[row["class"]] = row["status"]
    causal = [row["status"] for row in record["causal"]]
    classes = list(of_class.values())
    unbuilt = "" if {*classes, *causal} <= {"exact", "refused"} else ", or could not be built"
    return (
        f"{classes.count('exact')} of the {len(classes)} rotary classes and {causal.count('exact')} of the "
        f"{len(causal)} causal families of transformers {record['transformers']} are exact; the others are refused "
        f"with a reason{unbuilt}."
    )


def verify_servers() -> str:
    """Return the verdict about each server of SmolLM2 in llama.cpp and vLLM at defaults, and its cost."""
    records = {"llama.cpp": document("verify-servers.json"), "vLLM": document("verify-servers-vllm.json")}

    def cells(engine: str, one: Record) -> list[str]:
        hidden = "; ".join(f"{effect['name']} ({effect['nats']:.3f} nats)" for effect in one["not_excluded"])
        if one["kind"] == "as expected":
            verdict = "as expected" + (f"; not excluded: {hidden}" if hidden else "")
        else:
            first, *others = one["named"]
            verdict = f"applies {first}" + (f", or one of {len(others)} that resemble it" if others else "")
        expect = {"plain": "plain", "pi:2": "linear 2"}.get(one["expect"], one["expect"].replace(":", " "))
        return [f"{engine}, {one['weights']}", one["applied"], expect, verdict, f"{one['noise']:.3f}",
                str(one["requests"]), f"{one['seconds']:.0f}", f"{one['cpu_seconds']:.0f}"]  # fmt: skip

    heads = ["engine", "server", "expected", "verdict", "noise, nats", "requests", "seconds", "processor seconds"]
    rows = [cells(engine, one) for engine, record in records.items() for one in record["servers"]]
    about = ". ".join(f"{engine}: {where(record)}" for engine, record in records.items())
    number = records["vLLM"]["vllm"]
    return f"{table(heads, rows)}\n\n{about}; vLLM {number}. With other work on the machine."


def engines(form: str = "drawn") -> str:
    """Return for each engine and rope block what the engine applies, by family: as tables, or "short" as JSON."""
    return str(ENGINES_PAGE[form](document("engines.json")))


def vllm_plugin() -> str:
    """Return what the plug-in says about models in the real vLLM, and how often it finds the fault, by block."""
    record, rows = document("vllm-plugin.json"), []
    for block in ENGINES_PAGE["BLOCKS"]:
        models = {name.partition(":")[0]: of for name, of in record["models"].items() if name.endswith(f": {block}")}
        others: dict[str, list[str]] = {}
        for family, of in models.items():
            if "agree with the config" not in (text := of["right"][0][1]):
                others.setdefault(text.split(": ", 2)[2], []).append(family)
        found = sum(of["fault"][0][0] == "error" and of["fault"] != of["right"] for of in models.values())
        agree = len(models) - sum(map(len, others.values()))
        said = "; ".join(f"{text} ({', '.join(families)})" for text, families in others.items())
        rows += [[block, f"{agree} of {len(models)}", said, f"{found} of {len(models)}"]] if models else []
    text = f"vLLM {record['version']}, {record['date']}: {len(record['models'])} models, one line for each."
    return f"{table(['block', 'agree with the config', 'other lines', 'fault: found'], rows)}\n\n{text}"


# -- methods and engines --------------------------------------------------------------------------------------------

TITLES = dict(zip(
    ("transformers", "vllm", "sglang", "llama.cpp", "ollama", "mlx", "onnx"),
    ("transformers", "vLLM", "SGLang", "llama.cpp", "Ollama", "mlx-lm", "ONNX"), strict=True,
))  # fmt: skip
FORGETS = "†"  # the mark of baselines in the table


def served(name: str) -> list[str]:
    """Return for each engine of TITLES whether it runs a method: yes, yes with a caveat of its own (\\*), or no."""
    from ropewalk.serving.serve import serve_config

    cells, method = [], "plain" if METHODS[name].crops else name  # the client crops
    for engine in TITLES:
        try:
            settings = serve_config("tiny", engine, method=method, target=1024 if METHODS[name].extends else None)
        except RopeError:
            cells.append("no")
            continue
        own = any(caveat.rules and len(caveat.engines) == 1 for caveat in settings.caveats)
        cells.append("yes\\*" if own else "yes")
    return cells


def methods() -> str:
    """Return every method: effect, form in config.json, engines, source."""
    rows = []
    for name, method in METHODS.items():
        source = f"[{method.source}](https://arxiv.org/abs/{method.source})" if method.source else ""
        title = f"[`{name}`](#{name})" + (f" {FORGETS}" if method.crops else "")
        rows.append([title, method.changes, method.config or "none", *served(name), source])
    return (
        f"{table(['method', 'effect', 'in config.json', *TITLES.values(), 'arXiv'], rows)}\n\n"
        f"{FORGETS}: a baseline that forgets distant tokens; the doctor never recommends it. "
        "\\*: with a caveat of that engine for this rule, which `ropewalk serve-config` prints. Every method also runs "
        "in Python (`rw.attach`)."
    )


# -- machines -------------------------------------------------------------------------------------------------------

CPU, GPU = ("rotation", "attention"), "gpu-rotation"  # NAME.jsonl
INSTRUCTIONS = {"avx512_bf16": "AVX-512 with BF16", "avx512": "AVX-512", "avx2": "AVX2", "neon_bf16": "Arm with BF16",
                "neon": "Arm", "portable": "no vector instructions"}  # fmt: skip


def status(results: Path = RESULTS) -> str:
    """Return which CPUs and GPUs the times are from, in two sentences."""
    measured: dict[str, list[Record]] = {}
    for one in (one for name in CPU for one in lines(name, results)):
        measured.setdefault(one["device"], []).append(one)
    newest = {device: max(one["date"][:10] for one in of) for device, of in measured.items()}
    cpus = []
    for device, of in sorted(measured.items(), key=lambda item: newest[item[0]], reverse=True):
        known = [label for key, label in INSTRUCTIONS.items() if key in {one.get("instructions") for one in of}]
        cpus.append(f"{device} ({', '.join([*known, f'last on {newest[device]}'])})")
    return f"CPU times: {'; '.join(cpus) or 'none'}. {gpus(results)}"


def gpus(results: Path = RESULTS) -> str:
    """Return which GPUs rotation was timed on."""
    newest = {one["device"]: one["date"][:10] for one in lines(GPU, results)}
    if not newest:
        return "No GPU was at hand: the Triton kernels ran in Triton's interpreter only."
    return f"GPU times: {'; '.join(f'{device} (last on {date})' for device, date in newest.items())}."


def gpu(results: Path = RESULTS) -> str:
    """Return the section of the times on GPUs; nothing without any."""
    last = {(one["device"], f"{one['kind']}, {one['case']}"): one["microseconds"] for one in lines(GPU, results)}
    rows = []
    for (device, case), of in last.items():
        times = {name: each["p50"] for name, each in of.items()}
        for name, time in sorted(times.items(), key=lambda item: item[1]):
            over_copy = f"{time / times['copy']:.2f}" if "copy" in times else ""
            value = f"{time / 1000:,.0f}" if time >= 1e5 else f"{time / 1000:.3g}"
            rows.append([device, case, name, value, over_copy])
    heads = ["GPU", "case", "by", "ms", "over a copy of the same bytes"]
    return f"## On a GPU\n\n{table(heads, rows)}" if rows else ""


TABLES: dict[str, Callable[[], str]] = {
    "chance": chance, "agreement": agreement, "answers": answers, "rule-errors": rule_errors,
    "phantoms": phantoms,
    "tasks": tasks, "league": partial(league, "smollm2"), "league-tiny": partial(league, "tiny"),
    "rotation": rotation, "attention": attention, "encodings": encodings, "classification": classification,
    "models": models, "verify-servers": verify_servers, "vllm-plugin": vllm_plugin,
    "methods": methods, "status": status, "gpu": gpu, "engines": engines,
}  # fmt: skip


def main() -> int:
    for page in (README, *sorted(DOCS.rglob("*.md")), MEASURED):
        text = page.read_text(encoding="utf-8") if page.exists() else ""
        if (new := engines("short") if page == MEASURED else with_tables(text)) != text:
            write_whole(page, new)
            print(page.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
