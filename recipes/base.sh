# From raw text to a base that others can start from: tokenizer, tokens, pretraining, and the weights given away in bf16.
# What the scripts base-NAME.sh share; each sets what it reads and ends with `. base.sh`. It is sourced, not run.
#
#     recipes/base-NAME.sh TEXTS OUT [OPTION OF headstart pretrain]…
#
# TEXTS is a folder with the `files`, one document a line. OUT gets KIND-tokenizer/ and KIND-store/, which bases of the same
# text share, NAME-run/ and NAME/, the base itself. What is there already is not made again, and what was interrupted goes
# on. PIECES is the size of the tokenizer, where it is to be another than the recipe's. With `joined`, short documents are joined
# with the next ones to so many bytes, in KIND-text/. `repeat` has the files that are read more than once a pass, as NAME=2.
set -eu

name=$(basename "$0" .sh) # base-lab-fr
recipe=$(cd "$(dirname "$0")" && pwd)/$name.toml
fail() {
    echo "$name: $1" >&2
    exit 2
}

[ $# -ge 2 ] || fail "name the folder of the texts and the folder to write: TEXTS OUT"
texts=$1 out=$2
shift 2
if [ "${1-}" = -- ]; then shift; fi

for file in $files; do
    [ -f "$texts/$file" ] || fail "there is no file $texts/$file"
done
PATH=$(dirname "$recipe")/../.venv/bin:$PATH # where `make setup` has put it
command -v headstart > /dev/null || fail "there is no command headstart: run make setup"
made=$out/${name#base-}
[ ! -e "$made" ] || fail "$made exists: name another folder, or remove it"

read_texts() { # COMMAND…: run it with the files of text after it
    for file in $files; do set -- "$@" "$texts/$file"; done
    "$@"
}

if [ -n "${joined-}" ]; then
    command -v xz > /dev/null || fail "there is no command xz"
    plain=
    for file in $files; do
        text=$out/$kind-text/${file%.xz}
        plain="$plain ${file%.xz}"
        [ ! -f "$text" ] || continue
        xz -t "$texts/$file" || fail "a file of text is damaged: take another copy" # a pipe would hide it
        mkdir -p "$out/$kind-text"
        xz -dc "$texts/$file" | LC_ALL=C awk -v most="$joined" '
            { text = text (text == "" ? "" : " ") $0 }
            length(text) >= most { print text; text = "" }
            END { if (text != "") print text }' > "$text.unfinished"
        mv "$text.unfinished" "$text"
    done
    texts=$out/$kind-text files=$plain
fi
[ -f "$out/$kind-tokenizer/tokenizer.json" ] ||
    read_texts headstart tokenizer train --kind unigram --size "${PIECES:-$pieces}" --out "$out/$kind-tokenizer"
repeated=
for each in ${repeat-}; do repeated="$repeated --repeat $each"; done
# shellcheck disable=SC2086 # options
read_texts headstart tokens $repeated --tokenizer "$out/$kind-tokenizer" --out "$out/$kind-store"
headstart pretrain "$recipe" --store "$out/$kind-store" --out "$made-run" --resume "$@"
headstart export "$made-run" "$made" --to base
