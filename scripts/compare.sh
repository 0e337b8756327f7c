#!/usr/bin/env bash
# The recorded comparison of encodings: an hour on two idle cores, goes on where it was stopped.
# Needs the novels in ../shared/data (Project Gutenberg 145 and 1023 to train on, 2701 to measure on).
# usage: scripts/compare.sh [FOLDER OF THE RUNS] [further options of ropewalk compare, as --full]
set -euo pipefail
cd "$(dirname "$0")/.."
out="${1:-compare-runs}"
data="${ROPEWALK_DATA:-../shared/data}"
.venv/bin/ropewalk compare --text "$data/middlemarch.txt" --text "$data/bleak_house.txt" \
  --validation "$data/moby_dick.txt" --out "$out" "${@:2}"
cp "$out/results.jsonl" benchmarks/results/.compare.jsonl.part
mv benchmarks/results/.compare.jsonl.part benchmarks/results/compare.jsonl
