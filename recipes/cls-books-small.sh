#!/bin/sh
# `small`, masked (29.9 million parameters), pretrained on French text, then scratch, frozen and full on the lab's reviews,
# and together with the linear model.
#
#     recipes/cls-books-small.sh DATA OUT
#
# DATA is that of cls-books-lab.sh, and the same text is read, reviews eight times as often, then reviews alone; the lab's
# pieces have no mask, so a tokenizer is trained. OUT gets `tokenizer`, the stores, the language models `text` and `small`
# (after the last stretch), the sweep `rates`, from which the learning rate is taken that does best on valid, and the
# study `tuned`.
. "$(dirname "$0")/study.sh"
[ $# -eq 2 ] || fail "name the folder of the data and the folder to write: DATA OUT"
data=$1 out=$2
set -- # the text of the language model
for each in critique europarl novels reviews; do set -- "$@" "$data/corpora/fr-$each.txt.xz"; done
need "$data/cls-books/train.review.spm" "$@"

mkdir -p "$out"
[ -f "$out/cls-books-train.txt" ] || plain "$data/cls-books/train.review.spm" > "$out/cls-books-train.txt"
[ -f "$out/tokenizer/tokenizer.json" ] || headstart tokenizer train "$@" "$out/cls-books-train.txt" \
    --kind unigram --size "${PIECES:-50001}" --out "$out/tokenizer"
headstart tokens "$@" "$out/cls-books-train.txt" --tokenizer "$out/tokenizer" --out "$out/store" \
    --repeat fr-reviews.txt.xz=8 --repeat cls-books-train.txt=8
headstart tokens "$data/corpora/fr-reviews.txt.xz" "$out/cls-books-train.txt" --tokenizer "$out/tokenizer" \
    --out "$out/reviews"
pretrained cls-books-small.toml "$out/store" "$out/text"
pretrained cls-books-reviews.toml "$out/reviews" "$out/small" --init "$out/text" --objective masked --mask-rate 0.3 \
    --batch-size 128 --warmup 0.05
set -- --data "$data/cls-books/train.review.spm" --valid "$data/cls-books/valid.review.spm" --test "$data/cls-books/test.review.spm"
swept cls-books-tuning.toml "$out/rates" "$@" --init "$out/small" --grid "lr=${RATES:-5e-5,1e-4,2e-4}"
compared cls-books-tuning.toml "$out/tuned" "$@" --init "small=$out/small" --full "lr=$(chosen lr "$out/rates")" --ensemble
