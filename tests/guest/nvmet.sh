# Linux's own NVMe/TCP target in the guest, in place of Flagstone. It proves that the scenario in
# nvme.sh requires no more than the kernel's target provides. Sourced before nvme.sh.
ADDRESS=127.0.0.1 PORT=4420
target=/sys/kernel/config/nvmet

listen() {
    ln -s "$target/subsystems/$NQN" "$target/ports/1/subsystems/$NQN"
}
# Simulates a kill of the server: every connection to the volume is closed, then served again.
ask() {
    [ "$*" = restart ] || return 1
    rm "$target/ports/1/subsystems/$NQN"
    listen
}

serve() {
    mount -t configfs configfs /sys/kernel/config
    truncate -s "$SIZE_BYTES" /tmp/disk
    loop=$(losetup -f)
    losetup "$loop" /tmp/disk
    mkdir -p "$target/subsystems/$NQN/namespaces/1" "$target/ports/1"
    echo 1 >"$target/subsystems/$NQN/attr_allow_any_host"
    echo -n "$loop" >"$target/subsystems/$NQN/namespaces/1/device_path"
    echo 5f1a7e00-0000-4000-8000-000000000002 >"$target/subsystems/$NQN/namespaces/1/device_uuid"
    echo 1 >"$target/subsystems/$NQN/namespaces/1/enable"
    echo "$ADDRESS" >"$target/ports/1/addr_traddr"
    echo ipv4 >"$target/ports/1/addr_adrfam"
    echo tcp >"$target/ports/1/addr_trtype"
    echo "$PORT" >"$target/ports/1/addr_trsvcid"
    listen
}
step nvmet serve
