#!/bin/sh
# A member on ECS: its address is the task's, and so is its name unless MEMBER_ID says one, both from the
# metadata endpoint of ECS (network mode awsvpc). A task that is started anew has others, and registers them.
set -eu
task=$(python3 -c '
import json, os, urllib.request
with urllib.request.urlopen(os.environ["ECS_CONTAINER_METADATA_URI_V4"] + "/task", timeout=5) as answer:
    task = json.load(answer)
print(task["TaskARN"].split("/")[-1], task["Containers"][0]["Networks"][0]["IPv4Addresses"][0])')
exec nokv sidecar --keyspace "$KEYSPACE" --id "${MEMBER_ID:-${task% *}}" --address "${task#* }:$PORT" --drain 20s --grace 5s -- "$@"
