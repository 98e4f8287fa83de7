//! Volumes, their simple layers, and subsystems.

use super::form::{GIB, MINUTE_MS, keys, time};
use super::{DISK_MODEL, LIMIT, MIRROR, Section, SizeRule, ValueKind};

const EVERY: ValueKind = ValueKind::Count(1..=1_000_000_000);
const PER_MILLION: ValueKind = ValueKind::Count(0..=1_000_000);

/// `[volume.NAME]`
pub static VOLUME: Section = Section {
    path: "volume.NAME",
    keys: keys! {
        "shared_limit", ValueKind::Text("limit name"), "" =>
            "[Rate limit](#limitname) shared with other volumes.";
        "limit", ValueKind::Table(&LIMIT), "" =>
            "[Rate limit layer](#limitname).";
        "mirror", ValueKind::Table(&MIRROR), "" =>
            "[Mirror layer](#mirror).";
        "disk_model", ValueKind::Table(&DISK_MODEL), "" =>
            "[Disk model layer](#disk_model), for labs.";
        "delay", ValueKind::Table(&DELAY), "" => "[Delay layer](#delay).";
        "fault", ValueKind::Table(&FAULT), "" => "[Fault injection layer](#fault).";
        "layers", ValueKind::List("layer"), "" =>
            "Order of the layers, from the host's side. Default: this table's.";
        "device", ValueKind::Text("device"), "" =>
            "[Device](#devices) that stores the data. This or `stripe` is required.";
        "stripe", ValueKind::Table(&STRIPE), "" => "Several striped devices.";
        "block_size", ValueKind::Size(512..=4096, SizeRule::MinOrMax), "" =>
            "Logical block size. Default: the device's, 4096 for a file.";
        "read_only", ValueKind::Boolean, "false" => "Refuse writes, and open the device read-only.";
        "nqn", ValueKind::Text("NQN"), "" =>
            "NQN of its subsystem. Default: `nqn_prefix:NAME`.";
        "uuid", ValueKind::Text("UUID"), "" =>
            "UUID of the namespace. Default: derived from machine, NQN and name.";
        "serial", ValueKind::Text("serial number"), "" =>
            "Serial number of its subsystem, at most 20 characters. Default: derived from machine and NQN.";
        "allow_hosts", ValueKind::List("NQN"), "" =>
            "Hosts that may connect over NVMe/TCP. Default: all; empty: none. NBD clients have no names.";
        "nbd_export", ValueKind::Text("export name"), "" =>
            "Name of the NBD export. Default: NAME.";
        "nbd_clients", ValueKind::List("client name"), "" =>
            "NBD clients that may use it, by a name in their certificate or the name of their pre-shared key. Others, and clients without TLS, are refused. Default: all.";
    },
    profile: false,
};

/// `delay = { … }`
pub static DELAY: Section = Section {
    path: "volume.NAME.delay",
    keys: keys! {
        "read", time(0, MINUTE_MS), "0" => "Added to each such request.";
        "write", time(0, MINUTE_MS), "0" => "Added to each such request.";
        "flush", time(0, MINUTE_MS), "0" => "Added to each such request.";
        "discard", time(0, MINUTE_MS), "0" => "Added to each discard and write of zeroes.";
        "jitter", time(0, MINUTE_MS), "0" =>
            "Added to each request, uniformly from 0 to this.";
    },
    profile: false,
};

/// `fault = { … }`
pub static FAULT: Section = Section {
    path: "volume.NAME.fault",
    keys: keys! {
        "read_error_every", EVERY, "" => "Every Nth such request fails. Writes include writes of zeroes.";
        "write_error_every", EVERY, "" =>
            "Every Nth such request fails. Writes include writes of zeroes.";
        "flush_error_every", EVERY, "" => "Every Nth such request fails. Writes include writes of zeroes.";
        "read_errors_per_million", PER_MILLION, "" =>
            "Failing requests of a million, at random; replaces `…_error_every`.";
        "write_errors_per_million", PER_MILLION, "" =>
            "Failing requests of a million, at random; replaces `…_error_every`.";
        "flush_errors_per_million", PER_MILLION, "" =>
            "Failing requests of a million, at random; replaces `…_error_every`.";
        "seed", ValueKind::Count(0..=i64::MAX as u64), "0" =>
            "Seed of random failures.";
    },
    profile: false,
};

/// `stripe = { … }`
pub static STRIPE: Section = Section {
    path: "volume.NAME.stripe",
    keys: keys! {
        "chunk", ValueKind::Size(512..=GIB, SizeRule::MultipleOf(512)), "64KiB" =>
            "Consecutive bytes on one device, a multiple of the block size.";
        "devices", ValueKind::List("device"), "" => "2 to 64 devices in order. Required.";
    },
    profile: false,
};

/// `[host.NAME]`
pub static HOST: Section = Section {
    path: "host.NAME",
    keys: keys! {
        "nqn", ValueKind::Text("NQN"), "" => "The host's NQN. Required.";
        "key_file", ValueKind::Text("path"), "" =>
            "Key that the host has to prove. This or `tls_key_file` is required.";
        "controller_key_file", ValueKind::Text("path"), "" =>
            "Key that this server proves, if the host asks (`--dhchap-ctrl-secret` of nvme-cli). Default: none.";
        "tls_key_file", ValueKind::Text("path"), "" =>
            "The host's TLS key (`flagstone key generate --tls`). Default: no TLS.";
    },
    profile: false,
};

/// `[subsystem.NAME]`
pub static SUBSYSTEM: Section = Section {
    path: "subsystem.NAME",
    keys: keys! {
        "nqn", ValueKind::Text("NQN"), "" => "Default: `nqn_prefix:NAME`.";
        "serial", ValueKind::Text("serial number"), "" =>
            "As of a volume.";
        "namespaces", ValueKind::List("volume name"), "" =>
            "Its volumes, from namespace 1. Required.";
        "allow_hosts", ValueKind::List("NQN"), "" =>
            "As of a volume.";
    },
    profile: false,
};
