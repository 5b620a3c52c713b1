#!/bin/sh
# The lab's experiment: its transformer pretrained on French text, then scratch, frozen and full on its reviews.
#
#     recipes/cls-books-lab.sh DATA OUT
#
# DATA holds cls-books/ (the lab's files) and corpora/ with fr-*.txt.xz, one document a line. Reviews count eight times
# among the rest; of cls-books the training texts are read, without their labels, and neither valid nor test. OUT gets
# the store, the language model `lab`, and two studies: `last` has every run as its last epoch left it, `best` as its
# best epoch on valid did.
. "$(dirname "$0")/study.sh"
[ $# -eq 2 ] || fail "name the folder of the data and the folder to write: DATA OUT"
data=$1 out=$2
need "$data/cls-books/train.review.spm" "$data/corpora/fr-reviews.txt.xz"

mkdir -p "$out"
[ -f "$out/cls-books-train.txt" ] || plain "$data/cls-books/train.review.spm" > "$out/cls-books-train.txt"
headstart tokens "$data"/corpora/fr-*.txt.xz "$out/cls-books-train.txt" --tokenizer "$data/cls-books" --out "$out/store" \
    --repeat fr-reviews.txt.xz=8 --repeat cls-books-train.txt=8
pretrained cls-books-lab.toml "$out/store" "$out/lab"
for weights in last best; do
    compared lab.toml "$out/$weights" --data "$data/cls-books/train.review.spm" --valid "$data/cls-books/valid.review.spm" \
        --test "$data/cls-books/test.review.spm" --tokenizer "$data/cls-books" --init "lab=$out/lab" \
        --frozen lr=1e-3 --weights "$weights"
done
