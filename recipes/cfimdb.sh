#!/bin/sh
# CFIMDB, frozen and full, from a sentence encoder. The labels of its test file are dummies, so dev is what is scored: a tenth of
# train is kept aside to choose on, and dev is read once. Then the predictions that the assignment wants, for dev and test.
#
#     recipes/cfimdb.sh DATA BASE OUT
#
# DATA holds cfimdb/ with train.txt, dev.txt and test.txt. OUT gets the studies `full` and `frozen` and the run `handed-in`. MORE may
# hold further bases, as NAME=FOLDER.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the model folder and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
need "$data/cfimdb/train.txt" "$base/config.json"

set -- --data "$data/cfimdb/train.txt" --test "$data/cfimdb/dev.txt" --init "$(basename "$base")=$base"
for each in ${MORE-}; do set -- "$@" --init "$each"; done
compared cfimdb.toml "$out/full" "$@" --arms full
compared cfimdb.toml "$out/frozen" "$@" --arms frozen --epochs 15
# shellcheck disable=SC2086 # TUNE is a list of options
headstart finetune "$here/cfimdb.toml" --data "$data/cfimdb/train.txt" --valid "$data/cfimdb/dev.txt" \
    --test "$data/cfimdb/test.txt" --init "$base" --prediction-files --out "$out/handed-in" --resume ${TUNE-}
