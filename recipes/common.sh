#!/usr/bin/env bash
# What the recipes share; each of their scripts reads this file with `source`. Nothing here runs by itself.
#
# Every recipe works in one folder, --out (default: out/RECIPE in the folder it is started from):
#   raw/      the owner's files, unless --raw names another folder     text/    sentences, one a line
#   pieces/   the same in subwords                                      binary/  for fairseq
#   runs/CELL/seed_N/   a trained model with its logs, outputs and scores.json
# A step makes its folder under another name and renames it when all went well: what is there is whole, and is skipped.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
RECIPE=$(basename "$(cd "$(dirname "$0")" && pwd)")
USER_DIR=$ROOT/kerbs_fairseq
if [ -x "$ROOT/.venv/bin/fairseq-train" ]; then PATH=$ROOT/.venv/bin:$PATH; fi # what `make setup` has made

say() { echo "$RECIPE: $*"; }

die() {
  echo "$RECIPE: $*" >&2
  exit 1
}

usage() { # print the head of the script that was started
  sed -n '2,/^[^#]/{/^#/s/^# \{0,1\}//p;}' "$0"
}

need() { # need COMMAND...: stop unless all of them can be run
  local command
  for command in "$@"; do
    command -v "$command" >/dev/null ||
      die "$command is not installed: run 'make setup', or see 'Install' in the README; then kerbs-doctor"
  done
}

take() { # take VARIABLE "$@": set it to the value that follows an option
  [ $# -ge 3 ] || die "$2 needs a value"
  printf -v "$1" %s "$3"
}

take_number() { # the same for a whole number
  take "$@"
  [[ $3 =~ ^[0-9]{1,9}$ ]] || die "$2 $3: a whole number is needed"
}

# --- prepare.sh

remember() { # remember TEXT: the settings of this folder; other ones than last time would mix two corpora
  mkdir -p "$OUT" || die "$OUT cannot be written"
  if [ -f "$OUT/settings" ] && [ "$(cat "$OUT/settings")" != "$*" ]; then
    die "$OUT was prepared with other settings ($(cat "$OUT/settings")): remove it, or choose another --out"
  fi
  echo "$*" >"$OUT/settings" || die "$OUT cannot be written: is the disk full?"
}

step() { # step NAME COMMAND...: make the folder OUT/NAME, for which {} stands in the command; skipped if it is there
  local name=$1 part=$OUT/.$1.part
  shift
  if [ -d "$OUT/$name" ]; then
    say "$name: done before"
    return
  fi
  rm -rf "$part"
  say "$name: ${*//\{\}/$OUT/$name}"
  "${@//\{\}/$part}" || {
    rm -rf "$part"
    die "$name failed; nothing of it was kept"
  }
  mv "$part" "$OUT/$name"
}

fetch() { # fetch URL FILE SUM: download into the folder of FILE, and compare with the checksum (md5 or sha256)
  local url=$1 file=$2 sum=$3 tool=sha256sum
  [ ${#sum} -eq 32 ] && tool=md5sum
  if [ ! -f "$file" ]; then
    need curl
    mkdir -p "$(dirname "$file")"
    say "downloading $url"
    curl --fail --location --retry 3 --continue-at - --output "$file.part" "$url" ||
      die "cannot download $url: get the file by other means, unpack it, and give its folder with --raw"
    mv "$file.part" "$file"
  fi
  [ "$($tool <"$file" | cut -d' ' -f1)" = "$sum" ] ||
    die "$file is not the file that is expected (its $tool differs): remove it to download it again, or use --raw"
}

preprocess() { # preprocess FOLDER OPTION...: from subwords to fairseq's binary files
  local to=$1 log=$OUT/preprocess.log
  shift
  fairseq-preprocess "$@" --trainpref "$OUT/pieces/train$SUFFIX" --validpref "$OUT/pieces/valid$SUFFIX" \
    --testpref "$OUT/pieces/test$SUFFIX" --destdir "$to" --workers "$(nproc 2>/dev/null || echo 1)" >"$log" 2>&1 ||
    { say "fairseq-preprocess: $(tail -n 1 "$log")" >&2 && return 1; }
}

# --- train.sh and evaluate.sh

cell() { # cell NAME MODEL...: split MODEL-HEAD[-ABLATION] into $model, $head, $ablation, or stop with what there is
  local known=() m rest
  for m in "${@:2}"; do
    for rest in softmax mos kerbs kerbs-nokernel kerbs-onesense kerbs-static; do known+=("$m-$rest"); done
  done
  [[ " ${known[*]} " == *" $1 "* ]] || die "there is no cell '$1'; there are: ${known[*]}"
  # shellcheck disable=SC2034 # read by train.sh
  model=${1%%-*}
  head=$(cut -d- -f2 <<<"$1")
  ablation=$(cut -s -d- -f3 <<<"$1")
}

cell_options() { # the name, seed and folder that train.sh and evaluate.sh take: sets CELL, SEED, OUT, …
  # shellcheck disable=SC2034 # UPDATES is read by train.sh
  CELL='' SEED=1 OUT=out/$RECIPE SCALE=paper UPDATES='' AGAINST='' MORE=()
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage && exit ;;
      --seed) take_number SEED "$@" && shift 2 ;;
      --out) take OUT "$@" && shift 2 ;;
      --scale) take SCALE "$@" && shift 2 ;;
      --updates) take_number UPDATES "$@" && shift 2 ;;
      --against) take AGAINST "$@" && shift 2 ;;
      --) shift && MORE=("$@") && break ;;
      -*) die "unknown option $1; options for fairseq itself go behind --" ;;
      *) [ -z "$CELL" ] || die "one cell at a time: $CELL or $1" && CELL=$1 && shift ;;
    esac
  done
  [ -n "$CELL" ] || { usage && exit 2; }
  [ "$SCALE" = paper ] || [ "$SCALE" = small ] || die "--scale $SCALE: paper or small"
  [ -d "$OUT/binary" ] || die "$OUT has no data: run recipes/$RECIPE/prepare.sh --out $OUT first"
  RUN=$OUT/runs/$CELL/seed_$SEED
}

