//! Arbiter of mirrors that fail over by themselves.

use super::form::keys;
use super::{Section, ValueKind};

/// `[arbiter]`
pub static ARBITER: Section = Section {
    path: "arbiter",
    keys: keys! {
        "etcd", ValueKind::List("endpoint"), "" =>
            "Members of an etcd cluster, version 3.4 or later: `https://HOST:PORT`, or `http://` on a network that only the nodes and the cluster share. Default port 2379. One that answers is enough. This or `object_store` is required.";
        "object_store", ValueKind::Text("URL"), "" =>
            "Instead of etcd, a bucket with conditional writes: `s3://BUCKET/PREFIX` (Amazon S3, or a compatible `endpoint`), `gs://` (Google) or `az://` with a container (Azure). Default prefix: `flagstone`. The same on both nodes.";
        "region", ValueKind::Text("region"), "" =>
            "Region of an `s3://` bucket. Required without `endpoint`; with one, the default is `us-east-1`.";
        "account", ValueKind::Text("storage account"), "" =>
            "Storage account of an `az://` container. Required there.";
        "endpoint", ValueKind::Text("endpoint"), "" =>
            "Server of the bucket, if not the cloud's own: `https://HOST:PORT`; `http://` as for `etcd`.";
        "credentials_file", ValueKind::Text("path"), "" =>
            "Credentials for the bucket (mode 0600), read again when they change. S3: lines `aws_access_key_id = …` and `aws_secret_access_key = …`; Google: a service account's JSON key; Azure: one line `account_key = …` or `sas_token = …`. Default: the machine's identity in its cloud.";
        "ca_file", ValueKind::Text("path"), "" =>
            "Authorities (PEM) that may certify the store. Default: the machine's.";
        "certificate_file", ValueKind::Text("path"), "" =>
            "This node's certificate (PEM), for an etcd with `--client-cert-auth`. Required with `key_file`.";
        "key_file", ValueKind::Text("path"), "" =>
            "Its key (mode 0600). Required with `certificate_file`.";
        "prefix", ValueKind::Text("key prefix"), "/flagstone" =>
            "Beginning of the keys: the record of a volume is `PREFIX/failover/UUID`. The same on both nodes.";
        "user", ValueKind::Text("user name"), "" =>
            "User of etcd who may read and write these keys. Default: none.";
        "password_file", ValueKind::Text("path"), "" =>
            "The user's password (mode 0600). Required with `user`.";
    },
    profile: false,
};
