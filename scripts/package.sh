#!/usr/bin/env bash
# Build the packages: a .deb and an .rpm for each architecture, in target/packages.
#
#   scripts/package.sh [OPTION...] [ARCHITECTURE...]
#
# Architectures: x86_64, aarch64; both if none is given, or with --binary this machine's. Options:
# --binary FILE uses this program of this machine's architecture instead of building one; --version
# VERSION; --output DIR; --deb-only; --fast compresses less; --stage-only puts the built files of the
# packages into --output, and builds no package. Uses cargo-deb and cargo-generate-rpm, installed
# into .cache/tools at pinned versions the first time, which needs a network. The architecture that
# is not this machine's needs Debian's cross compiler, and is skipped with a message if that cannot
# be installed. Exit status: 0 packages are built; 1 a build failed; 2 wrong arguments.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
tools=$root/.cache/tools
deb_version=3.8.0
rpm_version=0.21.1
host=$(uname -m)

binary='' version='' output=$root/target/packages deb_only='' stage_only='' fast='' architectures=()
while [ $# -gt 0 ]; do
    case $1 in
        --binary) binary=$(realpath "$2"); shift ;;
        --version) version=$2; shift ;;
        --output) mkdir -p "$2"; output=$(realpath "$2"); shift ;;
        --deb-only) deb_only=yes ;;
        --stage-only) stage_only=yes ;;
        --fast) fast=yes ;;
        x86_64 | aarch64) architectures+=("$1") ;;
        *) echo "package: unknown argument $1" >&2; exit 2 ;;
    esac
    shift
done
if [ ${#architectures[@]} = 0 ]; then
    architectures=(x86_64 aarch64)
    [ -z "$binary" ] || architectures=("$host")
fi

# install PROGRAM VERSION. Little optimized, to build in a fraction of the time.
install() {
    [[ $(cat "$tools/$1.version" 2>/dev/null) != "$2" || ! -x $tools/bin/$1 ]] || return 0
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=1 CARGO_INCREMENTAL=0 \
        cargo install --quiet --locked --debug --force --root "$tools" --target-dir "$tools/build" "$1@$2"
    rm -rf "$tools/build"
    echo "$2" >"$tools/$1.version"
}

# The cross compiler of an architecture, and Rust's library for it.
install_cross() {
    local package=gcc-${1//_/-}-linux-gnu
    if ! command -v "$1-linux-gnu-gcc" >/dev/null; then
        local as_root=()
        [ "$(id -u)" = 0 ] || as_root=(sudo)
        "${as_root[@]}" apt-get install -y -qq --no-install-recommends "$package" \
            "libc6-dev-$(debian_name "$1")-cross" >/dev/null || return 1
    fi
    rustup target add "$1-unknown-linux-gnu" >/dev/null 2>&1
}

debian_name() {
    case $1 in x86_64) echo amd64 ;; aarch64) echo arm64 ;; esac
}

# build ARCHITECTURE: prints the program's path.
build() {
    local target=$1-unknown-linux-gnu
    if [ "$1" != "$host" ]; then
        local upper=${target^^}
        export "CARGO_TARGET_${upper//-/_}_LINKER=$1-linux-gnu-gcc"
        export "CC_${target//-/_}=$1-linux-gnu-gcc" "AR_${target//-/_}=$1-linux-gnu-ar"
    fi
    # shellcheck disable=SC2086 # several options
    cargo build ${CARGO_FLAGS:-} --profile distribution --package flagstone --target "$target" >&2
    echo "${CARGO_TARGET_DIR:-target}/$target/distribution/flagstone"
}

# stage ARCHITECTURE PROGRAM DIRECTORY: what the packages contain. The symbol table stays, for
# backtraces.
stage() {
    mkdir -p "$3/completions" "$3/man"
    local strip=strip
    [ "$1" = "$host" ] || strip=$1-linux-gnu-strip
    "$strip" --strip-debug -o "$3/flagstone" "$2"
    "$native" man "$3/man"
    gzip -9nf "$3"/man/*.1
    for shell in bash zsh fish; do
        "$native" completions "$shell" >"$3/completions/flagstone.$shell"
    done
}

# rpm_requires ARCHITECTURE PROGRAM: the libraries that it links, as a TOML table. cargo-generate-rpm
# finds them with ldd, which cannot read a program of another architecture.
rpm_requires() {
    local objdump=objdump
    [ "$1" = "$host" ] || objdump=$1-linux-gnu-objdump
    "$objdump" -p "$2" | awk '
        $1 == "NEEDED" { names[$2 "()(64bit)"] }
        $1 == "required" { library = substr($3, 1, length($3) - 1) }
        library && $1 ~ /^0x/ { names[library "(" $4 ")(64bit)"] }
        END {
            if (!library) { print "package: no libraries found" >"/dev/stderr"; exit 1 }
            for (name in names) list = list (list ? ", " : "") "\"" name "\" = \"*\""
            print "requires = { " list " }"
        }'
}

if [ -n "$stage_only" ]; then
    native=${binary:-$(build "$host")}
    stage "$host" "$native" "$output"
    exit
fi
install cargo-deb "$deb_version"
[ -n "$deb_only" ] || install cargo-generate-rpm "$rpm_version"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
# Writes the manual and the completions, which are the same for every architecture.
native=${binary:-$(build "$host")}
native=$(realpath "$native")
staging=$(mktemp -d)
trap 'rm -rf "$staging"' EXIT
mkdir -p "$output"
for architecture in "${architectures[@]}"; do
    program=$native
    if [ "$architecture" != "$host" ]; then
        if ! install_cross "$architecture"; then
            echo "package: skipped $architecture: its cross compiler cannot be installed" >&2
            continue
        fi
        program=$(build "$architecture")
    fi
    target=$architecture-unknown-linux-gnu
    stage "$architecture" "$program" "$staging/$target/release"
    arguments=(--target "$target" --output "$output/")
    CARGO_TARGET_DIR=$staging "$tools/bin/cargo-deb" deb --quiet --no-build --no-strip \
        --manifest-path crates/cli/Cargo.toml ${version:+--deb-version "$version"} \
        ${fast:+--fast} "${arguments[@]}"
    [ -z "$deb_only" ] || continue
    requires=$(rpm_requires "$architecture" "$staging/$target/release/flagstone")
    "$tools/bin/cargo-generate-rpm" generate-rpm --package crates/cli \
        --target-dir "$staging" --auto-req no --set-metadata "$requires" "${arguments[@]}" \
        ${fast:+--payload-compress=none} \
        ${version:+--set-metadata "version=\"$version\""}
done
ls -l "$output"
