#!/usr/bin/env bash
# Builds llama-server and llama-batched-bench for the comparison: from the same source, with the same settings and in
# the same build folder as the libllama that this server uses. Takes build_llama.sh's arguments.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=../build_llama.sh
source "$here/../build_llama.sh"

main_peer() {
    main "$@"
    prepare
    local target=$home/peer/$key
    fetch_source
    configure
    compile llama-server llama-batched-bench
    rm -rf "$home/peer/.staging"
    mkdir -p "$home/peer"
    cp -a "$build/bin" "$home/peer/.staging"
    rm -rf "$target"
    mv "$home/peer/.staging" "$target"
    say "done: $target"
}

main_peer "$@"
