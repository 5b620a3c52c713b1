#!/bin/sh
# SST-5 by distillation: a large sentence encoder is fine-tuned, and a small one learns what it answers to the training texts and to
# single sentences of film reviews. The settings are those that did best on dev in the tables of recipes/sst.sh.
#
#     headstart import PATH/TO/all-mpnet-base-v2 mpnet
#     headstart import PATH/TO/all-MiniLM-L6-v2 minilm
#     recipes/sst-teacher.sh DATA mpnet minilm OUT
#
# DATA holds sst/ and corpora/en-imdb.txt.xz. OUT gets the run `teacher`, the sentences (one in EVERY of those with 6 to 40 words)
# and the study `student`. TEACHER and STUDY may hold further options of `headstart finetune` and `headstart compare`.
. "$(dirname "$0")/study.sh"
[ $# -eq 4 ] || fail "name the folder of the data, the large model, the small one and the folder to write: DATA LARGE SMALL OUT"
data=$1 large=$2 small=$3 out=$4
need "$data/sst/train.txt" "$large/config.json" "$small/config.json"

mkdir -p "$out"
film_sentences "$data/corpora/en-imdb.txt.xz" "$out/sentences.txt"
set -- --data "$data/sst/train.txt" --valid "$data/sst/dev.txt"
# shellcheck disable=SC2086 # TEACHER is a list of options
headstart finetune "$here/sst.toml" "$@" --init "$large" --lr 8e-5 --batch-size 32 --epochs 3 --out "$out/teacher" --resume \
    ${TEACHER-}
compared sst.toml "$out/student" "$@" --test "$data/sst/test.txt" --init "$(basename "$small")=$small" --arms full --full lr=1e-4 \
    --batch-size 16 --epochs 2 --tune none --seeds 5 --teacher "$out/teacher" --unlabelled "$out/sentences.txt"
