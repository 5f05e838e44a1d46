#!/usr/bin/env bash
# Translation: beam 5, and BLEU-4 on text and on Moses tokens, of one trained cell.
#
# Needs:    a model that train.sh has finished
# Start:    recipes/mt_iwslt16/evaluate.sh CELL [--seed 1] [--out out/mt_iwslt16]
# Options:  --against CELL   also say whether the difference from that cell is one (paired bootstrap), and show
#                            translations side by side
#           -- OPTION...     for fairseq-generate: -- --lenpen 1.2 --fp16
# Writes test.hyp and scores.json into the folder of the model; what has been evaluated is skipped.
set -euo pipefail
# shellcheck source=recipes/sequences.sh
source "$(dirname "$0")/../sequences.sh"

cell_options 'seq2seq transformer' --against "$@"
evaluate_sequences
