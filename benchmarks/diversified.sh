#!/usr/bin/env bash
# recipes/multi30k-en-de-diversified.toml from nothing with one seed: the forward and the backward model side by side, their translations,
# and the model that learns from them, into runs/diversified-SEED.
#   bash benchmarks/diversified.sh SEED [more options of regard train]      REGARD names the program, if it is not .venv/bin/regard
# Several seeds may run side by side on one GPU.
set -euo pipefail
seed=${1:?usage: bash benchmarks/diversified.sh SEED}
shift
regard=${REGARD:-.venv/bin/regard}
data=data/multi30k
out=runs/diversified-$seed
forward=forward-$seed.de
backward=backward-$seed.en

pids=()
$regard train recipes/multi30k-en-de.toml --out "$out/forward" --set seed="$seed" "$@" &
pids+=($!)
$regard train recipes/multi30k-en-de.toml --out "$out/backward" --set seed="$seed" --set data.reverse=true "$@" &
pids+=($!)
for pid in "${pids[@]}"; do wait "$pid"; done

zcat $data/train.en.gz | $regard translate "$out/forward" >"$data/$forward"
zcat $data/train.de.gz | $regard translate "$out/backward" >"$data/$backward"
sources="\"train.en.gz\", \"train.de.gz\", \"train.en.gz\", \"$forward\", \"$backward\", \"train.de.gz\""
$regard train recipes/multi30k-en-de-diversified.toml --out "$out/final" --set seed="$seed" --set "data.train=[$sources]" "$@"
