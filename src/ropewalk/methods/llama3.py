"""Llama 3.1's scaling (Grattafiori et al. 2024, arXiv:2407.21783)."""

from ropewalk.methods.method import NO_COST, Look, Method
from ropewalk.rope.scaling import Llama3

METHOD = Method(
    name="llama3",
    order=60,
    priority=5,
    changes="Divides slow pairs by the factor, leaves fast ones, blends between.",
    costs=NO_COST,
    config="llama3",
    source="2407.21783",
    scaling=lambda rope, reach: Llama3(reach.factor, 1.0, 4.0, reach.trained),
    look=Look("#cc79a7", "--", "X"),
)
