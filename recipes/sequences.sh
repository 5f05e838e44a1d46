#!/usr/bin/env bash
# What translation and dialog share: their two models, and beam search. Read with `source`.

# shellcheck source=recipes/cells.sh
source "$(dirname "${BASH_SOURCE[0]}")/cells.sh"

train_sequences() { # train_sequences EMBEDDING HIDDEN: the cell's model; sizes are those of the paper's Seq2Seq
  local options schedule
  # shellcheck disable=SC2154 # set by cell_options
  case $model-$SCALE in
    seq2seq-paper)
      options=(lstm --encoder-bidirectional --encoder-embed-dim "$1" --encoder-hidden-size "$2" --decoder-embed-dim "$1"
        --decoder-hidden-size "$2" --decoder-out-embed-dim "$1" --dropout 0.1 --clip-norm 5)
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
}

generate() { # generate OPTION...: beam search over the test set into $RUN/generate-test.txt
  [[ " $* " != *" --remove-bpe"* && " $* " != *" --post-process"* ]] || die "--remove-bpe: the recipe joins subwords itself"
  fairseq-generate "$OUT/binary" --user-dir "$USER_DIR" --path "$RUN/checkpoint_best.pt" --gen-subset test --beam 5 \
    --batch-size 128 --no-progress-bar --results-path "$RUN" "$@" >"$RUN/generate.log" 2>&1 || fail_evaluation generate.log
}

evaluate_sequences() { # beam search over the test set, BLEU, and the comparison if one is asked for
  need fairseq-generate kerbs-evaluate
  if ! evaluated; then
    generate "${MORE[@]}"
    kerbs-evaluate score "$RECIPE" "$OUT" "$RUN"
  fi
  compare
}
