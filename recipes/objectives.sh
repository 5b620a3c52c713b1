#!/bin/sh
# Causal against masked against masked and next sentence: `small` pretrained three ways on the same text, for as many steps of
# as many tokens, then fine-tuned alike on 50 labels to all.
#
#     recipes/objectives.sh DATA OUT
#
# OUT is that of cls-books-small.sh, whose store is used; it gets the models `causal`, `masked` and `both`, and the study
# `objectives`. PRETRAIN may change the number of steps, for all three.
. "$(dirname "$0")/study.sh"
[ $# -eq 2 ] || fail "name the folder of the data and the folder of cls-books-small.sh: DATA OUT"
data=$1 out=$2
need "$data/cls-books/train.review.spm" "$out/store/store.json"

pretrained objectives.toml "$out/store" "$out/causal" --objective causal
pretrained objectives.toml "$out/store" "$out/masked" --objective masked
pretrained objectives.toml "$out/store" "$out/both" --objective masked+next-sentence
compared cls-books-tuning.toml "$out/objectives" --data "$data/cls-books/train.review.spm" \
    --valid "$data/cls-books/valid.review.spm" --test "$data/cls-books/test.review.spm" \
    --init "causal=$out/causal" --init "masked=$out/masked" --init "both=$out/both" \
    --arms full,scratch:masked --labels "${LABELS:-50,200,800,all}" --least-steps 300
