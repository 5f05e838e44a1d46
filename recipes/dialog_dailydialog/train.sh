#!/usr/bin/env bash
# Dialog: train one cell of the paper's table.
#
# Needs:    what prepare.sh has written
# Start:    recipes/dialog_dailydialog/train.sh CELL [--seed 1] [--out out/dialog_dailydialog]
# Cells:    MODEL-HEAD, where MODEL is seq2seq or transformer, and HEAD is softmax, mos, kerbs, or an ablation of
#           KerBS: kerbs-nokernel, kerbs-onesense, kerbs-static (no dynamic allocation)
# Options:  --scale paper|small   the paper's sizes, until validation stops improving; or sizes for a laptop, and a
#                                 fixed number of updates, --updates 2000
#           -- OPTION...          for fairseq-train, stronger than what stands here: -- --fp16 --kerbs-senses 2
# Started again, it goes on from the last checkpoint; a model that is finished is skipped.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"

cell_options 'seq2seq transformer' '--scale --updates' "$@"
need fairseq-train

case $model-$SCALE in
  seq2seq-paper)
    options=(lstm --encoder-bidirectional --encoder-embed-dim 512 --encoder-hidden-size 1024 --decoder-embed-dim 512
      --decoder-hidden-size 1024 --decoder-out-embed-dim 512 --dropout 0.1 --clip-norm 5)
    ;;
  transformer-paper)
    options=(transformer_iwslt_de_en --encoder-layers 5 --decoder-layers 5 --encoder-embed-dim 288
      --decoder-embed-dim 288 --encoder-ffn-embed-dim 507 --decoder-ffn-embed-dim 507 --encoder-attention-heads 2
      --decoder-attention-heads 2 --dropout 0.1)
    ;;
  seq2seq-small)
    options=(lstm --encoder-bidirectional --encoder-embed-dim 128 --encoder-hidden-size 128 --decoder-embed-dim 128
      --decoder-hidden-size 256 --decoder-out-embed-dim 128 --dropout 0.2 --clip-norm 1 --lr 5e-3)
    ;;
  transformer-small)
    options=(transformer_iwslt_de_en --encoder-layers 3 --decoder-layers 3 --encoder-embed-dim 128
      --decoder-embed-dim 128 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 --encoder-attention-heads 4
      --decoder-attention-heads 4 --dropout 0.2 --lr 2e-3)
    ;;
esac
if [ "$SCALE" = paper ]; then
  options+=(--lr 5e-4 --batch-size 128 --patience 5 --max-epoch 60)
  schedule=(--lr-scheduler reduce_lr_on_plateau --lr-shrink 0.5)
else
  UPDATES=${UPDATES:-2000}
  options+=(--max-tokens 2000)
  schedule=(--lr-scheduler polynomial_decay --warmup-updates $((UPDATES / 10)) --total-num-update "$UPDATES")
fi
[ -z "$UPDATES" ] || options+=(--max-update "$UPDATES")
[[ " ${MORE[*]} " == *" --lr-scheduler "* ]] || options+=("${schedule[@]}") # another one has options of its own
train_cell "${options[@]}" --optimizer adam
