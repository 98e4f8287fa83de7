#!/usr/bin/env bash
# Install the packages and the Rust toolchain that building, testing and the demo need, on Debian
# or Ubuntu.
#
#   scripts/setup.sh
#
# Installs only missing programs, so that a second run is quick and needs no root. Programs that
# only some tests use are optional: those tests report that they are skipped. Exit status: 0 all
# needed programs are here; 1 one is missing, and the script says how to get it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin:$HOME/.cargo/bin:/usr/local/go/bin

# PROGRAM:PACKAGE, or FILE:PACKAGE
needed=(
    cc:gcc c++:g++ /usr/include/stdio.h:libc6-dev make:make git:git fio:fio
    /etc/ssl/certs/ca-certificates.crt:ca-certificates
)
optional=(
    # The spell checker of `make lint`.
    python3:python3 /usr/share/doc/python3-venv:python3-venv
    # NBD clients, and servers to compare with.
    nbdinfo:libnbd-bin nbdcopy:libnbd-bin nbdkit:nbdkit
    qemu-img:qemu-utils qemu-io:qemu-utils qemu-nbd:qemu-utils
    # The arbiter of automatic failover.
    etcd:etcd-server
    # The checker of metrics and alert rules.
    promtool:prometheus
    # The browser that draws reports.
    chromium-headless-shell:chromium-headless-shell
    # The test guest: the Linux kernel's NVMe/TCP host under QEMU.
    qemu-system-x86_64:qemu-system-x86 nvme:nvme-cli busybox:busybox-static cpio:cpio
    mkfs.ext4:e2fsprogs fsck.ext4:e2fsprogs blkdiscard:util-linux
    modprobe:kmod depmod:kmod flock:util-linux zstd:zstd xz:xz-utils
)

have() {
    [[ $1 == /* && -e $1 ]] || command -v "$1" >/dev/null
}

# Prints the packages of missing programs in "$@" (PROGRAM:PACKAGE), each once.
missing_packages() {
    local pair
    for pair in "$@"; do
        have "${pair%%:*}" || echo "${pair#*:}"
    done | sort -u
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo "$@"
    fi
}

# Succeeds if packages can be installed; else prints the reason.
can_install() {
    if ! have apt-get; then
        echo "setup: no apt-get here: install the programs of these Debian packages: $*" >&2
    elif [ "$(id -u)" != 0 ] && ! have sudo; then
        echo "setup: neither root nor sudo here: as root, run: apt-get install $*" >&2
    else
        return 0
    fi
    return 1
}

lists_are_fresh=
apt_install() {
    if [ -z "$lists_are_fresh" ]; then
        # May fail in part, such as for a user's own source; the installation will show it.
        as_root apt-get update -qq || true
        lists_are_fresh=yes
    fi
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"
}

# The compiler that rust-toolchain.toml pins, and the one here ("" if none). rustup obeys the file;
# a compiler without rustup only has to be as new.
rust_needed=$(sed -nE 's/^channel = "([0-9.]+)"$/\1/p' rust-toolchain.toml)
rust_here() {
    have cargo && RUSTUP_AUTO_INSTALL=0 rustc --version 2>/dev/null | sed -nE 's/^rustc ([0-9.]+).*$/\1/p'
}
rust_is_new_enough() {
    local here
    here=$(rust_here) && [ -n "$here" ] &&
        [ "$(printf '%s\n' "$rust_needed" "$here" | sort -V | head -n 1)" = "$rust_needed" ]
}

install_rust() {
    # Debian 13 and Ubuntu 24.04 have rustup as a package.
    have rustup || ! can_install rustup || apt_install rustup >/dev/null 2>&1 || true
    if have rustup; then
        rustup toolchain install "$rust_needed" --profile minimal -c clippy -c rustfmt
    fi
    rust_is_new_enough
}

status=0

mapfile -t packages < <(missing_packages "${needed[@]}")
if [ ${#packages[@]} -gt 0 ]; then
    echo "setup: installing ${packages[*]}"
    can_install "${packages[@]}" && apt_install "${packages[@]}" || true
    mapfile -t packages < <(missing_packages "${needed[@]}")
    if [ ${#packages[@]} -gt 0 ]; then
        echo "setup: still missing, and needed: ${packages[*]}" >&2
        status=1
    fi
fi

mapfile -t packages < <(missing_packages "${optional[@]}")
if [ ${#packages[@]} -gt 0 ]; then
    echo "setup: installing, for the tests: ${packages[*]}"
    # All at once is quickest. One by one installs the others if one does not exist.
    if can_install "${packages[@]}" && ! apt_install "${packages[@]}"; then
        for package in "${packages[@]}"; do
            apt_install "$package" || true
        done
    fi
    mapfile -t packages < <(missing_packages "${optional[@]}")
    if [ ${#packages[@]} -gt 0 ]; then
        echo "setup: without ${packages[*]}: the tests that use them will be skipped"
    fi
fi

# Builds the S3-compatible server of the tests (a Go module) at a pinned version, beside the tools of
# scripts/lint.sh.
versitygw=v1.8.0
install_versitygw() {
    local tools=$PWD/.cache/tools
    have "$tools/bin/versitygw" && [ "$(cat "$tools/versitygw-version" 2>/dev/null)" = $versitygw ] &&
        return 0
    have go || ! can_install golang-go || apt_install golang-go >/dev/null 2>&1 || true
    have go || return 1
    echo "setup: building versitygw $versitygw, for the tests"
    GOBIN=$tools/bin go install "github.com/versity/versitygw/cmd/versitygw@$versitygw" &&
        echo $versitygw >"$tools/versitygw-version"
}
if install_versitygw; then
    rm -f .cache/tools/versitygw-missing
else
    mkdir -p .cache/tools && touch .cache/tools/versitygw-missing
    echo "setup: without versitygw (it needs Go 1.25 and a network): tests of buckets are skipped"
fi

if ! rust_is_new_enough && ! install_rust; then
    cat >&2 <<END
setup: Rust $rust_needed or newer is needed, $(rust_here || echo none) is here.
       Install it as https://rustup.rs says, then run this again.
END
    status=1
fi

exit $status
