#!/usr/bin/env bash
# What every train.sh and evaluate.sh does with one cell, MODEL-ARM[+VARIANT]. Read with `source`, after common.sh.

ARMS=$ROOT/kerbs_fairseq/evaluation/arms.txt # name|head|title|options

cell() { # cell NAME MODEL...: into $model, $arm, $head and the array $arm_options, or stop with what there is
  local known=() m name options base=$1
  [[ $1 =~ ^([a-z0-9-]+)\+[A-Za-z0-9][A-Za-z0-9._-]*$ ]] && base=${BASH_REMATCH[1]}
  # shellcheck disable=SC2034 # arm is read by train.sh
  model='' arm=${base#*-}
  for m in "${@:2}"; do
    while IFS='|' read -r name head _ options; do
      [[ -n $name && $name != '#'* ]] || continue
      known+=("$m-$name")
      [ "$base" != "$m-$name" ] || { model=$m && read -ra arm_options <<<"$options" && break 2; }
    done <"$ARMS"
  done
  [ -n "$model" ] ||
    die "there is no cell '$1'; there are, and variants of them with +NAME of letters, digits, '.', '_' and '-': ${known[*]}"
}

cell_options() { # cell_options MODELS OPTIONS "$@": sets CELL, SEED, OUT, RUN, MORE and what else OPTIONS allows
  local models=$1 allowed=" -h --help --seed --out -- $2 "
  CELL='' SEED=1 OUT=out/$RECIPE SCALE=paper UPDATES='' AGAINST='' SUBSET=test LENPEN='' MIN_LEN='' MORE=()
  shift 2
  while [ $# -gt 0 ]; do
    [[ $1 != -* || $allowed == *" $1 "* ]] || die "unknown option $1; options for fairseq itself go behind --"
    case $1 in
      -h | --help) usage && exit ;;
      --seed) take_number SEED "$@" && shift 2 ;;
      --out) take OUT "$@" && shift 2 ;;
      --scale) take SCALE "$@" && shift 2 ;;
      --updates) take_number UPDATES "$@" && shift 2 ;;
      --against) take AGAINST "$@" && shift 2 ;;
      --subset) take SUBSET "$@" && shift 2 ;;
      --lenpen) take LENPEN "$@" && shift 2 ;;
      --min-len) take_number MIN_LEN "$@" && shift 2 ;;
      --) shift && MORE=("$@") && break ;;
      *) [ -z "$CELL" ] || die "one cell at a time: $CELL or $1" && CELL=$1 && shift ;;
    esac
  done
  [ -n "$CELL" ] || { usage && exit 2; }
  # shellcheck disable=SC2086 # a list of words
  [ -z "$AGAINST" ] || cell "$AGAINST" $models
  # shellcheck disable=SC2086
  cell "$CELL" $models
  [ "$SCALE" = paper ] || [ "$SCALE" = small ] || die "--scale $SCALE: paper or small"
  [ "$SUBSET" = test ] || [ "$SUBSET" = valid ] || die "--subset $SUBSET: test or valid"
  [[ $LENPEN =~ ^([0-9]+(\.[0-9]+)?)?$ ]] || die "--lenpen $LENPEN: a number is needed"
  [ -d "$OUT/binary" ] || die "$OUT has no data: run recipes/$RECIPE/prepare.sh --out $OUT first"
  RUN=$OUT/runs/$CELL/seed_$SEED
  RESULTS=$RUN # where outputs and scores go
  [ "$SUBSET" = test ] || RESULTS=$RUN/valid_lenpen_${LENPEN:-1}${MIN_LEN:+_min_len_$MIN_LEN}
}

