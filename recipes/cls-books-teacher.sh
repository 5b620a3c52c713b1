#!/bin/sh
# The lab's model with six teachers, on two CPU cores: some 21,000 reviews without labels are what it learns from.
#
#     recipes/cls-books-teacher.sh DATA OUT
#
# DATA holds cls-books/ (the lab's files) and corpora/fr-reviews.txt.xz. Two language models read these reviews and the training
# texts: the lab's (`lab`), and the base that ships, `debat-fr` (`debat`). Three classifiers are fine-tuned on the second
# (`teacher-0` to `teacher-2`) and two on the first (`lab-teacher-10` and `lab-teacher-11`). Students from the first learn what these
# and the linear model answer, on average, to the training texts and to the reviews of 60 to 1,500 bytes; the study is `student`.
# LAB names another language model to start from, such as the `lab` of cls-books-lab.sh, and TEACHERS other classifiers. TEACHER may
# hold further options of `headstart finetune`.
. "$(dirname "$0")/study.sh"
[ $# -eq 2 ] || fail "name the folder of the data and the folder to write: DATA OUT"
data=$1 out=$2
books=$data/cls-books reviews=$data/corpora/fr-reviews.txt.xz
need "$books/train.review.spm" "$reviews"

mkdir -p "$out"
[ -f "$out/reviews.txt" ] || between 60 1500 "$reviews" "$out/reviews.txt"
[ -f "$out/cls-books-train.txt" ] || plain "$books/train.review.spm" > "$out/cls-books-train.txt"
stored() { # TOKENIZER STORE
    headstart tokens "$reviews" "$out/cls-books-train.txt" --tokenizer "$1" --out "$2"
}
if [ -z "${LAB-}" ]; then
    LAB=$out/lab
    stored "$books" "$out/lab-store"
    pretrained cls-books-teacher.toml "$out/lab-store" "$LAB"
fi
set -- --data "$books/train.review.spm" --valid "$books/valid.review.spm"
if [ -z "${TEACHERS-}" ]; then
    stored debat-fr "$out/debat-store"
    pretrained cls-books-reviews.toml "$out/debat-store" "$out/debat" --init debat-fr --objective causal+masked --mask-rate 0.3 \
        --window 256 --batch-size 64 --steps 1200 --optimizer muon --lr 1e-3 --warmup 0.05
    for seed in 0 1 2; do
        # shellcheck disable=SC2086 # TEACHER is a list of options
        headstart finetune "$here/cls-books-tuning.toml" "$@" --mode full --init "$out/debat" --window 512 --lr 2e-4 --seed "$seed" \
            --out "$out/teacher-$seed" --resume ${TEACHER-}
    done
    for seed in 10 11; do # as lab.toml and the students, but for the test file
        # shellcheck disable=SC2086
        headstart finetune "$@" --tokenizer "$books" --mode full --init "$LAB" --pool last --dropout 0 --epochs 15 --batch-size 16 \
            --lr 3e-4 --schedule linear --warmup 0.05 --weight-decay 0 --clip 0.5 --weights last --seed "$seed" \
            --out "$out/lab-teacher-$seed" --resume ${TEACHER-}
    done
    TEACHERS="$out/teacher-0 $out/teacher-1 $out/teacher-2 $out/lab-teacher-10 $out/lab-teacher-11"
fi
set -- "$@" --test "$books/test.review.spm" --tokenizer "$books" --unlabelled "$out/reviews.txt" --teacher tfidf
for each in $TEACHERS; do set -- "$@" --teacher "$each"; done
compared lab.toml "$out/student" "$@" --batch-size 16 --lr 3e-4 --schedule linear --warmup 0.05 --weights last \
    --init "lab=$LAB" --arms scratch,full --seeds 5
