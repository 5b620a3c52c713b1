#!/bin/sh
# The base `small-fr`, from raw text to the folder that is given away, in one command:
#
#     recipes/base-small-fr.sh TEXTS OUT [OPTION OF headstart pretrain]…
#
# What TEXTS and OUT are is said in base.sh, how it is trained in base-small-fr.toml.
files="fr-europarl.txt.xz fr-novels.txt.xz"
kind=fr pieces=50001
. "$(dirname "$0")/base.sh"
