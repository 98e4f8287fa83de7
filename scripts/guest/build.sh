#!/usr/bin/env bash
# Build the Linux guest in which the tests drive the kernel's NVMe/TCP host: a distribution
# kernel (downloaded, never installed) and an initramfs of busybox, nvme-cli, fio and the ext4
# tools of this machine.
#
#   scripts/guest/build.sh        prints the directory that holds `vmlinuz` and `initramfs`
#
# GUEST_KERNEL=FILE.deb…        kernel packages to use instead of this distribution's
#
# Cached in .cache/guest, keyed by the kernel's package version, the tools and these scripts.
# Exit status: 0 built or cached; 77 it cannot be had on this machine (the reason is the last
# line on stderr); anything else is a mistake of this script.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
cache=$(cd "$here/../.." && pwd)/.cache/guest
# Kernels given by hand have their own cache, so that the distribution's is not downloaded again.
[ -z "${GUEST_KERNEL:-}" ] || cache=$cache/given
work=$cache/unpack

# Modules to load, with all that they depend on. ext4 and virtio_pci are built into some kernels.
# nvmet-tcp and its loop device let the tests check themselves against the kernel's own target.
modules=(virtio_pci virtio_net 9pnet_virtio 9p ext4 nvme-core nvme-fabrics nvme-tcp nvmet nvmet-tcp loop tls)
# Ciphers, hashes and checksums are reached by name through the crypto API, which `modprobe` cannot
# see.
modules_if_present=(crc32c_generic crct10dif_generic crc64-rocksoft nls_utf8
    sha256_generic sha512_generic hmac dh_generic nvme-auth aes_generic ctr ghash-generic gcm aesni_intel)
tools=(busybox nvme fio mkfs.ext4 fsck.ext4 blkdiscard)

PATH=$PATH:/usr/sbin:/sbin

unavailable() {
    echo "$1" >&2
    exit 77
}

