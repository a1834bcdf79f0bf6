#!/bin/bash
# examples/ray/ctr.sh DIRECTORY: two servers and two trainers as jobs of Ray. Kill what you like; run it again to go on.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec cairn ps run --launcher ray --servers 2 --trainers 2 --dir "$1/repository" \
    --full-secs 60 --incremental-secs 2 -- \
    python3 "$here/../ctr/train.py" --pause 0.2 --output "$1/result.json"
