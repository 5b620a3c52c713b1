#!/bin/sh
# The lab's model with the linear model as its teacher, on two CPU cores: some 21,000 reviews without labels are what it learns from.
#
#     recipes/cls-books-teacher.sh DATA OUT
#
# DATA holds cls-books/ (the lab's files) and corpora/fr-reviews.txt.xz. The language model reads these reviews and the training
# texts (`lab`). Two students learn what the linear model answers to the training texts and to the reviews of 60 to 1,500 bytes
# (`first-0` and `first-1`); those of the study `student` learn the mean of the linear model and of these two. LAB names another
# language model to start from, such as the `lab` of cls-books-lab.sh. TEACHER may hold further options of `headstart finetune`.
. "$(dirname "$0")/study.sh"
[ $# -eq 2 ] || fail "name the folder of the data and the folder to write: DATA OUT"
data=$1 out=$2
books=$data/cls-books reviews=$data/corpora/fr-reviews.txt.xz
need "$books/train.review.spm" "$reviews"

mkdir -p "$out"
if [ ! -f "$out/reviews.txt" ]; then
    xz -dc "$reviews" | LC_ALL=C awk 'length($0) >= 60 && length($0) <= 1500' > "$out/reviews.part"
    mv "$out/reviews.part" "$out/reviews.txt"
fi
if [ -z "${LAB-}" ]; then
    LAB=$out/lab
    [ -f "$out/cls-books-train.txt" ] || plain "$books/train.review.spm" > "$out/cls-books-train.txt"
    headstart tokens "$reviews" "$out/cls-books-train.txt" --tokenizer "$books" --out "$out/store"
    pretrained cls-books-teacher.toml "$out/store" "$LAB"
fi
set -- --data "$books/train.review.spm" --valid "$books/valid.review.spm" --test "$books/test.review.spm" --tokenizer "$books" \
    --unlabelled "$out/reviews.txt" --batch-size 16 --lr 3e-4 --schedule linear --warmup 0.05 --weights last
for seed in 0 1; do
    # shellcheck disable=SC2086 # TEACHER is a list of options
    headstart finetune "$here/lab.toml" "$@" --mode full --init "$LAB" --teacher tfidf --seed "$seed" --out "$out/first-$seed" \
        --resume ${TEACHER-}
done
compared lab.toml "$out/student" "$@" --init "lab=$LAB" --arms scratch,full --teacher tfidf --teacher "$out/first-0" \
    --teacher "$out/first-1" --seeds 5
