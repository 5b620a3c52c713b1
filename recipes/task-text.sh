#!/bin/sh
# Masked pretraining gone on with on text like the task's own, before fine-tuning: film reviews, and the training texts of SST and
# CFIMDB, which count ten times. No dev and no test text is read.
#
#     recipes/task-text.sh DATA BASE OUT
#     MORE="reviews=OUT/reviews" recipes/sst.sh DATA BASE OUT/sst
#     MORE="reviews=OUT/reviews" recipes/cfimdb.sh DATA BASE OUT/cfimdb
#
# DATA holds sst/, cfimdb/ and corpora/en-imdb.txt.xz. OUT gets the store and the model `reviews`.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the model folder and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
need "$data/sst/train.txt" "$data/cfimdb/train.txt" "$data/corpora/en-imdb.txt.xz" "$base/config.json"

mkdir -p "$out"
for set in sst cfimdb; do
    [ -f "$out/$set-train.txt" ] || unlabelled "$data/$set/train.txt" > "$out/$set-train.txt"
done
headstart tokens "$data/corpora/en-imdb.txt.xz" "$out/sst-train.txt" "$out/cfimdb-train.txt" --tokenizer "$base" \
    --out "$out/store" --repeat sst-train.txt=10 --repeat cfimdb-train.txt=10
pretrained task-text.toml "$out/store" "$out/reviews" --init "$base"
