#!/bin/sh
# SST-5, frozen and full, from a sentence encoder such as MiniLM-L6 or all-mpnet-base-v2.
#
#     headstart import PATH/TO/all-MiniLM-L6-v2 minilm
#     recipes/sst.sh DATA minilm OUT
#
# DATA holds sst/ with train.txt, dev.txt and test.txt (`label ||| text`). OUT gets the sweep `rates`, from which the learning
# rate is taken that does best on dev, and the studies `full` and `frozen`. MORE may hold further bases, as NAME=FOLDER.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the model folder and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
need "$data/sst/train.txt" "$base/config.json"
set -- --data "$data/sst/train.txt" --valid "$data/sst/dev.txt" --test "$data/sst/test.txt"

swept sst.toml "$out/rates" "$@" --init "$base" --grid "lr=${RATES:-2e-5,5e-5,1e-4}"
set -- "$@" --init "$(basename "$base")=$base"
for each in ${MORE-}; do set -- "$@" --init "$each"; done
compared sst.toml "$out/full" "$@" --arms full --full "lr=$(chosen lr "$out/rates")"
compared sst.toml "$out/frozen" "$@" --arms frozen --epochs "${FROZEN_EPOCHS:-20}" --batch-size 64
