#!/bin/sh
# Train three seeds of a recipe: recipes/multi30k.sh tiny|best CORPUS OUT. CORPUS holds train.en, train.de, val.en, val.de.
set -eu
usage="recipes/multi30k.sh tiny|best CORPUS OUT"
recipe=$(dirname "$0")/multi30k-${1:?$usage}.toml corpus=${2:?$usage} out=${3:?$usage}
shift 3
for seed in 1 2 3; do
    heed train --source "$corpus/train.en" --target "$corpus/train.de" \
        --valid-source "$corpus/val.en" --valid-target "$corpus/val.de" \
        --preset tiny --config "$recipe" --set training.seed=$seed --out "$out/s$seed" "$@"
done
