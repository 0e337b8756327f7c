#!/bin/sh
# Trains and scores the text classifier on banking77 and on sentence polarity, beside TF-IDF and logistic regression, and
# records scores and figures in benchmarks/results: benchmarks/classify.sh [DATA]
# DATA (default ../shared/data) holds banking77_train.csv and banking77_test.csv (Casanueva et al. 2020, CC-BY-4.0) and
# nltk_sentence_polarity.zip (Pang and Lee 2005, CC-BY-4.0 as NLTK marks it). Stopped, the same command goes on.
# One thread, so that sums round in one order, and so that threads do not wait for each other on a busy machine.
set -eu
export OMP_NUM_THREADS=1
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
DATA=${1:-../shared/data}
record() { # NAME: the run's scores and figure into benchmarks/results
    cp "runs/classify-$1/result.json" "benchmarks/results/classify-$1.json"
    cp "runs/classify-$1/confusion.png" "benchmarks/results/classify-$1.png"
    cp "runs/classify-$1/confusion.svg" "benchmarks/results/classify-$1.svg"
}
mkdir -p runs
echo 'validation_fraction = 0.05' > runs/banking77.toml
printf '%s\n' 'hidden_size = 128' 'heads = 2' 'intermediate_size = 352' 'dropout = 0.3' 'token_dropout = 0.2' > runs/polarity.toml
"$BIN/ropewalk" classify train --data "$DATA/banking77_train.csv" --test "$DATA/banking77_test.csv" \
    --label-column category --settings runs/banking77.toml --out runs/classify-banking77
record banking77
"$BIN/python" benchmarks/sentence_polarity.py "$DATA/nltk_sentence_polarity.zip" runs/sentence-polarity
"$BIN/ropewalk" classify train --data runs/sentence-polarity/train.csv --test runs/sentence-polarity/test.csv \
    --settings runs/polarity.toml --epochs 8 --out runs/classify-polarity
record polarity
