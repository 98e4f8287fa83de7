#!/usr/bin/env bash
# Build the servers of the tests that no distribution has: versitygw, an S3-compatible object store.
#
#   scripts/test-servers.sh
#
# Builds pinned Go modules into .cache/tools/bin, in a minute or two, and does nothing if they are
# there. Only tests need them, so scripts/setup.sh, and with it `make demo`, does not build them.
# Without Go or a network, a file says so, and the tests of buckets are skipped. Exit status: 0.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/local/go/bin

tools=$PWD/.cache/tools
versitygw=v1.8.0

install_versitygw() {
    [ ! -x "$tools/bin/versitygw" ] || [ "$(cat "$tools/versitygw-version" 2>/dev/null)" != $versitygw ] ||
        return 0
    command -v go >/dev/null || return 1
    echo "test-servers: building versitygw $versitygw"
    GOBIN=$tools/bin go install "github.com/versity/versitygw/cmd/versitygw@$versitygw" &&
        echo $versitygw >"$tools/versitygw-version"
}

mkdir -p "$tools"
if install_versitygw; then
    rm -f "$tools/versitygw-missing"
else
    touch "$tools/versitygw-missing"
    echo "test-servers: without versitygw (it needs Go 1.25 and a network): tests of buckets are skipped"
fi
