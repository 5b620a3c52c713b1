#!/bin/sh
# The table of learning rate, batch size, dropout and epochs on SST-5: 36 runs, the best on dev marked.
#
#     recipes/sst-sweep.sh DATA BASE OUT
#
# Several may work on one table: the same command, started again beside it, takes runs that nobody has.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the model folder and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
need "$data/sst/train.txt" "$base/config.json"
swept sst.toml "$out" --data "$data/sst/train.txt" --valid "$data/sst/dev.txt" --test "$data/sst/test.txt" --init "$base" \
    --grid "lr=${RATES:-2e-5,5e-5,1e-4}" --grid batch_size=16,32,64 --grid dropout=0.1,0.3 --grid "epochs=${EPOCHS:-2,4}"
