//! Arbiter of mirrors that fail over by themselves.

use super::form::keys;
use super::{Kind, Section};

/// `[arbiter]`
pub static ARBITER: Section = Section {
    path: "arbiter",
    keys: keys! {
        "etcd", Kind::List("endpoint"), "" =>
            "Members of an etcd cluster, version 3.4 or later: `https://HOST:PORT`, or `http://` on a network that only the nodes and the cluster share. Default port 2379. One that answers is enough. Required.";
        "ca_file", Kind::Text("path"), "" =>
            "Authorities (PEM) that may certify etcd. Default: those of the machine.";
        "certificate_file", Kind::Text("path"), "" =>
            "This node's certificate (PEM), for an etcd with `--client-cert-auth`. Required with `key_file`.";
        "key_file", Kind::Text("path"), "" =>
            "Its key (mode 0600). Required with `certificate_file`.";
        "prefix", Kind::Text("key prefix"), "/flagstone" =>
            "Beginning of the keys: the record of a volume is `PREFIX/failover/UUID`. The same on both nodes.";
        "user", Kind::Text("user name"), "" =>
            "User of etcd who may read and write these keys. Default: none.";
        "password_file", Kind::Text("path"), "" =>
            "The user's password (mode 0600). Required with `user`.";
    },
    profile: false,
};
