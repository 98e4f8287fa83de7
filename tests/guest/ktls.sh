# TLS records by the guest's kernel: this program serves volumes over NVMe/TCP and NBD to itself.
# Before Linux 6.14, the kernel must not get them. Needs the program on the share.

HOST=nqn.2014-08.org.nvmexpress:uuid:f81d4fae-7dec-11d0-a765-00a0c91e6bf6
keys=/tmp/keys

# Mapping a program over 9p is slow, hence the copy.
flagstone() {
    LD_LIBRARY_PATH=/share/lib /tmp/flagstone "$@"
}

# True if the program gives its records to this kernel.
uses_kernel() {
    uname -r | awk -F'[.-]' '{ exit !($1 > 6 || $1 == 6 && $2 >= 14) }'
}

kernel_tls() {
    awk -v name="$1" '$1 == name { print $2 }' /proc/net/tls_stat
}

listens() {
    grep -q 'listening.*nvme-tcp' /share/serve.log && grep -q 'listening.*nbd' /share/serve.log
}

serve() {
    cp /share/flagstone /tmp/flagstone
    mkdir -m 700 $keys
    umask 077
    flagstone key generate --tls $keys/host
    echo "alice:8f1d2c3b4a5968778695a4b3c2d1e0ff8f1d2c3b4a5968778695a4b3c2d1e0ff" >$keys/nbd
    cat >$keys/flagstone.toml <<END
[server]
listen = ["nvme-tcp://127.0.0.1:4420?tls=required", "nbd://127.0.0.1:10809?tls=required"]
[server.nbd]
tls_psk_file = "$keys/nbd"
[host.guest]
nqn = "$HOST"
tls_key_file = "$keys/host"
[volume.db]
device = "memory:4MiB"
END
    flagstone serve $keys/flagstone.toml >/share/serve.log 2>&1 &
    server=$!
    echo $server >/tmp/server
    eventually listens
}

# verify DEVICE: writes and reads with checks. Both ends of each connection have their records in
# the kernel, or none.
verify() {
    sent=$(kernel_tls TlsTxSw)
    received=$(kernel_tls TlsRxSw)
    for requests in '--bs 4k --depth 8 --ios 200' '--bs 256k --depth 2 --ios 20'; do
        # shellcheck disable=SC2086
        flagstone load "$1" --rw randrw $requests --verify --destroy-data "$1"
    done
    sent=$(($(kernel_tls TlsTxSw) - sent))
    received=$(($(kernel_tls TlsRxSw) - received))
    echo "kernel TLS: $sent send, $received receive"
    if uses_kernel; then
        [ $sent -ge 4 ] && [ $sent -eq $received ]
    else
        [ $sent -eq 0 ] && [ $received -eq 0 ]
    fi
    [ "$(kernel_tls TlsDecryptError)" -eq 0 ]
}

over_nvme() {
    verify "nvme-tcp://127.0.0.1:4420/nqn.2026-01.io.flagstone:db?hostnqn=$HOST&tls-key-file=$keys/host"
}

over_nbd() {
    verify "nbds://alice@127.0.0.1:10809/db?tls-psk-file=$keys/nbd"
}

ended() {
    refused kill -0 "$(cat /tmp/server)"
}

# A record is encrypted until the last one: the server sees an orderly end.
end() {
    kill "$(cat /tmp/server)"
    eventually ended
    refused grep -iE 'error|TLS:' /share/serve.log
    [ "$(kernel_tls TlsCurrTxSw)" -eq 0 ]
}

step serve-tls serve
step ktls-nvme over_nvme
step ktls-nbd over_nbd
step ktls-end end
