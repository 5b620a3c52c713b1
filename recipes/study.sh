# What the scripts of the experiments share; each begins with `. study.sh`. It is sourced, not run.
#
# Every step that is done is not done again, and one that was interrupted goes on. PRETRAIN and STUDY may hold further
# options of `headstart pretrain` and `headstart compare`, such as STUDY="--jobs 8 --seeds 3".
set -eu

name=$(basename "$0" .sh)
here=$(cd "$(dirname "$0")" && pwd)
PATH=$here/../.venv/bin:$PATH # where `make setup` has put it

fail() {
    echo "$name: $1" >&2
    exit 2
}

need() { # FILE OR FOLDER…
    for each in "$@"; do [ -e "$each" ] || fail "there is no $each"; done
}

plain() { # FILE OF THE LAB > TEXT: pieces put together again, one review a line
    sed 's/ //g; s/▁/ /g; s/^ //' "$1"
}

unlabelled() { # FILE WITH `label ||| text` > TEXT
    sed 's/^[^|]*||| //' "$1"
}

between() { # LEAST MOST FILE.xz OUT [EVERY]: its lines of so many bytes, or one in EVERY of them
    xz -t "$3" || fail "a file of text is damaged: take another copy" # a pipe would hide it
    xz -dc "$3" | LC_ALL=C awk -v least="$1" -v most="$2" -v every="${5:-1}" '
        length($0) >= least && length($0) <= most && ++found % every == 0' > "$4.unfinished"
    mv "$4.unfinished" "$4"
}

film_sentences() { # FILE.xz OUT: one in EVERY of the sentences of 6 to 40 words, unless they are there
    [ ! -f "$2" ] || return 0
    need "$1"
    xz -dc "$1" | awk -v every="${EVERY:-47}" '{
        gsub(/<br *\/>/, " ")
        gsub(/[.!?] +/, "&\n")
        count = split($0, sentences, " *\n")
        for (k = 1; k <= count; k++) {
            words = split(sentences[k], unused, " ")
            if (words >= 6 && words <= 40 && ++found % every == 0) print sentences[k]
        }
    }' > "$2.unfinished"
    mv "$2.unfinished" "$2"
}

pretrained() { # RECIPE STORE OUT [OPTION]…: a language model; PRETRAIN has further options
    recipe=$1 store=$2 run=$3
    shift 3
    # shellcheck disable=SC2086 # PRETRAIN is a list of options
    headstart pretrain "$here/$recipe" --store "$store" --out "$run" --resume "$@" ${PRETRAIN-}
}

compared() { # RECIPE OUT [OPTION]…: a comparison; STUDY has further options
    recipe=$1 study=$2
    shift 2
    # shellcheck disable=SC2086
    headstart compare "$here/$recipe" --out "$study" "$@" ${STUDY-}
}

swept() { # RECIPE OUT [OPTION]…: a grid on valid, by SWEEPERS processes side by side; SWEEP has further options
    recipe=$1 study=$2
    shift 2
    for _ in $(seq 2 "${SWEEPERS:-1}"); do # each takes runs that nobody has
        # shellcheck disable=SC2086
        headstart sweep "$here/$recipe" --out "$study" --resume --quiet "$@" ${SWEEP-} &
    done
    # shellcheck disable=SC2086
    headstart sweep "$here/$recipe" --out "$study" --resume "$@" ${SWEEP-}
    wait
}

chosen() { # SETTING SWEEP: the value that did best on valid
    python3 -c 'import json, sys; print(next(t for t in json.load(open(sys.argv[2]))["trials"] if t["best"])["settings"][sys.argv[1]])' \
        "$1" "$2/sweep.json"
}

taught() { # BOOKS NAME=BASE OUT UNLABELLED: a sweep of rates on the lab's reviews, and students of its runs in a comparison
    books=$1 base=$2 out=$3 texts=$4
    set -- --data "$books/train.review.spm" --valid "$books/valid.review.spm"
    swept cls-books-tuning.toml "$out/rates" "$@" --init "${base#*=}" --grid "lr=${RATES:-5e-5,1e-4,2e-4}" --grid seed=10,11 \
        --keep-models
    set -- "$@" --test "$books/test.review.spm" --init "$base" --full "lr=$(chosen lr "$out/rates")" --seeds 5
    for run in "$out"/rates/runs/*/; do set -- "$@" --teacher "${run%/}"; done
    compared cls-books-tuning.toml "$out/tuned" "$@" --arms scratch,full --teacher tfidf --unlabelled "$texts"
}

command -v headstart > /dev/null || fail "there is no command headstart: run make setup"
