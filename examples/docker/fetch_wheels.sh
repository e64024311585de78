#!/bin/sh
# Fills the folder wheels/ for Dockerfile.offline: vllm-guard and what it requires, nothing else.
# Run it on a machine with a network, in the image that production runs, so that the wheels are for
# its Python and its platform:
#
#   docker run --rm --volume "$PWD:/work" --workdir /work --entrypoint sh IMAGE \
#       examples/docker/fetch_wheels.sh
#
# Then carry wheels/ and Dockerfile.offline over.
#
# PYTHON      the Python that runs vLLM in the image (python3)
# VLLM_GUARD  what is fetched: a release, a wheel, a folder (vllm-guard)
# WHEELS      the folder (wheels)
set -eu

PYTHON=${PYTHON:-python3}
VLLM_GUARD=${VLLM_GUARD:-vllm-guard}
WHEELS=${WHEELS:-wheels}

"$PYTHON" -m pip wheel --quiet --wheel-dir "$WHEELS" "$VLLM_GUARD"
ls "$WHEELS"
