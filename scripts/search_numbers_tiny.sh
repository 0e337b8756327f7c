#!/bin/sh
# The record of the search over YaRN's numbers on `tiny`, 256 to 1,024 tokens: searched on windows of the two novels that the
# model was trained on (with the typography of its training), held against PI, NTK, YaRN and Llama 3 at their published numbers
# on windows of a third. By the loss of text: `tiny` cannot copy, so that answers would say nothing of it. A few minutes of
# one core; stopped, the same command goes on. With the word dpe: the same over DPE's divisors, as search-dpe-tiny.json.
set -eu
cd "$(dirname "$0")/.."
data=${ROPEWALK_DATA:-../shared/data}
texts=$(mktemp -d)
trap 'rm -r "$texts"' EXIT
for book in middlemarch bleak_house; do
  .venv/bin/python scripts/typographic.py "$data/$book.txt" "$texts/$book.txt"
done
if [ "${1:-}" = dpe ]; then
  set -- --over dpe --record benchmarks/results/search-dpe-tiny.json
else
  set -- --over yarn --budget 101 --record benchmarks/results/search-numbers-tiny.json
fi
.venv/bin/ropewalk extend search tiny --target 1024 --search-windows 16 "$@" \
  --text "$texts/middlemarch.txt" --text "$texts/bleak_house.txt" --validation "$data/moby_dick.txt" --windows 32
