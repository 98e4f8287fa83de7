# Native multipath of the Linux kernel on a volume mirrored by two nodes, while the source role
# moves between them. Needs ADDRESSES and PORTS (of node 0 and node 1), NQN, and a host that
# answers: switchover (to the node that is not the source), die (kill the source and make the other
# the source), return (restart it, and wait until both are in sync). With LINKED=yes the host can
# also cut the link between the nodes: cut, cut-one-way, unplug, heal.

has_multipath() {
    [ "$(cat /sys/module/nvme_core/parameters/multipath)" = Y ]
}

# connect PORT
connect() {
    address=${ADDRESSES% *}
    [ "$1" = "${PORTS% *}" ] || address=${ADDRESSES#* }
    nvme connect -t tcp -a "$address" -s "$1" -n "$NQN" \
        --nr-io-queues=2 --reconnect-delay=1 --ctrl-loss-tmo=300 --keep-alive-tmo=5
}
# Paths are hidden devices, nvmeScCnN, of controller C.
paths() {
    cat /sys/block/nvme*c*n*/ana_state | sort | xargs
}
are_paths() {
    [ "$(paths)" = "$1" ]
}
# Port of the node to use. A lost path shows its last known state.
active_port() {
    for path in /sys/block/nvme*c*n*; do
        controller=/sys/class/nvme/$(basename "$path" | sed -E 's/.*c([0-9]+)n.*/nvme\1/')
        if [ "$(cat "$path/ana_state") $(cat "$controller/state")" = "optimized live" ]; then
            sed -E 's/.*trsvcid=([0-9]+).*/\1/' "$controller/address"
        fi
    done
}
is_active() {
    [ "$(active_port)" = "$1" ]
}
# Writes completed by paths.
writes_done() {
    cat /sys/block/nvme*c*n*/stat | awk '{ sum += $5 } END { print sum + 0 }'
}
has_written() {
    [ "$(writes_done)" -ge "$1" ]
}
# more COUNT: wait until COUNT further writes have completed under the load.
more() {
    base=$(writes_done)
    eventually has_written $((base + $1))
    kill -0 $load
}
# Set by the functions that move the role: the ports of the source and of the target.
swap() {
    swapped=$source
    source=$target
    target=$swapped
}

both_paths() {
    has_multipath
    for port in $PORTS; do
        connect "$port"
    done
    eventually namespace
    eventually test -b "/dev/$(namespace)"
    eventually are_paths "inaccessible optimized"
    is_active "${PORTS% *}"
    nvme list-subsys
    # One device over all paths.
    [ "$(ls -d /dev/nvme*n* | wc -l)" -eq 1 ]
    [ "$(ls -d /sys/class/nvme-subsystem/*/nvme*n* | wc -l)" -ge 1 ]
}

# No host I/O may fail while the role moves back and forth under load.
switchovers() {
    source=${PORTS% *}
    target=${PORTS#* }
    verify_fio --rw=randwrite --bssplit=4k/60:16k/30:64k/10 --size=48m --iodepth=16 --rate_iops=600 &
    load=$!
    for round in 1 2 3 4; do
        more 200
        ask switchover
        swap
        eventually is_active "$source"
        eventually are_paths "inaccessible optimized"
    done
    more 200
    wait $load
}

# The source dies: data acknowledged by the other since then, and data on both before, is kept.
failover() {
    source=${PORTS% *}
    target=${PORTS#* }
    verify_fio --rw=randwrite --bs=8k --size=32m --iodepth=16 --rate_iops=400 &
    load=$!
    more 200
    ask die
    eventually is_active "$target"
    more 200
    ask return
    eventually are_paths "inaccessible optimized"
    is_active "$target"
    more 200
    ask switchover
    eventually is_active "$source"
    wait $load
}

# The nodes lose each other: hosts of the source continue, and the role moves after both are in sync
# again.
cuts() {
    source=${PORTS% *}
    target=${PORTS#* }
    verify_fio --rw=randwrite --bssplit=4k/60:64k/40 --size=48m --iodepth=16 --rate_iops=300 &
    load=$!
    for how in cut cut-one-way unplug; do
        more 50
        ask $how
        more 100
        ask heal
        more 50
        ask switchover
        swap
        eventually is_active "$source"
        eventually are_paths "inaccessible optimized"
    done
    more 20
    wait $load
}

no_errors() {
    dmesg >/tmp/dmesg
    # Waiting for a path is correct ("requeuing I/O"), giving up is not.
    refused grep -E 'I/O error|failing I/O' /tmp/dmesg
}

disconnect() {
    [ "$(nvme disconnect -n "$NQN" | grep -c 'disconnected 2 controller')" -eq 1 ]
}

step both-paths both_paths
step switchovers switchovers
step failover failover
[ -z "$LINKED" ] || step cuts cuts
step no-errors no_errors
step disconnect disconnect