lock_run() { # one process at a time works on a run; the lock lasts until this script and all that it started have ended
  local code=0 holders
  { mkdir -p "$RUN" && exec {LOCK}<>"$RUN/.lock"; } 2>/dev/null || die "$RUN cannot be written"
  command -v flock >/dev/null || return 0 # not on every system
  flock --wait 5 "$LOCK" 2>/dev/null || code=$?
  # other codes than 1 are of file systems that have no locks
  holders=$(cat "$RUN/.lock")
  [ "$code" -ne 1 ] ||
    die "another process is at work on $CELL, seed $SEED in $OUT: wait for it, or stop it${holders:+: kill $holders}"
  echo $$ >"$RUN/.lock"
}

run_training() { # run_training COMMAND...: its output into train.log; it ends when this script is told to end
  local logger training code=0
  exec {PIPE}> >(tee -a "$RUN/train.log" | { grep --line-buffered '| valid |' || true; })
  logger=$!
  "$@" >&"$PIPE" 2>&1 {PIPE}>&- &
  training=$!
  exec {PIPE}>&-
  echo "$$ $training" >"$RUN/.lock"
  # a shell that waits for a foreground command gets no signal, and one that is ended does not end what it has started
  trap 'kill $training 2>/dev/null; wait $training; exit 143' TERM INT HUP
  wait $training || code=$?
  trap - TERM INT HUP
  wait $logger
  return $code
}

same_settings() { # same_settings FILE TEXT: stop if it was made with others; else write them down
  if [ -f "$1" ]; then
    [ "$(cat "$1")" = "$2" ] ||
      die "$RUN was made with other options ($(cat "$1")): remove it, or choose another --out or --seed, or CELL+NAME"
  else
    { mkdir -p "$(dirname "$1")" && echo "$2" >"$1"; } 2>/dev/null || die "$RUN cannot be written"
  fi
}

lstm_sizes() { # lstm_sizes EMBED HIDDEN FEATURES: adds them to $options, as fairseq's lstm calls them
  options+=(--encoder-embed-dim "$1" --decoder-embed-dim "$1" --decoder-hidden-size "$2" --decoder-out-embed-dim "$3")
}

transformer_sizes() { # transformer_sizes EMBED INNER FEATURES: the same for a Transformer, INNER is the feed-forward size
  options+=(--encoder-embed-dim "$1" --decoder-embed-dim "$1" --encoder-ffn-embed-dim "$2" --decoder-ffn-embed-dim "$2")
  [ "$3" = "$1" ] || options+=(--decoder-output-dim "$3")
}

