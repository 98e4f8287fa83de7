//! Arbiter of mirrors that fail over by themselves.

use super::form::keys;
use super::{Kind, Section};

/// `[arbiter]`
pub static ARBITER: Section = Section {
    path: "arbiter",
    keys: keys! {
        "etcd", Kind::List("endpoint"), "" =>
            "Members of an etcd cluster, version 3.4 or later: `https://HOST:PORT`, or `http://` on a network that only the nodes and the cluster share. Port 2379 if omitted. One that answers is enough. Required.";
        "ca_file", Kind::Text("path"), "" =>
            "Absolute path of a file with the authorities (PEM) that are trusted to certify etcd. Default: those of the machine.";
        "certificate_file", Kind::Text("path"), "" =>
            "Absolute path of this node's certificate (PEM), for an etcd with `--client-cert-auth`. Required with `key_file`.";
        "key_file", Kind::Text("path"), "" =>
            "Absolute path of the certificate's key, of mode 0600. Required with `certificate_file`.";
        "prefix", Kind::Text("key prefix"), "/flagstone" =>
            "Beginning of the keys: the record of a volume is `PREFIX/failover/UUID`. The same on both nodes.";
        "user", Kind::Text("user name"), "" =>
            "User of etcd, with permission to read and write these keys. Default: none, for a cluster without authentication.";
        "password_file", Kind::Text("path"), "" =>
            "Absolute path of a file of mode 0600 with the user's password. Required with `user`.";
    },
    profile: false,
};
