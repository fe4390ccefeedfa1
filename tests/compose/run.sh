#!/usr/bin/env bash
# The docker compose stack for real; see docs/guide/compose.md. Called by `make compose-test`.
set -euo pipefail
cd "$(dirname "$0")/../.."
exec .venv/bin/python -m tests.compose.run "$@"
