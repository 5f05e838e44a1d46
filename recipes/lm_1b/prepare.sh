#!/usr/bin/env bash
# Language model, One-Billion-Word: from the owner's files to fairseq's binary format.
#
# Needs:    nothing for --raw; else a connection (1.8 GB)
# Start:    recipes/lm_1b/prepare.sh
#           recipes/lm_1b/prepare.sh --raw FOLDER --out FOLDER
# Options:  --raw FOLDER   take shards from here (news.en-00001-of-00100 …, *.tokens or *.txt), or a corpus with its own
#                          parts (ptb.train.txt, ptb.valid.txt, ptb.test.txt), with --cut own
#           --out FOLDER   work here (out/lm_1b)
#           --cut 300000,10000,30000     sentences for train, valid and test, drawn at random; own: the corpus's parts
#           --tokens raw|moses|words     BPE on the text as it is; on Moses tokens; or whole words
#           --size 10000                 number of pieces
#           -- OPTION...                 for `kerbs-corpus sentences`: --seed 1, --max-words 80
# A step that is finished is skipped; one that is interrupted leaves nothing.
set -euo pipefail
# shellcheck source=recipes/common.sh
source "$(dirname "$0")/../common.sh"
# shellcheck source=recipes/corpus.sh
source "$(dirname "$0")/../corpus.sh"

NAME=1-billion-word-language-modeling-benchmark-r13output
URL=${KERBS_URL:-http://www.statmt.org/lm-benchmark/$NAME.tar.gz}
SHA256=${KERBS_SHA256:-01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e}

SIZE=10000 CUT=300000,10000,30000 SUFFIX=.txt # SUFFIX: of the files in pieces/, behind train, valid and test
prepare_options '--cut=CUT' "$@"

check_raw
if [ -z "$RAW" ]; then
  fetch "$URL" "$OUT/$NAME.tar.gz" "$SHA256"
  step raw "$SHA256" kerbs-corpus unpack "$OUT/$NAME.tar.gz" {} \
    --member '*/training-monolingual.tokenized.shuffled/news.en-0000?-of-00100' # a few of the hundred shards are enough
  RAW=$OUT/raw
fi
[ "$CUT" = own ] || MORE+=(--cut "$CUT")
text="$RAW ${MORE[*]}"
step text "$text" kerbs-corpus sentences "$RAW" {} "${MORE[@]}"
step pieces "$text $TOKENS $SIZE" kerbs-corpus pieces "$OUT/text" {} --tokens "$TOKENS" --size "$SIZE" --language txt=en
step binary "$text $TOKENS $SIZE" preprocess {} --only-source
say "ready: recipes/$RECIPE/train.sh gru-kerbs --out $OUT"
