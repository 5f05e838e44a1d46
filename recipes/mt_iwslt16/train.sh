#!/usr/bin/env bash
# Translation: train one cell of the tables.
#
# Needs:    what prepare.sh has written
# Start:    recipes/mt_iwslt16/train.sh CELL [--seed 1] [--out out/mt_iwslt16]
# Cells:    MODEL-ARM, where MODEL is seq2seq or transformer, and ARM is softmax, softmax-features or
#           softmax-model (wider: as many parameters as KerBS), mos, mos-identity, kerbs, kerbs-paper, or KerBS without
#           one of its parts: kerbs-nokernel, kerbs-onesense, kerbs-static (no dynamic allocation), kerbs-nobias
#           CELL+NAME is a variant, which is kept apart: -- has the options that make it one
# Options:  --scale paper|small   the paper's sizes, until validation stops improving; or those of docs/protocol.md,
#                                 for a laptop, and a fixed number of updates, --updates 6000
#           -- OPTION...          for fairseq-train, stronger than what stands here: -- --fp16 --kerbs-senses 2
# Started again, it goes on from the last checkpoint; a model that is finished is skipped.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"
# shellcheck source=recipes/cells.sh
source "$(dirname "$0")/../cells.sh"
# shellcheck source=recipes/sequence_models.sh
source "$(dirname "$0")/../sequence_models.sh"

cell_options 'seq2seq transformer' '--scale --updates' "$@"
need fairseq-train

train_sequence_model 256
