#!/bin/sh
# The base `small-en`, from raw text to the folder that is given away, in one command:
#
#     recipes/base-small-en.sh TEXTS OUT [OPTION OF headstart pretrain]…
#
# What TEXTS and OUT are is said in base.sh, how it is trained in base-small-en.toml.
files="en-wiki.txt.xz en-novels.txt.xz en-tatoeba.txt.xz en-commonvoice.txt.xz en-sgd-dialogues.txt.xz en-topicalchat.txt.xz"
kind=en pieces=30000
. "$(dirname "$0")/base.sh"