# The kernel packages of this distribution at their newest version, "PACKAGE VERSION" a line.
# A metapackage (linux-image-amd64, linux-image-generic) depends on the real one.
kernel_packages() {
    local image flavor
    if [ -n "${GUEST_KERNEL:-}" ]; then
        # shellcheck disable=SC2086
        sha256sum $GUEST_KERNEL | awk '{ print $2, $1 }'
        return
    fi
    image=$(apt-cache depends --no-recommends --no-suggests \
        linux-image-amd64 linux-image-generic linux-image-virtual 2>/dev/null |
        sed -nE 's/^ *Depends: (linux-image-[0-9].*)$/\1/p' | sort -u | tail -n 1) || true
    [ -n "$image" ] || return 1
    flavor=${image#linux-image-}
    # Ubuntu keeps the modules apart, and nvme-tcp in the second of these packages.
    { apt-cache show --no-all-versions \
        "$image" "linux-modules-$flavor" "linux-modules-extra-$flavor" 2>/dev/null || true; } |
        awk '$1 == "Package:" { package = $2 } $1 == "Version:" { print package, $2 }'
}

refresh_package_lists() {
    if [ "$(id -u)" = 0 ]; then
        apt-get update -qq >&2
    elif command -v sudo >/dev/null; then
        sudo -n apt-get update -qq >&2
    else
        return 1
    fi
}

# Shared libraries (and the loader) that a program needs, as paths.
libraries_of() {
    { ldd "$1" 2>/dev/null || true; } | sed -nE 's/^.*(=> |\t)(\/[^ ]+) \(0x.*$/\2/p'
}

download_kernel() {
    local package version
    rm -rf "$work"
    mkdir -p "$work"
    while read -r package version; do
        [ -z "${GUEST_KERNEL:-}" ] || { cp "$package" "$work"; continue; }
        echo "downloading $package $version" >&2
        (cd "$work" && apt-get download -q "$package=$version" >apt.log 2>&1) ||
            { cat "$work/apt.log" >&2; return 1; }
    done <<<"$packages"
}

# Take vmlinuz, and the modules in the order in which they load, out of the packages.
unpack_kernel() {
    local into=$1 package release module path name
    rm -rf "$into"
    mkdir -p "$work/root" "$into/modules"
    for package in "$work"/*.deb; do
        dpkg-deb -x "$package" "$work/root"
    done
    # Debian's kernels from 7 on keep it beside their modules.
    for path in "$work"/root/boot/vmlinuz-* "$work"/root/usr/lib/modules/*/vmlinuz*; do
        [ ! -e "$path" ] || cp "$path" "$into/vmlinuz"
    done
    # Some releases keep modules in /usr/lib.
    [ -d "$work/root/lib/modules" ] || ln -s usr/lib "$work/root/lib"
    release=$(basename "$work"/root/lib/modules/*)
    depmod -b "$work/root" "$release"

    for module in "${modules[@]}"; do
        modprobe -d "$work/root" -S "$release" --show-depends "$module"
    done >"$work/depends"
    for module in "${modules_if_present[@]}"; do
        modprobe -d "$work/root" -S "$release" --show-depends "$module" 2>/dev/null || true
    done >"$work/depends_if_present"
    # First those that others look up at load time.
    cat "$work/depends_if_present" "$work/depends" |
        sed -nE 's/^insmod ([^ ]+).*$/\1/p' | awk '!seen[$0]++' >"$work/order"
    while read -r path; do
        name=$(basename "$path")
        case $name in
            *.zst) zstd -dqf "$path" -o "$into/modules/${name%.zst}" ;;
            *.xz) xz -dc "$path" >"$into/modules/${name%.xz}" ;;
            *.gz) gzip -dc "$path" >"$into/modules/${name%.gz}" ;;
            *) cp "$path" "$into/modules/$name" ;;
        esac
        echo "$name" | sed -E 's/\.(zst|xz|gz)$//' >>"$into/modules/order"
    done <"$work/order"
    rm -rf "$work"
}

build_initramfs() {
    local image=$1 kernel=$2 root tool path
    root=$work/root
    rm -rf "$work"
    mkdir -p "$root"/usr/{bin,sbin,lib,lib64} "$root"/etc/nvme "$root"/dev
    ln -s usr/bin usr/sbin usr/lib usr/lib64 "$root/"
    cp "$here/init" "$root/init"
    cp -r "$kernel/modules" "$root/modules"
    cp -L "$(command -v busybox)" "$root/usr/bin/busybox"
    ln -s busybox "$root/usr/bin/sh"
    for tool in "${tools[@]}"; do
        [ "$tool" = busybox ] || cp -L "$(command -v "$tool")" "$root/usr/sbin/$tool"
        libraries_of "$(command -v "$tool")"
    done | sort -u | while read -r path; do
        # /lib is a link to /usr/lib in the guest, whatever it is here.
        path_in_guest=$root/usr/${path#/}
        [[ $path == /usr/* ]] && path_in_guest=$root$path
        mkdir -p "$(dirname "$path_in_guest")"
        cp -L "$path" "$path_in_guest"
    done
    echo nqn.2014-08.org.nvmexpress:uuid:5f1a7e00-0000-4000-8000-000000000001 \
        >"$root/etc/nvme/hostnqn"
    echo 5f1a7e00-0000-4000-8000-000000000001 >"$root/etc/nvme/hostid"
    echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
    chmod 755 "$root/init"
    # Not compressed: an emulated processor unpacks slower than it copies.
    (cd "$root" && find . | sort | cpio --quiet -o -H newc -R 0:0) >"$image/initramfs"
    rm -rf "$work"
}

[ "$(uname -m)" = x86_64 ] || unavailable "the test guest is built on x86_64 alone"
for tool in "${tools[@]}" apt-get apt-cache dpkg-deb cpio depmod modprobe ldd flock; do
    command -v "$tool" >/dev/null || unavailable "$tool is missing; scripts/setup.sh installs it"
done

mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9

packages=$(kernel_packages) || { refresh_package_lists && packages=$(kernel_packages); } ||
    unavailable "this machine's package lists have no kernel; try: sudo apt-get update"

kernel_key=$(sha256sum <<<"$packages ${modules[*]} ${modules_if_present[*]} $(cat "$0")" | cut -c1-12)
kernel=$cache/kernel-$kernel_key
image_key=$({
    echo "$kernel_key"
    cat "$here/init"
    for tool in "${tools[@]}"; do
        command -v "$tool"
        libraries_of "$(command -v "$tool")"
    done | sort -u | xargs stat -L -c '%n %s %Y'
} | sha256sum | cut -c1-12)
image=$cache/image-$image_key

if [ ! -e "$image/initramfs" ]; then
    if [ ! -e "$kernel/vmlinuz" ]; then
        rm -rf "$cache"/kernel-*
        # Lists older than the mirror name a version that it has dropped, hence the second try.
        download_kernel ||
            { refresh_package_lists && packages=$(kernel_packages) && download_kernel; } ||
            unavailable "the kernel package could not be downloaded"
        unpack_kernel "$cache/kernel.new"
        mv "$cache/kernel.new" "$kernel"
    fi
    rm -rf "$cache"/image-* "$cache"/image.new
    mkdir "$cache/image.new"
    ln "$kernel/vmlinuz" "$cache/image.new/vmlinuz"
    build_initramfs "$cache/image.new" "$kernel"
    echo "$packages" >"$cache/image.new/packages"
    cp "$kernel/modules/order" "$cache/image.new/modules"
    mv "$cache/image.new" "$image"
fi
echo "$image"
