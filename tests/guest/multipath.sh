# What the Linux kernel's native multipath does with a volume that two nodes mirror, while the role
# goes from one to the other. Needs ADDRESSES and PORTS (of node 0 and node 1), NQN, and a host that
# answers: switchover (to the node that is not the source), die (the source is killed, and the other
# made the source), return (it comes back, and both are in sync). With LINKED=yes the host can cut
# the link between the nodes too: cut, cut-one-way, unplug, heal.

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
# Port of the node that is to be used: a path that is gone says what it was told last.
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
# Writes that paths completed.
writes_done() {
    cat /sys/block/nvme*c*n*/stat | awk '{ sum += $5 } END { print sum + 0 }'
}
has_written() {
    [ "$(writes_done)" -ge "$1" ]
}
# more COUNT: so many writes more complete, and the load goes on.
more() {
    base=$(writes_done)
    eventually has_written $((base + $1))
    kill -0 $load
}
# Set by who changes the role: the ports of the source and of the target.
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
    # One device, whichever way it is reached.
    [ "$(ls -d /dev/nvme*n* | wc -l)" -eq 1 ]
    [ "$(ls -d /sys/class/nvme-subsystem/*/nvme*n* | wc -l)" -ge 1 ]
}

# Nothing that a host does is to fail while the role goes to and fro under its load.
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

# The source dies: what the other acknowledged since, and what both had before, is there.
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

# The nodes lose each other: hosts of the source go on, and the role goes over when both are in sync
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
    # To wait for a path is right ("requeuing I/O"), to give up is not.
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
