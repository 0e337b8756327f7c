#!/usr/bin/env bash
# What examples/verify/workflow.yml does, as a script: golden predictions of a model, a right server, and a wrong one.
#   examples/verify/golden.sh MODEL.gguf
set -euo pipefail
here=$(dirname "$0")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT

model=${1:?MODEL.gguf}
serve() { # options...
  : >"$work/address"
  python "$here/serve_gguf.py" "$model" "$@" >"$work/address" &
  server=$!
  for _ in $(seq 300); do
    [ -s "$work/address" ] && return
    kill -0 "$server" # ends the script if the server has died
    sleep 0.2
  done
  echo "the server does not start" >&2
  exit 1
}
stop() {
  kill "$server"
  wait "$server" || true
  server=
}

echo "== once, with the weights"
ropewalk verify "$model" --write "$work/golden.json"

echo "== in CI, without the weights: a right server"
serve
ropewalk verify --golden "$work/golden.json" --engine "$(cat "$work/address")"
GOLDEN="$work/golden.json" ENGINE="$(cat "$work/address")" python -m pytest -q -p no:cacheprovider "$here/test_engine.py"
stop

echo "== a server that was started with a wrong theta"
serve --option rope_freq_base=123456
status=0
ropewalk verify --golden "$work/golden.json" --engine "$(cat "$work/address")" --json "$work/verify.json" || status=$?
stop
[ "$status" = 1 ] || { echo "expected status 1, got $status" >&2; exit 1; }
