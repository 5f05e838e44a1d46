#!/usr/bin/env bash
# Dialog: beam 5, and BLEU-1 on text and on Moses tokens, of one trained cell.
#
# Needs:    a model that train.sh has finished
# Start:    recipes/dialog_dailydialog/evaluate.sh CELL [--seed 1] [--out out/dialog_dailydialog]
# Options:  --lenpen 1         exponent of the length that scores are divided by
#           --min-len 1        least number of pieces of an output
#           --subset test      valid: the validation set, to choose these; into valid_lenpen_1/, beside the test set's
#           --against CELL     also say whether the difference from that cell is one (paired bootstrap), and show
#                              answers side by side
#           -- OPTION...       for fairseq-generate: -- --fp16
# Writes test.hyp and scores.json into the folder of the model; what has been evaluated is skipped.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"
# shellcheck source=recipes/cells.sh
source "$(dirname "$0")/../cells.sh"

cell_options 'seq2seq transformer' '--against --subset --lenpen --min-len' "$@"
need fairseq-generate kerbs-evaluate
if ! evaluated; then
  beam_search --beam 5 --batch-size 128
  score
fi
compare
