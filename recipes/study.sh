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

command -v headstart > /dev/null || fail "there is no command headstart: run make setup"
