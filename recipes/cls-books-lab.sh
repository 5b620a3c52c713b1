#!/bin/sh
# The lab's experiment: its transformer pretrained on French text, then scratch, frozen and full on its reviews.
#
#     recipes/cls-books-lab.sh DATA OUT
#
# DATA holds cls-books/ (the lab's files) and corpora/ with fr-critique, fr-europarl, fr-novels and fr-reviews (.txt.xz, one
# document a line; others are not read). The language model reads all four, reviews eight times as often (`text`), and then
# reviews alone (`lab`); of cls-books the training texts, without their labels, and neither valid nor test. That the last
# stretch has 500 steps was chosen on valid among 0, 500 and 1,500, by three seeds. Fine-tuning is the lab's, without
# dropout. OUT gets the two, their stores, and two studies: `last` has every run as its last epoch left it, `best` as its
# best epoch on valid did.
. "$(dirname "$0")/study.sh"
[ $# -eq 2 ] || fail "name the folder of the data and the folder to write: DATA OUT"
data=$1 out=$2
set -- # the text of the language model
for each in critique europarl novels reviews; do set -- "$@" "$data/corpora/fr-$each.txt.xz"; done
need "$data/cls-books/train.review.spm" "$@"

mkdir -p "$out"
[ -f "$out/cls-books-train.txt" ] || plain "$data/cls-books/train.review.spm" > "$out/cls-books-train.txt"
headstart tokens "$@" "$out/cls-books-train.txt" --tokenizer "$data/cls-books" --out "$out/store" \
    --repeat fr-reviews.txt.xz=8 --repeat cls-books-train.txt=8
headstart tokens "$data/corpora/fr-reviews.txt.xz" "$out/cls-books-train.txt" --tokenizer "$data/cls-books" \
    --out "$out/reviews"
pretrained cls-books-lab.toml "$out/store" "$out/text"
pretrained cls-books-reviews.toml "$out/reviews" "$out/lab" --init "$out/text" --objective causal --batch-size 64 \
    --optimizer muon
for weights in last best; do
    compared lab.toml "$out/$weights" --data "$data/cls-books/train.review.spm" --valid "$data/cls-books/valid.review.spm" \
        --test "$data/cls-books/test.review.spm" --tokenizer "$data/cls-books" --init "lab=$out/lab" \
        --frozen lr=1e-3 --backbone-dropout 0 --weights "$weights"
done
