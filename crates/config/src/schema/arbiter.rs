//! Arbiter of mirrors that fail over by themselves.

use super::form::keys;
use super::{Kind, Section};

/// `[arbiter]`
pub static ARBITER: Section = Section {
    path: "arbiter",
    keys: keys! {
        "etcd", Kind::List("endpoint"), "" =>
            "Members of an etcd cluster, version 3.4 or later: `http://HOST:PORT`, port 2379 if omitted. One that answers is enough. The connection is not encrypted: use a network that only the nodes and the cluster share. Required.";
        "prefix", Kind::Text("key prefix"), "/flagstone" =>
            "Beginning of the keys: the record of a volume is `PREFIX/failover/UUID`. The same on both nodes.";
        "user", Kind::Text("user name"), "" =>
            "User of etcd, with permission to read and write these keys. Default: none, for a cluster without authentication.";
        "password_file", Kind::Text("path"), "" =>
            "Absolute path of a file of mode 0600 with the user's password. Required with `user`.";
    },
    profile: false,
};
