#!/usr/bin/env bash
# tests/test_apps_kill.sh with 20 kills.
export KILLS=20 LEAST=20
exec bash "$(dirname "$0")/test_apps_kill.sh"
