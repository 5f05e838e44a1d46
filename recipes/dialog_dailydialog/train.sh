#!/usr/bin/env bash
# Dialog: train one cell of the tables.
#
# Needs:    what prepare.sh has written
# Start:    recipes/dialog_dailydialog/train.sh CELL [--seed 1] [--out out/dialog_dailydialog]
# Cells:    MODEL-ARM, where MODEL is seq2seq or transformer, and ARM is softmax, softmax-features or
#           softmax-model (wider: as many parameters as KerBS), mos, mos-identity, kerbs, kerbs-moves (with dynamic
#           allocation), kerbs-paper, or KerBS without one of its parts: kerbs-nokernel, kerbs-onesense, kerbs-nobias
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

cell_options 'seq2seq transformer' '--scale --updates' "$@"
need fairseq-train

# shellcheck disable=SC2154 # model and arm are set by cell_options
case $model-$SCALE in
  seq2seq-paper)
    arch=lstm embed=512 hidden=1024 features=512
    case $arm in
      softmax-features) features=768 ;;
      softmax-model) embed=528 hidden=1056 features=528 ;;
    esac
    options=(--encoder-hidden-size "$hidden" --dropout 0.1 --clip-norm 5 --encoder-bidirectional)
    ;;
  transformer-paper)
    arch=transformer_iwslt_de_en embed=288 inner=507 features=288
    case $arm in
      softmax-features) features=432 ;;
      softmax-model) embed=300 inner=528 features=300 ;;
    esac
    options=(--encoder-layers 5 --decoder-layers 5 --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0.1)
    ;;
  seq2seq-small)
    arch=lstm embed=128 hidden=256 features=128
    case $arm in
      softmax-features) features=192 ;;
      softmax-model) embed=136 hidden=272 features=136 ;;
    esac
    options=(--encoder-hidden-size $((hidden / 2)) --dropout 0.2 --clip-norm 1 --lr 3e-3 --encoder-bidirectional)
    ;;
  transformer-small)
    arch=transformer_iwslt_de_en embed=128 inner=256 features=128
    case $arm in
      softmax-features) features=192 ;;
      softmax-model) embed=136 inner=272 features=136 ;;
    esac
    options=(--encoder-layers 3 --decoder-layers 3 --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.1
      --lr 2e-3)
    ;;
esac
if [ "$model" = seq2seq ]; then
  lstm_sizes "$embed" "$hidden" "$features"
else
  transformer_sizes "$embed" "$inner" "$features"
fi

if [ "$SCALE" = paper ]; then
  smoothing=0
  options+=(--lr 5e-4 --batch-size 128 --patience 5 --max-epoch 60)
  schedule=(--lr-scheduler reduce_lr_on_plateau --lr-shrink 0.5)
else
  smoothing=0.1 UPDATES=${UPDATES:-6000}
  options+=(--max-tokens 2000)
  schedule=(--lr-scheduler polynomial_decay --warmup-updates $((UPDATES / 10)) --total-num-update "$UPDATES")
fi
[ -z "$UPDATES" ] || options+=(--max-update "$UPDATES")
[[ " ${MORE[*]} " == *" --lr-scheduler "* ]] || options+=("${schedule[@]}") # another one has options of its own
train_cell "$arch" "$smoothing" "${options[@]}" --optimizer adam
