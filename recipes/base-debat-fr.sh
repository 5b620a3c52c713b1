#!/bin/sh
# The base `debat-fr`, from raw text to the folder that is given away, in one command:
#
#     recipes/base-debat-fr.sh TEXTS OUT [OPTION OF headstart pretrain]…
#
# What TEXTS and OUT are is said in base.sh, how it is trained in base-debat-fr.toml.
files="fr-granddebat.txt.xz"
kind=debat pieces=8000 joined=1000
. "$(dirname "$0")/base.sh"
