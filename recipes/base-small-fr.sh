#!/bin/sh
# The base `small-fr`, from raw text to the folder that is given away, in one command:
#
#     recipes/base-small-fr.sh TEXTS OUT [OPTION OF headstart pretrain]…
#
# What TEXTS and OUT are is said in base.sh, how it is trained in base-small-fr.toml. All of the text is openly licensed. Parliament
# speeches are half of it, so the others are read twice as often.
files="fr-europarl.txt.xz fr-granddebat.txt.xz fr-novels.txt.xz fr-servicepublic.txt.xz fr-docs-ccby.txt.xz fr-tatoeba.txt.xz
    fr-commonvoice.txt.xz fr-consultations.txt.xz"
repeat="fr-granddebat.txt=2 fr-novels.txt=2 fr-servicepublic.txt=2 fr-docs-ccby.txt=2 fr-tatoeba.txt=2 fr-commonvoice.txt=2
    fr-consultations.txt=2"
kind=open pieces=24000 joined=1000
. "$(dirname "$0")/base.sh"
