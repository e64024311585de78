#!/bin/sh
# The gate for a pinned vLLM: run it where that vLLM is installed, in the image or the environment.
#
#   EXPECT=clamp=needed,stale=needed,mm_merge=needed sh gate.sh
#
# PYTHON  the Python of that vLLM (python3)
# EXPECT  what the build was found to need when it was pinned; print it with `sh gate.sh --print`
# FORMAT  text, json or github (text)
#
# Exit code: 0 as expected and everything in force; 1 something has changed, and the lines that begin
# with "finding:" say what and what to do next; 2 it could not be checked.
set -eu

PYTHON=${PYTHON:-python3}
EXPECT=${EXPECT:-}
FORMAT=${FORMAT:-text}

if [ "${1:-}" = --print ]; then
    "$PYTHON" -m vllm_guard check --format json | "$PYTHON" -c '
import json, sys
(build,) = json.load(sys.stdin)["builds"]
print(",".join("{guard}={verdict}".format(**guard) for guard in build["guards"]))'
    exit
fi

exec "$PYTHON" -m vllm_guard check --strict --format "$FORMAT" ${EXPECT:+--expect "$EXPECT"}
