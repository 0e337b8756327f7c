#!/bin/sh
# The doctor on SmolLM2-135M: benchmarks/results/doctor-smollm2-16k.json and the figure of the README, from two packaged
# books. About 15 minutes on two idle cores (40 for the record, on a busy machine); the same command resumes.
#
#     benchmarks/doctor_smollm2.sh MODEL.gguf [OPTIONS]
set -eu
MODEL=$1; shift
RECORD=benchmarks/results/doctor-smollm2-16k.json
ropewalk doctor "$MODEL" --target 16384 --methods yarn,dca --windows 2 --minutes 60 --resume --json "$RECORD" "$@"
python scripts/front_figure.py "$RECORD"
