#!/usr/bin/env bash
# Language model: train one cell of the tables.
#
# Needs:    what prepare.sh has written
# Start:    recipes/lm_1b/train.sh CELL [--seed 1] [--out out/lm_1b]
# Cells:    MODEL-ARM, where MODEL is gru, and ARM is softmax, softmax-features or
#           softmax-model (wider: as many parameters as KerBS), mos, mos-identity, kerbs, kerbs-moves (with dynamic
#           allocation), kerbs-paper, or KerBS without one of its parts: kerbs-nokernel, kerbs-onesense, kerbs-nobias
#           CELL+NAME is a variant, which is kept apart: -- has the options that make it one
# Options:  --scale paper|small   512 features (the paper does not say), until validation stops improving; or the sizes
#                                 of docs/protocol.md, for a laptop, and a fixed number of updates, --updates 2600
#           -- OPTION...          for fairseq-train, stronger than what stands here: -- --fp16 --kerbs-senses 2
# Started again, it goes on from the last checkpoint; a model that is finished is skipped.
# The paper's rate of 1.0 is one for SGD, not for Adam, which it names: -- --optimizer sgd --lr 1.0 has it.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"
# shellcheck source=recipes/cells.sh
source "$(dirname "$0")/../cells.sh"

cell_options 'gru' '--scale --updates' "$@"
need fairseq-train

# shellcheck disable=SC2154 # arm is set by cell_options
if [ "$SCALE" = paper ]; then
  embed=512 hidden=512 features=512
  case $arm in
    softmax-features) features=736 ;;
    softmax-model) embed=608 hidden=608 features=608 ;;
  esac
  options=(--dropout 0.2 --clip-norm 5 --lr 1e-3 --batch-size 128 --patience 5 --max-epoch 60)
  schedule=(--lr-scheduler reduce_lr_on_plateau --lr-shrink 0.8)
else
  embed=128 hidden=256 features=128
  case $arm in
    softmax-features) features=192 ;;
    softmax-model) embed=148 hidden=296 features=148 ;;
  esac
  UPDATES=${UPDATES:-2600}
  options=(--dropout 0.1 --clip-norm 1 --lr 6e-3 --max-tokens 2000)
  schedule=(--lr-scheduler polynomial_decay --warmup-updates $((UPDATES / 10)) --total-num-update "$UPDATES")
fi
[ -z "$UPDATES" ] || options+=(--max-update "$UPDATES")
[[ " ${MORE[*]} " == *" --lr-scheduler "* ]] || options+=("${schedule[@]}") # another one has options of its own
train_cell gru_lm 0 --task language_modeling --sample-break-mode eos --tokens-per-sample 1024 --optimizer adam \
  --decoder-embed-dim "$embed" --decoder-hidden-size "$hidden" --decoder-out-embed-dim "$features" "${options[@]}"
