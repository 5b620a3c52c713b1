#!/bin/sh
# CFIMDB from a sentence encoder that is taught by five runs of itself: what they answer, on average, to the training texts and to
# film reviews without labels. As in cfimdb.sh, dev is what is scored, once, and a tenth of train is kept aside to choose on.
#
#     headstart import PATH/TO/all-mpnet-base-v2 mpnet
#     recipes/cfimdb-self.sh DATA mpnet OUT
#
# DATA holds cfimdb/ and corpora/en-imdb.txt.xz. OUT gets the runs `teachers` (at RATE), the reviews (one in EVERY of those with 200
# to 2,500 bytes) and the study `tuned`.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the model folder and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
need "$data/cfimdb/train.txt" "$base/config.json"

mkdir -p "$out"
[ -f "$out/reviews.txt" ] || between 200 2500 "$data/corpora/en-imdb.txt.xz" "$out/reviews.txt" "${EVERY:-15}"
set -- --data "$data/cfimdb/train.txt" --lr "${RATE:-5e-5}"
swept cfimdb.toml "$out/teachers" "$@" --init "$base" --grid seed=10,11,12,13,14 --keep-models
set -- "$@" --test "$data/cfimdb/dev.txt" --init "$(basename "$base")=$base" --seeds 5
for run in "$out"/teachers/runs/*/; do set -- "$@" --teacher "${run%/}"; done
compared cfimdb.toml "$out/tuned" "$@" --arms full --unlabelled "$out/reviews.txt"
