#!/bin/sh
# SST-5 from a sentence encoder that is taught by six runs of itself: what they answer, on average, to the training texts and to single
# sentences of film reviews.
#
#     headstart import PATH/TO/all-mpnet-base-v2 mpnet
#     recipes/sst-self.sh DATA mpnet OUT
#
# DATA holds sst/ and corpora/en-imdb.txt.xz. OUT gets the sweep `rates` (RATES, with three seeds each; the rate that does best on dev
# is that of the study), the sentences (one in EVERY of those with 6 to 40 words) and the study `tuned`.
. "$(dirname "$0")/study.sh"
[ $# -eq 3 ] || fail "name the folder of the data, the model folder and the folder to write: DATA BASE OUT"
data=$1 base=$2 out=$3
need "$data/sst/train.txt" "$base/config.json"

mkdir -p "$out"
film_sentences "$data/corpora/en-imdb.txt.xz" "$out/sentences.txt"
set -- --data "$data/sst/train.txt" --valid "$data/sst/dev.txt" --batch-size "${BATCH:-32}" --epochs "${EPOCHS:-3}"
swept sst.toml "$out/rates" "$@" --init "$base" --grid "lr=${RATES:-8e-5,1.2e-4}" --grid seed=10,11,12 --keep-models
set -- "$@" --test "$data/sst/test.txt" --init "$(basename "$base")=$base" --full "lr=$(chosen lr "$out/rates")" --seeds 5
for run in "$out"/rates/runs/*/; do set -- "$@" --teacher "${run%/}"; done
compared sst.toml "$out/tuned" "$@" --arms full --unlabelled "$out/sentences.txt"
