#!/usr/bin/env bash
# tests/apps/test_apps_kill.sh with 20 kills.
export KILLS=20 LEAST=20
exec bash "$(dirname "$0")/../apps/test_apps_kill.sh"
