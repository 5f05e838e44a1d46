#!/usr/bin/env bash
# Language model: train one cell of the paper's table.
#
# Needs:    what prepare.sh has written
# Start:    recipes/lm_1b/train.sh CELL [--seed 1] [--out out/lm_1b]
# Cells:    gru-HEAD, where HEAD is softmax, mos, kerbs, or an ablation of KerBS: kerbs-nokernel, kerbs-onesense,
#           kerbs-static (no dynamic allocation)
#           CELL+NAME is a variant, which is kept apart: -- has the options that make it one
# Options:  --scale paper|small   512 features (the paper does not say), until validation stops improving; or sizes for
#                                 a laptop, and a fixed number of updates, --updates 2000
#           -- OPTION...          for fairseq-train, stronger than what stands here: -- --fp16 --kerbs-senses 2
# Started again, it goes on from the last checkpoint; a model that is finished is skipped.
# The paper's rate of 1.0 is one for SGD, not for Adam, which it names: -- --optimizer sgd --lr 1.0 has it.
set -euo pipefail
# shellcheck source=recipes/cells.sh
source "$(dirname "$0")/../cells.sh"

cell_options gru '--scale --updates' "$@"
need fairseq-train

if [ "$SCALE" = paper ]; then
  options=(--decoder-embed-dim 512 --decoder-hidden-size 512 --decoder-out-embed-dim 512 --dropout 0.2 --clip-norm 5
    --lr 1e-3 --batch-size 128 --patience 5 --max-epoch 60)
  schedule=(--lr-scheduler reduce_lr_on_plateau --lr-shrink 0.8)
else
  UPDATES=${UPDATES:-2000}
  options=(--decoder-embed-dim 128 --decoder-hidden-size 256 --decoder-out-embed-dim 128 --dropout 0.2 --clip-norm 1
    --lr 1.2e-2 --max-tokens 2000)
  schedule=(--lr-scheduler polynomial_decay --warmup-updates $((UPDATES / 10)) --total-num-update "$UPDATES")
fi
[ -z "$UPDATES" ] || options+=(--max-update "$UPDATES")
[[ " ${MORE[*]} " == *" --lr-scheduler "* ]] || options+=("${schedule[@]}") # another one has options of its own
train_cell gru_lm --task language_modeling --sample-break-mode eos --tokens-per-sample 1024 --optimizer adam \
  "${options[@]}"
