#!/usr/bin/env bash
# Dialog: train one cell of the paper's table.
#
# Needs:    what prepare.sh has written
# Start:    recipes/dialog_dailydialog/train.sh CELL [--seed 1] [--out out/dialog_dailydialog]
# Cells:    MODEL-HEAD, where MODEL is seq2seq or transformer, and HEAD is softmax, mos, kerbs, or an ablation of
#           KerBS: kerbs-nokernel, kerbs-onesense, kerbs-static (no dynamic allocation)
#           CELL+NAME is a variant, which is kept apart: -- has the options that make it one
# Options:  --scale paper|small   the paper's sizes, until validation stops improving; or sizes for a laptop, and a
#                                 fixed number of updates, --updates 2000
#           -- OPTION...          for fairseq-train, stronger than what stands here: -- --fp16 --kerbs-senses 2
# Started again, it goes on from the last checkpoint; a model that is finished is skipped.
set -euo pipefail
# shellcheck source=recipes/sequences.sh
source "$(dirname "$0")/../sequences.sh"

cell_options 'seq2seq transformer' '--scale --updates' "$@"
need fairseq-train
train_sequences 512 1024
