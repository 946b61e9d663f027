# shellcheck shell=bash
# What the scripts share. Source it; it goes to the project's root.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"
CACHE=${SLESS_CACHE:-$HOME/.cache/sless}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$CACHE/target}
BIN=$ROOT/target/release

say() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# stage NAME COMMAND...: runs it and tells how long it took. Not with `||`, which would switch `set -e` off inside of it.
STAGE=
stage() {
    local began=$SECONDS
    STAGE=$1
    shift
    say "$STAGE"
    "$@"
    printf -- '-- %s: %d s\n' "$STAGE" $((SECONDS - began))
    STAGE=
}
# AT_EXIT: what else must happen then, if anything.
tell_failure() {
    local code=$?
    ${AT_EXIT:-}
    if [ "$code" != 0 ] && [ -n "$STAGE" ]; then printf 'error: failed with exit code %d: %s\n' "$code" "$STAGE" >&2; fi
}
trap tell_failure EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# apt PACKAGE...: false where there is no apt or we may not use it.
apt() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
    # Lists may be missing or old on a fresh machine: once per run.
    [ -n "${APT_UPDATED:-}" ] || apt-get update -qq >&2 || return 1
    export APT_UPDATED=1
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

# need COMMAND PACKAGE [HOW]: installs PACKAGE where the system's package manager has it; else says what gets the command.
need() {
    command -v "$1" >/dev/null && return
    [ "$2" = - ] || apt "$2" || true
    command -v "$1" >/dev/null || die "$1 is missing; get it with: ${3:-sudo apt-get install $2}"
}

need_rust() {
    need cc build-essential
    need cargo - "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
    cargo --version >/dev/null || die "cargo does not run here; the toolchain that rust-toolchain.toml names is got with: rustup toolchain install"
}

need_runtimes() {
    need python3.11 python3.11 "sudo apt-get install python3.11 python3-pip (Debian 12), or https://www.python.org/downloads/"
    python3.11 -m pip --version >/dev/null 2>&1 || apt python3-pip || true
    python3.11 -m pip --version >/dev/null 2>&1 || die "python3.11 has no pip; get it with: sudo apt-get install python3-pip"
    need node - "https://nodejs.org/en/download (version 20 or later)"
    local major
    major=$(node -p 'process.versions.node.split(".")[0]')
    [ "$major" -ge 20 ] || die "node is version $major, 20 or later is needed; get it from https://nodejs.org/en/download"
    need npm npm
}

# The programs as their users get them.
need_binaries() {
    [ -x "$BIN/sless-supervisor" ] && [ -x "$BIN/sless" ] || die "target/release has no binaries; make them with: scripts/build"
}

# Sets PYTHON to the interpreter of a virtual environment that holds what the conformance cases need.
need_pytest() {
    local wanted=$ROOT/conformance/requirements.txt venv=$CACHE/venv python
    PYTHON=$venv/bin/python
    if "$PYTHON" -c '' 2>/dev/null && cmp -s "$wanted" "$venv/requirements.txt"; then return; fi
    python=$(python_with_venv) || { apt python3-venv || true; python=$(python_with_venv); } ||
        die "no Python 3.10 or later with venv; get it with: sudo apt-get install python3-venv"
    rm -rf "$venv"
    mkdir -p "$CACHE"
    "$python" -m venv "$venv"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check -r "$wanted"
    cp "$wanted" "$venv/requirements.txt"      # last: a broken install is not taken for a whole one
}

python_with_venv() {
    local candidate
    for candidate in python3.11 python3 /usr/bin/python3 python3.12 python3.13; do
        if "$candidate" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

free_port() {
    python3.11 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}
