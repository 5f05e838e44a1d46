#!/usr/bin/env bash
# The models of the translation and dialog recipes. Read with `source`, after cells.sh.

train_sequence_model() { # train_sequence_model WIDTH: of the paper's LSTM; train, or go on with, the model of this cell
  local width=$1 arch options schedule smoothing embed hidden features inner
  # shellcheck disable=SC2154 # model and arm are set by cell_options
  case $model-$SCALE in
    seq2seq-paper)
      embed=$width hidden=$((2 * width)) features=$width
      case $arm in
        softmax-features) features=$((width * 3 / 2)) ;;
        softmax-model) embed=$((width * 33 / 32)) && hidden=$((2 * embed)) features=$embed ;;
      esac
      options=(--encoder-hidden-size "$hidden" --dropout 0.1 --clip-norm 5)
      ;;
    transformer-paper)
      width=288 inner=507 features=288
      case $arm in
        softmax-features) features=432 ;;
        softmax-model) width=300 inner=528 features=300 ;;
      esac
      options=(--encoder-layers 5 --decoder-layers 5 --encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0.1)
      ;;
    seq2seq-small)
      embed=128 hidden=256 features=128
      case $arm in
        softmax-features) features=192 ;;
        softmax-model) embed=136 hidden=272 features=136 ;;
      esac
      options=(--encoder-hidden-size $((hidden / 2)) --dropout 0.2 --clip-norm 1 --lr 3e-3)
      ;;
    transformer-small)
      width=128 inner=256 features=128
      case $arm in
        softmax-features) features=192 ;;
        softmax-model) width=136 inner=272 features=136 ;;
      esac
      options=(--encoder-layers 3 --decoder-layers 3 --encoder-attention-heads 4 --decoder-attention-heads 4 --dropout 0.1
        --lr 2e-3)
      ;;
  esac

  if [ "$model" = seq2seq ]; then
    arch=lstm
    options+=(--encoder-bidirectional --encoder-embed-dim "$embed" --decoder-embed-dim "$embed" --decoder-hidden-size "$hidden"
      --decoder-out-embed-dim "$features")
  else
    arch=transformer_iwslt_de_en
    options+=(--encoder-embed-dim "$width" --decoder-embed-dim "$width" --encoder-ffn-embed-dim "$inner"
      --decoder-ffn-embed-dim "$inner")
    [ "$features" = "$width" ] || options+=(--decoder-output-dim "$features")
  fi

  if [ "$SCALE" = paper ]; then
    smoothing=0
    options+=(--lr 5e-4 --batch-size 128 --patience 5 --max-epoch 60)
    schedule=(--lr-scheduler reduce_lr_on_plateau --lr-shrink 0.5)
  else
    UPDATES=${UPDATES:-6000} smoothing=0.1
    options+=(--max-tokens 2000)
    schedule=(--lr-scheduler polynomial_decay --warmup-updates $((UPDATES / 10)) --total-num-update "$UPDATES")
  fi
  [ -z "$UPDATES" ] || options+=(--max-update "$UPDATES")
  [[ " ${MORE[*]} " == *" --lr-scheduler "* ]] || options+=("${schedule[@]}") # another one has options of its own
  train_cell "$arch" "$smoothing" "${options[@]}" --optimizer adam
}
