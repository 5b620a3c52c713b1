#!/bin/sh
# SST-5, frozen and full, from a sentence encoder such as MiniLM-L6 or all-mpnet-base-v2; and the table of learning rate, batch
# size, dropout and epochs that the settings are chosen from.
#
#     headstart import PATH/TO/all-MiniLM-L6-v2 minilm
#     recipes/sst.sh DATA minilm OUT
#
# DATA holds sst/ with train.txt, dev.txt and test.txt (`label ||| text`). OUT gets the sweep `table` (24 runs; RATES, BATCHES,
# DROPOUTS and EPOCHS change it), and the studies `full`, with what did best on dev, and `frozen`. MORE may hold further bases,
# as NAME=FOLDER. SWEEPERS processes work on the table side by side.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the model folder and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
need "$data/sst/train.txt" "$base/config.json"

set -- --data "$data/sst/train.txt" --valid "$data/sst/dev.txt" --test "$data/sst/test.txt"
swept sst.toml "$out/table" "$@" --init "$base" --grid "lr=${RATES:-2e-5,5e-5,1e-4}" --grid "batch_size=${BATCHES:-16,32}" \
    --grid "dropout=${DROPOUTS:-0.1,0.3}" --grid "epochs=${EPOCHS:-2,4}"
set -- "$@" --init "$(basename "$base")=$base"
for each in ${MORE-}; do set -- "$@" --init "$each"; done
compared sst.toml "$out/full" "$@" --arms full --full "lr=$(chosen lr "$out/table")" \
    --full "dropout=$(chosen dropout "$out/table")" --batch-size "$(chosen batch_size "$out/table")" \
    --epochs "$(chosen epochs "$out/table")"
compared sst.toml "$out/frozen" "$@" --arms frozen --epochs 15 --batch-size 64
