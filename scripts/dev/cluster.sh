#!/usr/bin/env bash
# Starts a local cluster as separate processes: three meta-roots and
# coordinators, waits until they are healthy, prints where they are, and stops
# them all on Ctrl-C. See --help.
set -euo pipefail
# Every process gets a process group of its own, so that a Ctrl-C in the
# terminal reaches this script alone, and it can stop them in order.
set -m

usage() {
  cat <<'EOT'
Usage: ./scripts/dev/cluster.sh [--config FILE] [--scope host|docker] [--coordinators N] [--stores N] [--tls] [--clean] [--clean-only]

  --config FILE      addresses and work directories (default ./raft_config.example.json)
  --scope SCOPE      which of the file's scopes (default host)
  --coordinators N   how many coordinators: 1 to 9 (default 1). The first one listens on the
                     config's address, the others on the ports behind the root peers'
  --stores N         how many reference stores, as the config names them (default 0): see docs/members.md
  --tls              make certificates, in "certs" beside the work directories, unless they are
                     there, and let nobody in without one
  --clean            remove the work directories before the start: ALL rooted data is lost
  --clean-only       remove the work directories and stop
  --timeout SECONDS  how long to wait until the cluster is healthy (default 60)

Runs until Ctrl-C. Logs are written beside the work directories.
EOT
}

die() { echo "cluster.sh: $*" >&2; exit 2; }

config=./raft_config.example.json scope=host coordinators=1 stores=0 clean=no start=yes timeout=60 tls=no
while [ $# -gt 0 ]; do
  case "$1" in
    --config|--scope|--coordinators|--stores|--timeout)
      [ $# -ge 2 ] || die "$1 wants a value"
      case "$1" in
        --config) config=$2 ;; --scope) scope=$2 ;;
        --coordinators) coordinators=$2 ;; --stores) stores=$2 ;; --timeout) timeout=$2 ;;
      esac
      shift 2 ;;
    --tls) tls=yes; shift ;;
    --clean) clean=yes; shift ;;
    --clean-only) clean=yes start=no; shift ;;
    -h|--help) usage; exit 0 ;;
    *) die "unknown flag $1 (see --help)" ;;
  esac
done
case "$coordinators" in [1-9]) ;; *) die "--coordinators $coordinators: want 1 to 9" ;; esac
case "$stores" in [0-9]) ;; *) die "--stores $stores: want 0 to 9" ;; esac
case "$timeout" in ''|*[!0-9]*) die "--timeout $timeout: want seconds" ;; esac
[ -f "$config" ] || die "config $config does not exist"

here=$(cd "$(dirname "$0")/../.." && pwd)
bin_dir=$(mktemp -d)
pids=()
stop() {
  trap - INT TERM EXIT
  # Coordinators first, so that they can retire with exact frontiers.
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do
    kill -TERM "${pids[$i]}" 2>/dev/null || true
    wait "${pids[$i]}" 2>/dev/null || true
  done
  rm -rf "$bin_dir"
}
trap 'stop; exit 130' INT TERM
trap stop EXIT

echo "building nokv ..."
(cd "$here" && go build -o "$bin_dir/nokv" ./cmd/nokv)
nokv=$bin_dir/nokv

get() { "$nokv" config get "$@" --config "$config" --scope "$scope"; }

root_addrs=() root_dirs=()
for id in 1 2 3; do
  root_addrs+=("$(get meta-root --node-id "$id" --field addr)")
  root_dirs+=("$(get meta-root --node-id "$id" --field workdir)")
done
coordinator_addr=$(get coordinator --field addr)
for dir in "${root_dirs[@]}"; do [ -n "$dir" ] || die "$config: meta_root work_dir is not set"; done

if [ "$clean" = yes ]; then
  for dir in "${root_dirs[@]}" "${root_dirs[0]%/*}"/store-[1-9]; do
    [ -d "$dir" ] || continue # a store's folder is that of one cluster
    echo "removing $dir"
    rm -rf -- "$dir"
  done
  [ "$start" = yes ] || exit 0
fi

