#!/bin/sh
# `small-fr` on the lab's reviews: pretrained further on text like theirs, taught by six runs of itself and the linear model.
#
#     recipes/base-small-fr.sh TEXTS BASES
#     recipes/cls-books-continued.sh DATA BASES/small-fr OUT
#
# DATA holds cls-books/ (the lab's files) and corpora/ with fr-critique, fr-granddebat, fr-novels and fr-reviews (.txt.xz, one
# document a line). The language model `small` goes on from the base: it reads all four, reviews eight times as often; of cls-books
# the training texts, without their labels, and neither valid nor test. The sweep `rates` has three learning rates with two seeds
# each. The one that does best on valid is that of the study `tuned`, in which students learn what the six and the linear model
# answer, on average, to the training texts and to the reviews of 60 to 1,500 bytes.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the base and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
set -- # the text of the language model
for each in critique granddebat novels reviews; do set -- "$@" "$data/corpora/fr-$each.txt.xz"; done
need "$data/cls-books/train.review.spm" "$base/config.json" "$@"

mkdir -p "$out"
[ -f "$out/cls-books-train.txt" ] || plain "$data/cls-books/train.review.spm" > "$out/cls-books-train.txt"
[ -f "$out/reviews.txt" ] || between 60 1500 "$data/corpora/fr-reviews.txt.xz" "$out/reviews.txt"
headstart tokens "$@" "$out/cls-books-train.txt" --tokenizer "$base" --out "$out/store" \
    --repeat fr-reviews.txt.xz=8 --repeat cls-books-train.txt=8
pretrained cls-books-continued.toml "$out/store" "$out/small" --init "$base"
taught "$data/cls-books" "small=$out/small" "$out" "$out/reviews.txt"
