#!/usr/bin/env bash
# Builds libllama, ggml and libmtmd as shared libraries into the cache folder and proves that the ctypes
# declarations fit them. bench/build_peer.sh sources this file for its functions.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: ./build_llama.sh [--source DIR | --tag TAG] [--portable] [--if-missing]

  --source DIR   build this llama.cpp tree instead of the pinned one
  --tag TAG      build this tag (or branch) of llama.cpp's git repository
  --portable     code for every CPU generation, chosen at run time (default: for this machine's CPU)
  --if-missing   do nothing when a library is there already (LLAMARADA_LIB, or a build in the cache)

environment
  CMAKE_ARGS      more settings, e.g. -DGGML_CUDA=ON, -DGGML_VULKAN=ON, -DGGML_METAL=ON
  CXX             the C++ compiler (default: c++)
  JOBS            compilers at once (default: the number of cores)
  LLAMARADA_HOME  the cache folder (default: llamarada in the user's cache folder)

The build made last is the one that the server uses.
TEXT
}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=$root/.venv/bin/python

die() { echo "build_llama: $*" >&2; exit 1; }
say() { echo "build_llama: $*" >&2; }

main() {
    parse "$@"
    if [[ -n $if_missing ]] && ask 'paths.lib_dir()' >/dev/null 2>&1; then return; fi
    prepare
    if [[ ! -f $home/libllama/$key/build.json || -n $own_source ]]; then
        fetch_source
        configure
        compile llama mtmd
        install_libraries
    else
        prove_abi "$home/libllama/$key/include"
    fi
    touch "$home/libllama/$key/build.json"  # the newest is the one in use
    say "done: $home/libllama/$key"
}

parse() {
    own_source='' tag='' variant=native if_missing=''
    while (($#)); do
        case $1 in
            --source) own_source=$(cd "${2:?--source needs a folder}" && pwd); shift ;;
            --tag) tag=${2:?--tag needs a name}; shift ;;
            --portable) variant=portable ;;
            --if-missing) if_missing=1 ;;
            -h | --help) usage; exit ;;
            *) usage >&2; die "unknown argument: $1" ;;
        esac
        shift
    done
    [[ -z $own_source || -z $tag ]] || die "--source and --tag exclude each other"
}

ask() { (cd "$root" && "$python" -c "from engine import build, paths; print($1)"); }
ask_build() { (cd "$root" && "$python" -m engine.build "$@" --variant "$variant" --cmake-args="${CMAKE_ARGS:-}"); }

# Finds the tools and sets home, pin, pin_sha256, source, key and build.
prepare() {
    CXX=${CXX:-c++}
    command -v "$CXX" >/dev/null || die "no C++ compiler ('$CXX'): install one (Debian: apt-get install g++), or set CXX"
    [[ -x $root/.venv/bin/cmake && -x $root/.venv/bin/ninja ]] || make -C "$root" tools
    home=$(ask 'paths.home()')
    pin=$(ask 'build.PIN')
    pin_sha256=$(ask 'build.PIN_SHA256')
    source=${own_source:-$home/src/${tag:-llama-cpp-python-$pin}}
    key=$(ask_build key --source "${own_source:-${tag:-$pin}}")
    build=$home/build/$key
    mkdir -p "$home/src" "$home/libllama" "$build"
    lock
}

# One build at a time in one cache folder. The lock stays with descriptor 9 of this shell until it ends.
lock() {
    exec 9>"$home/build/lock"
    "$python" - <<'PYTHON' || die "another build has held $home/build/lock for an hour"
import fcntl, sys, time
for second in range(3600):
    try:
        sys.exit(fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB))
    except BlockingIOError:
        if second == 0:
            print("build_llama: waiting for another build to end", file=sys.stderr)
        time.sleep(1)
sys.exit(1)
PYTHON
}

fetch_source() {
    [[ ! -d $source ]] || return 0
    scratch=$(mktemp -d "$home/src/.fetch.XXXXXX")
    trap 'rm -rf "$scratch"' EXIT
    if [[ -n $tag ]]; then
        say "cloning llama.cpp $tag"
        git clone --quiet --depth 1 --branch "$tag" \
            "${LLAMA_CPP_GIT:-https://github.com/ggml-org/llama.cpp}" "$scratch/llama.cpp" || die "cannot clone tag '$tag'"
    else
        fetch_pinned
    fi
    mv "$scratch/llama.cpp" "$source"
}

fetch_pinned() {
    say "fetching llama-cpp-python $pin, which carries llama.cpp's source (77 MB)"
    echo "llama-cpp-python==$pin --hash=sha256:$pin_sha256" >"$scratch/requirements.txt"
    "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$scratch" \
        --requirement "$scratch/requirements.txt" >&2 || die "cannot fetch llama-cpp-python $pin: see above; is there a network?"
    mkdir "$scratch/llama.cpp"
    tar -xzf "$scratch/llama_cpp_python-$pin.tar.gz" -C "$scratch/llama.cpp" --strip-components 3 \
        "llama_cpp_python-$pin/vendor/llama.cpp"
    rm -f "$scratch/llama.cpp/.git"  # points nowhere
}

# Tools are configured, since libmtmd lives among them, but only the named targets are compiled.
configure() {
    local log=$build/configure.log origin='$ORIGIN' choice=(-DGGML_NATIVE=ON)
    [[ $(uname) != Darwin ]] || origin=@loader_path
    [[ $variant != portable ]] || choice=(-DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON)
    say "configuring $source ($variant${CMAKE_ARGS:+, $CMAKE_ARGS})"
    # CMAKE_ARGS is a list of words.
    # shellcheck disable=SC2086
    "$root/.venv/bin/cmake" -S "$source" -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$root/.venv/bin/ninja" \
        -DCMAKE_CXX_COMPILER="$CXX" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
        -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH="$origin" -DLLAMA_BUILD_COMMIT="${tag:-$pin}" \
        -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
        -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
        -DGGML_RPC=ON "${choice[@]}" ${CMAKE_ARGS:-} >"$log" 2>&1 || { tail -n 30 "$log" >&2; die "configuring failed; all of it: $log"; }
}

compile() {
    local jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN)}
    say "compiling $* with $jobs jobs (the first build takes about 6 core minutes)"
    NINJA_STATUS='[%f/%t, %es] ' "$root/.venv/bin/cmake" --build "$build" --parallel "$jobs" --target "$@" >&2 ||
        die "compiling failed; run again to go on where it stopped"
}

install_libraries() {
    local staging=$home/libllama/.staging
    rm -rf "$staging"
    mkdir -p "$staging/include"
    cp -a "$build"/bin/libllama.* "$build"/bin/libggml* "$build"/bin/libmtmd.* "$staging"
    cp "$source"/include/*.h "$source"/ggml/include/*.h "$source"/tools/mtmd/mtmd.h "$source"/tools/mtmd/mtmd-helper.h "$staging/include"
    cp "$source/LICENSE" "$staging/LICENSE.llama.cpp"
    ask_build manifest --source "${own_source:-${tag:-$pin}}" >"$staging/build.json"
    prove_abi "$staging/include"
    rm -rf "$home/libllama/$key"
    mv "$staging" "$home/libllama/$key"
}

prove_abi() {
    (cd "$root" && "$python" -m engine.abi --headers "$1" --compiler "$CXX" >&2) ||
        die "engine/llama.py does not describe this libllama (see above); the server would crash with it"
}

if [[ ${BASH_SOURCE[0]} == "$0" ]]; then main "$@"; fi