head_options() { # head_options UPDATES: the options of the output layer; an empty UPDATES means a long training
  local every=100 after=1000 until=0
  if [ -n "$1" ]; then every=$(($1 / 30 + 1)) after=$(($1 / 10)) until=$(($1 * 7 / 10)); fi
  case $head in
    kerbs) echo --criterion kerbs_cross_entropy --kerbs-move-log "$RUN/moves.tsv" ;;
    *) echo --criterion cross_entropy ;;
  esac
  [ "$head" = kerbs ] && case $ablation in
    nokernel) echo --kerbs-kernel dot ;;
    onesense) echo --kerbs-senses 1 ;;
    static) echo --kerbs-reallocate-every 0 ;;
  esac
  if [ "$head" = kerbs ] && [ "$ablation" != static ]; then
    echo --kerbs-reallocate-every $every --kerbs-reallocate-after $after --kerbs-reallocate-until $until
  fi
}

train_cell() { # train_cell ARCH OPTION...: train, or go on with, the model of this cell
  local arch=$1 prefix=''
  shift
  [ "$head" = softmax ] || prefix=${head}_
  if [ -f "$RUN/trained" ]; then
    say "$CELL, seed $SEED: trained before"
    return
  fi
  mkdir -p "$RUN" || die "$RUN cannot be written"
  [ -f "$RUN/checkpoint_last.pt" ] || rm -f "$RUN/moves.tsv" # of a training that had not got anywhere
  local command=(fairseq-train "$OUT/binary" --user-dir "$USER_DIR" --arch "$prefix$arch" "$@" --seed "$SEED"
    --save-dir "$RUN" --no-epoch-checkpoints --log-format json --log-interval 100 "${MORE[@]}")
  echo "${command[*]}" >"$RUN/command"
  say "$CELL, seed $SEED: ${command[*]}"
  "${command[@]}" 2>&1 | tee -a "$RUN/train.log" | grep --line-buffered -E '\| valid \||Error|error:' || true
  grep -q 'done training' "$RUN/train.log" || die "$CELL, seed $SEED failed: $(tail -n 1 "$RUN/train.log")"
  touch "$RUN/trained"
}

evaluated() { # whether it has been done; stop with an error if there is no model
  [ -f "$RUN/trained" ] || die "$CELL, seed $SEED is not trained: run recipes/$RECIPE/train.sh $CELL --seed $SEED --out $OUT"
  [ -f "$RUN/scores.json" ] && say "$CELL, seed $SEED: evaluated before: $(tr -d '\n' <"$RUN/scores.json")"
}

compare() { # with the cell of --against, if there is one: is the difference one? and outputs side by side
  [ -z "$AGAINST" ] || kerbs-evaluate compare "$RECIPE" "$OUT" "$OUT/runs/$AGAINST/seed_$SEED" "$RUN"
}

generate() { # generate OPTION...: beam search over the test set into $RUN/generate-test.txt
  fairseq-generate "$OUT/binary" --user-dir "$USER_DIR" --path "$RUN/checkpoint_best.pt" --gen-subset test --beam 5 \
    --batch-size 128 --no-progress-bar --results-path "$RUN" "$@" >"$RUN/generate.log" 2>&1 ||
    die "the search failed: $(tail -n 1 "$RUN/generate.log"); all it said is in $RUN/generate.log"
}
