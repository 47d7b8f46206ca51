#!/bin/sh
# Train en-de and de-en on raw, cased text: recipes/multi30k-raw.sh CORPUS OUT. CORPUS holds train.en, train.de, val.en, val.de.
set -eu
usage="recipes/multi30k-raw.sh CORPUS OUT"
corpus=${1:?$usage} out=${2:?$usage}
shift 2
recipe=$(dirname "$0")/multi30k-best.toml
for direction in "en de" "de en"; do
    from=${direction% *} to=${direction#* }
    heed train --source "$corpus/train.$from" --target "$corpus/train.$to" \
        --valid-source "$corpus/val.$from" --valid-target "$corpus/val.$to" \
        --preset tiny --config "$recipe" --set data.source_language="$from" --set data.target_language="$to" \
        --out "$out/$from-$to" "$@"
done
