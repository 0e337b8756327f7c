#!/bin/sh
# Two records of the search over factors on `tiny`, each against every analytic method on text that the search did not see:
# searched on the two novels that the model was trained on (with the typography of its training), held out a third; and
# searched on the first half of that third novel, held out its second half. About 10 minutes of one core; stopped, the
# same command goes on.
set -eu
cd "$(dirname "$0")/.."
data=${ROPEWALK_DATA:-../shared/data}
texts=$(mktemp -d)
trap 'rm -r "$texts"' EXIT
for book in middlemarch bleak_house; do
  .venv/bin/python scripts/typographic.py "$data/$book.txt" "$texts/$book.txt"
done
lines=$(wc -l < "$data/moby_dick.txt")
head -n $((lines / 2)) "$data/moby_dick.txt" > "$texts/moby_dick_first_half.txt"
tail -n +$((lines / 2 + 1)) "$data/moby_dick.txt" > "$texts/moby_dick_second_half.txt"
.venv/bin/ropewalk extend search tiny --target 1024 --over factors --within inf --budget 200 --search-windows 4 \
  --text "$texts/middlemarch.txt" --text "$texts/bleak_house.txt" --validation "$data/moby_dick.txt" --windows 16 \
  --record benchmarks/results/search-tiny.json
.venv/bin/ropewalk extend search tiny --target 1024 --over factors --within inf --budget 120 --search-windows 8 \
  --text "$texts/moby_dick_first_half.txt" --validation "$texts/moby_dick_second_half.txt" --windows 16 \
  --record benchmarks/results/search-tiny-one-book.json
