#!/usr/bin/env bash
# What every prepare.sh does: options, downloads, steps. Read with `source`, after common.sh.

# shellcheck disable=SC2034 # MORE is read by prepare.sh
prepare_options() { # prepare_options "--OPTION=VARIABLE …" "$@": sets RAW, OUT, TOKENS, SIZE, MORE and these variables
  local extra=" $1 " name
  RAW='' OUT=out/$RECIPE TOKENS=raw MORE=()
  shift
  while [ $# -gt 0 ]; do
    case $1 in
      -h | --help) usage && exit ;;
      --raw) take RAW "$@" ;;
      --out) take OUT "$@" ;;
      --tokens) take TOKENS "$@" ;;
      --size) take_number SIZE "$@" ;;
      --) shift && MORE=("$@") && break ;;
      *)
        name=${extra#* "$1"=}
        [ "$name" != "$extra" ] || die "unknown option $1; see --help"
        take "${name%% *}" "$@"
        ;;
    esac
    shift 2
  done
  need kerbs-corpus fairseq-preprocess
}

check_raw() { # stop unless --raw, if given, is a folder, and --tokens is known; RAW becomes a full path
  [ -z "$RAW" ] || RAW=$(cd "$RAW" 2>/dev/null && pwd) || die "--raw is not a directory"
  [[ " raw moses words " == *" $TOKENS "* ]] || die "--tokens $TOKENS: raw, moses or words"
  mkdir -p "$OUT" 2>/dev/null || die "$OUT cannot be written"
}

step() { # step NAME SETTINGS COMMAND...: make the folder OUT/NAME, for which {} stands in the command; once
  local name=$1 settings=$2 part=$OUT/.$1.part command=() word
  shift 2
  if [ -d "$OUT/$name" ]; then
    [ "$(cat "$OUT/$name/.settings")" = "$settings" ] ||
      die "$OUT/$name was made with other settings ($(cat "$OUT/$name/.settings")): remove it with all that was made from it, or choose another --out"
    say "$name: done before"
    return
  fi
  rm -rf "$part"
  for word in "$@"; do
    [ "$word" = '{}' ] && word=$part
    command+=("$word")
  done
  say "$name: $*"
  if ! { "${command[@]}" && echo "$settings" >"$part/.settings" && mv "$part" "$OUT/$name"; }; then
    rm -rf "$part"
    die "$name failed; nothing of it was kept"
  fi
}

fetch() { # fetch URL FILE SUM: download into the folder of FILE, and compare with the checksum (md5 or sha256)
  local url=$1 file=$2 sum=$3 tool=sha256sum
  [ ${#sum} -eq 32 ] && tool=md5sum
  need $tool
  if [ ! -f "$file" ]; then
    need curl
    mkdir -p "$(dirname "$file")"
    say "downloading $url"
    curl --fail --location --retry 3 --continue-at - --output "$file.part" "$url" ||
      { rm -f "$file.part" && curl --fail --location --retry 3 --output "$file.part" "$url"; } || # it cannot go on
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
