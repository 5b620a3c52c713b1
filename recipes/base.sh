#!/bin/sh
# From raw text to a base that others can start from: tokenizer, tokens, pretraining, and the weights given away in bf16.
#
#     recipes/base.sh RECIPE.toml TEXTS OUT [OPTION OF headstart pretrain]…
#
# TEXTS is a folder with fr-europarl.txt.xz and fr-novels.txt.xz, one document a line. OUT gets tokenizer/, store/,
# NAME-run/ and NAME/, the base itself; NAME is that of the recipe. What is there already is not made again, and what was
# interrupted goes on. PIECES is the size of the tokenizer, 50001 unless it is set.
set -eu

name=$(basename "${1-}" .toml) # base-lab-fr
fail() {
    echo "$name: $1" >&2
    exit 2
}

[ $# -ge 3 ] || fail "name the folder of the texts and the folder to write: TEXTS OUT"
recipe=$1 texts=$2 out=$3
shift 3
if [ "${1-}" = -- ]; then shift; fi

europarl=$texts/fr-europarl.txt.xz novels=$texts/fr-novels.txt.xz
for file in "$recipe" "$europarl" "$novels"; do
    [ -f "$file" ] || fail "there is no file $file"
done
PATH=$(dirname "$recipe")/../.venv/bin:$PATH # where `make setup` has put it
command -v headstart > /dev/null || fail "there is no command headstart: run make setup"
made=$out/${name#base-}
[ ! -e "$made" ] || fail "$made exists: name another folder, or remove it"

[ -f "$out/tokenizer/tokenizer.json" ] ||
    headstart tokenizer train "$europarl" "$novels" --kind unigram --size "${PIECES:-50001}" --out "$out/tokenizer"
headstart tokens "$europarl" "$novels" --tokenizer "$out/tokenizer" --out "$out/store"
headstart pretrain "$recipe" --store "$out/store" --out "$made-run" --resume "$@"
headstart export "$made-run" "$made" --to base
