#!/bin/sh
# Distil three teachers, and three of the opposite direction, into students of both sizes, on a GPU:
# recipes/multi30k-distil.sh CORPUS OUT. CORPUS holds train.en, train.de, val.en, val.de.
# Models of one stage are trained at the same time and share the GPU (best with CUDA MPS). Run it again to continue
# after a failure.
set -eu
usage="recipes/multi30k-distil.sh CORPUS OUT"
corpus=${1:?$usage} out=${2:?$usage}
shift 2
recipes=$(dirname "$0") seeds="1 2 3" jobs=""
mkdir -p "$out"

# Batches four times as large as in the other recipes, so that fewer steps are enough.
batches="--set training.tokens_per_batch=16384 --set training.warmup_steps=400 --set training.validate_every=250
    --set training.checkpoint_every=250"
best="--config $recipes/multi30k-best.toml --set training.learning_rate=0.004"
tiny="--config $recipes/multi30k-tiny.toml --set training.learning_rate=0.01 --set training.max_steps=6000"
teacher="$batches --set training.max_steps=2500"
student="$batches --set training.max_steps=4000 --set training.r_drop=3.0"

background() { # NAME COMMAND…: its output goes to OUT/NAME.log
    log=$out/$1.log
    shift
    "$@" > "$log" 2>&1 &
    jobs="$jobs $!"
}

finish() { # waits for all of them
    for job in $jobs; do wait "$job"; done
    jobs=""
}

for seed in $seeds; do
    for direction in "en de" "de en"; do
        from=${direction% *} to=${direction#* }
        background "$from-$to-s$seed" heed train --source "$corpus/train.$from" --target "$corpus/train.$to" \
            --valid-source "$corpus/val.$from" --valid-target "$corpus/val.$to" --preset tiny $best \
            --set data.source_language="$from" --set data.target_language="$to" $teacher --set training.seed="$seed" --out "$out/$from-$to-s$seed" --resume "$@"
    done
done
finish

# The first student's run translates the text, and the others begin when it begins to train.
first=$out/student-best-s1
background student-best-s1 heed distil "$out/en-de-s1" "$out/en-de-s2" "$out/en-de-s3" \
    --reverse "$out/de-en-s1" --reverse "$out/de-en-s2" --reverse "$out/de-en-s3" \
    --preset tiny $best $student \
    --out "$first" --resume "$@"
until [ -e "$first/journal.jsonl" ]; do
    kill -0 ${jobs} 2> /dev/null || { cat "$out/student-best-s1.log" >&2; exit 1; }
    sleep 1
done
text=""
for name in training-1 translated-1 reverse-1-1 reverse-2-1 reverse-3-1; do
    text="$text --pairs $first/distilled/$name.jsonl"
done
for seed in $seeds; do
    for size in tiny best; do
        if [ $size = best ]; then settings="$best $student"; else settings="$student $tiny"; fi
        [ "$size-s$seed" = best-s1 ] || background "student-$size-s$seed" heed train $text \
            --valid-pairs "$first/distilled/validation-1.jsonl" --preset tiny $settings \
            --set training.seed="$seed" --out "$out/student-$size-s$seed" --resume "$@"
    done
done
finish

# The length penalty of the students is chosen on the validation text: the teachers' makes some of them repeat themselves.
penalties="0.6 1.0 1.4"
for size in tiny best; do
    for seed in $seeds; do
        for penalty in $penalties; do
            background "student-$size-s$seed-penalty-$penalty" heed evaluate "$out/student-$size-s$seed" --no-card \
                --source "$corpus/val.en" --reference "$corpus/val.de" --tokenize none \
                --set search.length_penalty="$penalty"
        done
    done
done
finish
for size in tiny best; do
    for penalty in $penalties; do
        for seed in $seeds; do
            bleu=$(sed -n 's/^ *BLEU ↑ *\([0-9.]*\).*/\1/p' "$out/student-$size-s$seed-penalty-$penalty.log")
            echo "student-$size-s$seed, length penalty $penalty: BLEU $bleu on the validation text"
        done
    done
done
