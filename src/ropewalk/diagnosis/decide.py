"""From losses by window to a verdict: numbers in, a `Verdict` out."""

from __future__ import annotations

from ropewalk.diagnosis.evidence import Evidence
from ropewalk.diagnosis.next_run import RunFacts, next_run
from ropewalk.diagnosis.rules import Use, apply_rules, every_comparison, open_comparisons
from ropewalk.diagnosis.verdict import Verdict
from ropewalk.diagnosis.wording import sentence, with_next
from ropewalk.measure.losses import PLAIN, WindowLosses


def decide(losses: WindowLosses, use: Use | None = None, run: RunFacts | None = None) -> Verdict:
    """What to do with a model, from its losses: the first action of these whose comparisons are settled in its favour.

    1. "unfit": its loss within the trained length is not below that of token frequencies.
    2. "keep": plain is shown to be no worse than crop by more than 0.02 nats per token, in each stretch up to the
       target. Also where the target lies within the trained length.
    3. "extend": a method is shown to lower the loss of plain; it is shown to lower that of crop, or to use far tokens
       and to lose less than 0.05 to crop; and it costs at most 0.05 within by its mean and 0.10 by its interval's end.
       Of several the lowest mean wins; nothing is chosen while one that is open lies lower by more than 0.05.
    4. "cut": no method that is affordable lowers the loss of crop by more than 0.02, and the best is shown not to
       use far tokens. If its use is unknown, the verdict is "undecided".
    5. "undecided": `next` says what would settle it.

    **Arguments:**
    - `losses`: each method's, window by window; crop among them wherever anything lies beyond the trained length.
    - `use`: what was measured of the use of far tokens; None: nothing. `run`: names and times for the sentences.

    **Returns:** a `Verdict` without `config`. "Shown" is always said of an interval between windows, so that one window
    gives "undecided" or "unfit". A loss within that lies below that of token frequencies, but is not shown to, is
    "undecided".

    >>> flat = [3.0, 3.1, 2.9, 3.0]
    >>> decide(WindowLosses(trained=8, target=8, within={"plain": flat}, frequencies=[6.0, 6.0, 6.1, 6.1])).action
    'keep'
    """
    evidence, run = Evidence(losses), run or RunFacts()
    decision = apply_rules(evidence, use)
    still_open = open_comparisons(evidence, use, decision)
    settling = next_run(evidence, still_open, run) if still_open else None
    said = sentence(decision, evidence, use, run, still_open)
    judged, fit = decision.method or PLAIN, evidence.fit.result == "shown"
    return Verdict(
        action=decision.action,
        method=decision.method,
        reach_loss=evidence.reach(judged) if fit else None,
        reach_use=None if use is None or not fit else use.reach(judged),
        evidence=every_comparison(evidence, use),
        next=settling,
        sentence=with_next(said, still_open, settling),
    )
