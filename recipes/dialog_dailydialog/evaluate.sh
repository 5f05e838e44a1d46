#!/usr/bin/env bash
# Dialog: beam 5, and BLEU-1 on text and on Moses tokens, of one trained cell.
#
# Needs:    a model that train.sh has finished
# Start:    recipes/dialog_dailydialog/evaluate.sh CELL [--seed 1] [--out out/dialog_dailydialog]
# Then:     kerbs-evaluate compare dialog_dailydialog OUT OUT/runs/seq2seq-softmax/seed_1 OUT/runs/seq2seq-kerbs/seed_1
#           says whether the difference is one (paired bootstrap), and shows answers side by side
# Options:  -- OPTION...   for fairseq-generate: -- --lenpen 1.2 --fp16
# Writes test.hyp and scores.json into the folder of the model; what has been evaluated is skipped.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"

cell_options "$@"
cell "$CELL" seq2seq transformer
need fairseq-generate kerbs-evaluate
evaluated
generate "${MORE[@]}"
kerbs-evaluate score "$RECIPE" "$OUT" "$RUN"
