#!/bin/sh
# Three seeds of the best recipe: recipes/multi30k-best.sh CORPUS OUT, where CORPUS holds train.en, train.de, val.en, val.de.
set -eu
corpus=$1 out=$2
shift 2
recipe=${0%.sh}.toml
for seed in 1 2 3; do
    heed train --source "$corpus/train.en" --target "$corpus/train.de" \
        --valid-source "$corpus/val.en" --valid-target "$corpus/val.de" \
        --preset tiny --config "$recipe" --set training.seed=$seed --out "$out/s$seed" "$@"
done
