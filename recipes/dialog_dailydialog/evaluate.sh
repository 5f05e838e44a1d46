#!/usr/bin/env bash
# Dialog: beam 5, and BLEU-1 on text and on Moses tokens, of one trained cell.
#
# Needs:    a model that train.sh has finished
# Start:    recipes/dialog_dailydialog/evaluate.sh CELL [--seed 1] [--out out/dialog_dailydialog]
# Options:  --against CELL   also say whether the difference from that cell is one (paired bootstrap), and show
#                            answers side by side
#           -- OPTION...     for fairseq-generate: -- --lenpen 1.2 --fp16
# Writes test.hyp and scores.json into the folder of the model; what has been evaluated is skipped.
set -euo pipefail
# shellcheck source=recipes/sequences.sh
source "$(dirname "$0")/../sequences.sh"

cell_options 'seq2seq transformer' --against "$@"
evaluate_sequences
