"""Resonance YaRN (Wang et al. 2024, arXiv:2403.00071)."""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.rope.scaling import Resonance, YaRN

METHOD = Method(
    name="resonance",
    order=80,
    changes="As yarn, with the wavelength of every pair rounded to whole tokens.",
    costs=NO_COST,
    config="its factors, as longrope",
    source="2403.00071",
    scaling=lambda rope, reach: Resonance(YaRN(reach.factor, reach.trained)),
    look=Look("#0072b2", ":", ">"),
)