# Every process has certificates of its own: those of the caller are none of theirs.
unset NOKV_CERTS
certs=${root_dirs[0]%/*}/certs try=""
certs_of() { :; }
if [ "$tls" = yes ]; then
  [ -e "$certs/ca/ca.crt" ] || "$nokv" cert init --cluster dev --ca "$certs/ca" >/dev/null
  for name in root-{1,2,3} coordinator-c{1..9} member-store-{1..9} operator-dev; do
    [ -e "$certs/$name/tls.crt" ] || "$nokv" cert issue --ca "$certs/ca" --role "${name%%-*}" --name "${name#*-}" --out "$certs/$name" >/dev/null
  done
  certs_of() { printf '%s\n' --certs "$certs/$1"; }
  export NOKV_CERTS=$certs/operator-dev
  try="export NOKV_CERTS=$certs/operator-dev
  "
fi

# Each peer's raft transport is 1000 above its gRPC port.
transport() { echo "${1%:*}:$((${1##*:} + 1000))"; }
peers=() roots=()
for i in 0 1 2; do
  peers+=(-peer "$((i + 1))=$(transport "${root_addrs[$i]}")")
  roots+=(-root-peer "$((i + 1))=${root_addrs[$i]}")
done

for i in 0 1 2; do
  mkdir -p "${root_dirs[$i]}"
  mapfile -t own < <(certs_of "root-$((i + 1))")
  "$nokv" meta-root -addr "${root_addrs[$i]}" -workdir "${root_dirs[$i]}" -node-id "$((i + 1))" \
    -transport-addr "$(transport "${root_addrs[$i]}")" "${peers[@]}" "${own[@]}" </dev/null >>"${root_dirs[$i]}.log" 2>&1 &
  pids+=($!)
done

coordinator_addrs=()
for ((n = 1; n <= coordinators; n++)); do
  addr=$coordinator_addr
  [ "$n" = 1 ] || addr="${coordinator_addr%:*}:$((${root_addrs[2]##*:} + n - 1))"
  coordinator_addrs+=("$addr")
  mapfile -t own < <(certs_of "coordinator-c$n")
  "$nokv" coordinator -addr "$addr" -coordinator-id "c$n" "${roots[@]}" "${own[@]}" </dev/null >>"${root_dirs[0]%/*}/coordinator-$n.log" 2>&1 &
  pids+=($!)
done

alive() {
  for pid in "${pids[@]}"; do
    kill -0 "$pid" 2>/dev/null || { echo "cluster.sh: a process ended; see ${root_dirs[0]%/*}/*.log" >&2
      tail -n 3 "${root_dirs[0]%/*}"/*.log >&2; exit 1; }
  done
}

all=$(IFS=,; echo "${coordinator_addrs[*]}")
deadline=$((SECONDS + timeout))
until "$nokv" tso --coordinator-addr "$all" --timeout 1s >/dev/null 2>&1; do
  alive
  [ "$SECONDS" -lt "$deadline" ] || { echo "cluster.sh: not healthy after ${timeout}s; see ${root_dirs[0]%/*}/*.log" >&2; exit 1; }
  sleep 0.2
done

for ((n = 1; n <= stores; n++)); do
  mapfile -t own < <(certs_of "member-store-$n")
  "$nokv" serve --coordinator-addr "$all" --config "$config" --scope "$scope" --store-id "$n" "${own[@]}" </dev/null >>"${root_dirs[0]%/*}/store-$n.log" 2>&1 &
  pids+=($!)
done

cat <<EOT
cluster is healthy
  root peers:   ${root_addrs[*]}
  coordinators: ${coordinator_addrs[*]}
  data:         ${root_dirs[*]}
  logs:         ${root_dirs[0]%/*}/*.log

try:
  ${try}go run ./cmd/nokv status --coordinator-addr $all
  go run ./cmd/nokv id --coordinator-addr $all
  go run ./cmd/nokv tso --coordinator-addr $all

Ctrl-C stops everything.
EOT

while true; do
  alive
  sleep 1 &
  wait $! || true # unlike sleep itself, it is ended by Ctrl-C at once
done
