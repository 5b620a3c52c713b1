#!/bin/sh
# `small-fr` as it is on the lab's reviews, taught by six runs of itself and the linear model: no text but the lab's own that is not
# openly licensed.
#
#     recipes/base-small-fr.sh TEXTS BASES
#     recipes/cls-books-open.sh DATA BASES/small-fr OUT
#
# As cls-books-continued.sh, but nothing is pretrained, and the texts without labels are answers of the Grand Débat of 60 to 1,500
# bytes, one in twenty.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the base and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
need "$data/cls-books/train.review.spm" "$base/config.json" "$data/corpora/fr-granddebat.txt.xz"

mkdir -p "$out"
[ -f "$out/answers.txt" ] || between 60 1500 "$data/corpora/fr-granddebat.txt.xz" "$out/answers.txt" 20
taught "$data/cls-books" "small-fr=$base" "$out" "$out/answers.txt"
