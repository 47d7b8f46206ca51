#!/bin/sh
# Trains language models, classifiers and a masked language model on the built-in corpus: recipes/tasks.sh OUT [CORPUS].
# CORPUS, if given, holds Multi30k's raw train.en, train.de, val.en and val.de: for each language a language model, and a
# classifier that tells the two languages apart.
set -eu
out=${1:?recipes/tasks.sh OUT [CORPUS]} corpus=${2:-}
mkdir -p "$out"

# Language model of French: sentences as the grammar draws them, repetitions included.
for seed in 1 11 21; do heed microworld --what french --split train --count 500000 --seed $seed; done > "$out/train.fr"
heed microworld --what french --split valid --count 2000 --seed 2 > "$out/valid.fr"
heed microworld --what french --split test --count 5000 --seed 3 > "$out/test.fr"
heed train --task language-model --text "$out/train.fr" --valid-text "$out/valid.fr" --preset small --out "$out/lm" \
    --set model.dropout=0 --set model.attention_dropout=0 --set model.activation_dropout=0 \
    --set training.schedule=cosine --set training.learning_rate=2e-3 --set training.warmup_steps=500 \
    --set training.max_steps=5000 --set training.validate_every=500 --set training.patience=1000
heed evaluate "$out/lm" --text "$out/test.fr"

# Classifier of what `it` refers to, tested on combinations that do not occur in training.
classify() {
    heed train --task classify --valid-pairs "$out/antecedents.valid.tsv" --preset tiny \
        --set training.schedule=cosine --set training.warmup_steps=100 --set training.validate_every=100 \
        --set training.tokens_per_batch=2048 --set training.patience=1000 "$@"
}
heed microworld --what antecedents --split train --count 20000 --seed 1 > "$out/antecedents.tsv"
heed microworld --what antecedents --split valid --count 1000 --seed 2 > "$out/antecedents.valid.tsv"
heed microworld --what antecedents --split test --count 2000 --seed 3 > "$out/antecedents.test.tsv"
classify --pairs "$out/antecedents.tsv" --out "$out/antecedents" \
    --set training.learning_rate=1e-3 --set training.max_steps=1500
heed evaluate "$out/antecedents" --pairs "$out/antecedents.test.tsv"

# The same classifier with few labels, trained from scratch and from a masked language model.
heed microworld --what english --split train --count 400000 --seed 1 > "$out/train.en"
heed microworld --what english --split valid --count 2000 --seed 2 > "$out/valid.en"
heed train --task masked --text "$out/train.en" --valid-text "$out/valid.en" --preset tiny --out "$out/masked" \
    --set model.dropout=0 --set training.schedule=cosine --set training.learning_rate=2e-3 \
    --set training.warmup_steps=500 --set training.max_steps=4000 --set training.tokens_per_batch=8192 \
    --set training.validate_every=1000 --set training.patience=1000
for labels in 50 100 200 400; do
    for seed in 1 2 3; do
        some=$out/antecedents.$labels.$seed.tsv
        heed microworld --what antecedents --split train --count $labels --seed $((100 + seed)) > "$some"
        classify --pairs "$some" --out "$out/from-scratch-$labels-$seed" --set data.vocab_size=1000 \
            --set training.learning_rate=1e-3 --set training.max_steps=600 --set training.seed=$seed
        classify --pairs "$some" --out "$out/from-masked-$labels-$seed" --init-from "$out/masked" \
            --set training.learning_rate=5e-4 --set training.max_steps=600 --set training.seed=$seed
        for start in scratch masked; do
            heed evaluate "$out/from-$start-$labels-$seed" --pairs "$out/antecedents.test.tsv"
        done
    done
done

if [ -n "$corpus" ]; then
    for language in en de; do
        heed train --task language-model --text "$corpus/train.$language" --valid-text "$corpus/val.$language" \
            --preset tiny --out "$out/multi30k-$language" --set model.dropout=0.2 --set training.max_steps=6000 \
            --set training.validate_every=250
        for part in train val; do sed "s/^/$language	/" "$corpus/$part.$language" >> "$out/languages.$part.tsv"; done
    done
    heed train --task classify --pairs "$out/languages.train.tsv" --valid-pairs "$out/languages.val.tsv" --preset tiny \
        --out "$out/languages" --set training.schedule=cosine --set training.learning_rate=1e-3 \
        --set training.warmup_steps=100 --set training.validate_every=100 --set training.tokens_per_batch=2048 \
        --set training.max_steps=500
fi