train_cell() { # train_cell ARCH SMOOTHING OPTION...: train, or go on with, the model of this cell
  local arch=$1 smoothing=$2 criterion=cross_entropy options paths=() every=100 after=1000 until=0
  options=("${@:3}" --seed "$SEED")
  [ "$smoothing" = 0 ] || criterion=label_smoothed_cross_entropy
  [ "$head" = softmax ] || arch=${head}_$arch
  if [ "$head" = kerbs ]; then
    criterion=kerbs_cross_entropy
    options+=(--kerbs-seed "$SEED")
    # senses move between a tenth and seven tenths of the training; what says when is refused if they never move
    if [[ $arm =~ ^kerbs-(moves|paper)$ && " ${MORE[*]} " != *" --kerbs-reallocate-every 0 "* ]]; then
      [ -z "$UPDATES" ] || { every=$((UPDATES / 30 + 1)) after=$((UPDATES / 10)) until=$((UPDATES * 7 / 10)); }
      options+=(--kerbs-reallocate-every "$every" --kerbs-reallocate-after "$after" --kerbs-reallocate-until "$until")
      paths=(--kerbs-move-log "$RUN/moves.tsv")
    fi
  fi
  options+=("${arm_options[@]}" --criterion "$criterion")
  [ "$smoothing" = 0 ] || options+=(--label-smoothing "$smoothing")
  [[ ! " ${MORE[*]} " =~ " "--(save-d[ir]*|no-s[ave]*)[=\ ] ]] ||
    die "-- --${BASH_REMATCH[1]}: the recipe itself says where the model is saved; --out is the folder it works in"
  options+=(--no-epoch-checkpoints --log-format json --log-interval 100 "${MORE[@]}")
  [ -f "$RUN/trained" ] || lock_run # what is finished is only read
  same_settings "$RUN/training" "--arch $arch ${options[*]}"
  if [ -f "$RUN/trained" ]; then
    say "$CELL, seed $SEED: trained before"
    return
  fi
  # shellcheck disable=SC2153 # what can be repeated elsewhere, for which OUT stands for the folder
  echo "recipes/$RECIPE/train.sh $CELL --out OUT --seed $SEED --scale $SCALE${UPDATES:+ --updates $UPDATES}${MORE[0]:+ -- ${MORE[*]}}" >"$RUN/command"
  git -C "$ROOT" describe --always --dirty --abbrev=40 --exclude '*' >"$RUN/commit" 2>/dev/null || rm -f "$RUN/commit"
  [ -f "$RUN/checkpoint_last.pt" ] || rm -f "$RUN/moves.tsv" "$RUN/train.log" # of a training that got nowhere
  rm -rf "$RUN"/{scores.json,evaluation,test.hyp,test.nll,generate-test.txt,eval-lm.log} "$RUN"/valid_lenpen_*
  say "$CELL, seed $SEED: fairseq-train $OUT/binary --arch $arch ${options[*]}"
  run_training fairseq-train "$OUT/binary" --user-dir "$USER_DIR" --arch "$arch" --save-dir "$RUN" "${paths[@]}" "${options[@]}" ||
    die "$CELL, seed $SEED failed: $(tail -n 1 "$RUN/train.log"); full log: $RUN/train.log"
  [ -s "$RUN/checkpoint_best.pt" ] || die "$CELL, seed $SEED: fairseq-train has left no checkpoint_best.pt in $RUN"
  touch "$RUN/trained"
}

evaluated() { # whether it has been done; stop with an error if there is no model, or it was done with other options
  [ -f "$RUN/trained" ] || die "$CELL, seed $SEED is not trained: run recipes/$RECIPE/train.sh $CELL --seed $SEED --out $OUT"
  [ -f "$RESULTS/scores.json" ] || lock_run
  same_settings "$RESULTS/evaluation" "${LENPEN:+--lenpen $LENPEN }${MIN_LEN:+--min-len $MIN_LEN }${MORE[*]}"
  [ -f "$RESULTS/scores.json" ] && say "$CELL, seed $SEED: evaluated before: $(tr -d '\n' <"$RESULTS/scores.json")"
}

beam_search() { # beam_search OPTION...: fairseq-generate over the subset, into $RESULTS/generate-SUBSET.txt
  [[ " ${MORE[*]} " != *" --remove-bpe"* && " ${MORE[*]} " != *" --post-process"* ]] ||
    die "--remove-bpe: the recipe joins subwords itself"
  fairseq-generate "$OUT/binary" --user-dir "$USER_DIR" --path "$RUN/checkpoint_best.pt" --gen-subset "$SUBSET" \
    "$@" --lenpen "${LENPEN:-1}" --min-len "${MIN_LEN:-1}" --no-progress-bar --results-path "$RESULTS" "${MORE[@]}" \
    >"$RESULTS/generate.log" 2>&1 || fail_evaluation generate.log
}

score() { # scores of the outputs in $RESULTS
  kerbs-evaluate score "$RECIPE" "$OUT" "$RESULTS" --subset "$SUBSET"
}

compare() { # with the cell of --against, if there is one: is the difference one? and outputs side by side
  [ -z "$AGAINST" ] || kerbs-evaluate compare "$RECIPE" "$OUT" "$OUT/runs/$AGAINST/seed_$SEED" "$RUN"
}

fail_evaluation() { # fail_evaluation LOG: stop with the end of what a command said
  rm -f "$RESULTS/evaluation"
  die "$CELL, seed $SEED: $(tail -n 1 "$RESULTS/$1"); full log: $RESULTS/$1"
}
