#!/usr/bin/env bash
# Check spelling, and the licenses, duplicates and sources of third-party crates.
#
#   scripts/lint.sh
#
# Uses typos (_typos.toml) and cargo-deny (deny.toml). Both are installed into .cache/tools at
# pinned versions the first time, which takes about two minutes and needs a network. A check whose
# tool cannot be installed is skipped with a message; with FLAGSTONE_TESTS_NO_SKIP=1 it fails. The
# check of advisories is always skipped if their database cannot be fetched. Exit status: 0 nothing
# found or skipped; 1 a finding, or a check that FLAGSTONE_TESTS_NO_SKIP does not let skip.
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/.cache/tools
deny_version=0.20.2
status=0

# A check cannot run here.
unable() {
    echo "lint: skipped: $*" >&2
}

# As `unable`, for a check that runs once its tool is installed.
skip() {
    if [ -n "${FLAGSTONE_TESTS_NO_SKIP+set}" ]; then
        echo "lint: failed, as it would be skipped: $*" >&2
        status=1
    else
        unable "$@"
    fi
}

install_typos() {
    [ ! -x "$tools/python/bin/typos" ] || return 0
    python3 -m venv "$tools/python" &&
        "$tools/python/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: \
            --require-hashes -r scripts/lint-tools.txt
}

# Unoptimized: it builds in a fraction of the time and checks in a few seconds.
install_deny() {
    [[ $("$tools/bin/cargo-deny" --version 2>/dev/null) != "cargo-deny $deny_version" ]] || return 0
    CARGO_PROFILE_DEV_DEBUG=0 CARGO_INCREMENTAL=0 \
        cargo install --quiet --locked --debug --root "$tools" --target-dir "$tools/build" \
        "cargo-deny@$deny_version" && rm -rf "$tools/build"
}

if install_typos >&2; then
    "$tools/python/bin/typos" || status=1
else
    skip "spelling: typos cannot be installed (it needs python3-venv and a network)"
fi

# cargo-deny reads the manifests of all platforms, which a build does not download.
if ! install_deny >&2; then
    skip "licenses, duplicates and sources: cargo-deny cannot be installed (it needs a network)"
elif ! cargo fetch --quiet --locked; then
    skip "licenses, duplicates and sources: cargo cannot fetch the crates (it needs a network)"
else
    "$tools/bin/cargo-deny" --offline --log-level error check --hide-inclusion-graph \
        licenses bans sources || status=1
    if timeout 60 "$tools/bin/cargo-deny" --log-level off fetch db >/dev/null 2>&1; then
        "$tools/bin/cargo-deny" --offline --log-level error check --disable-fetch advisories ||
            status=1
    else
        unable "advisories: the database cannot be fetched"
    fi
fi

exit $status
