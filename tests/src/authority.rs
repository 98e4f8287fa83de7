//! Certificate authority for tests, by openssl.

use std::path::{Path, PathBuf};

use crate::scratch::Scratch;
use crate::tools;

/// Options of `openssl req` for a new key.
const KEY: [&str; 6] =
    ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-batch"];

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// Authority, and certificates that it issues, in a test's directory.
#[derive(Debug)]
pub struct Authority<'a>(&'a Scratch);

impl Authority<'_> {
    /// Makes an authority.
    ///
    /// # Panics
    ///
    /// Without openssl.
    pub fn new(scratch: &Scratch) -> Authority<'_> {
        let (key, ca) = (scratch.join("ca.key"), scratch.join("ca.pem"));
        let own = ["-keyout", text(&key), "-out", text(&ca), "-subj", "/CN=test", "-days", "2"];
        tools::run("openssl", &[&["req", "-x509"], &KEY[..], &own].concat());
        Authority(scratch)
    }

    /// Path of its own certificate.
    pub fn ca(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// Paths of a certificate with this alternative name, and of its key.
    ///
    /// # Panics
    ///
    /// If openssl fails.
    pub fn issue(&self, name: &str, alternative: &str) -> (PathBuf, PathBuf) {
        let file = |end: &str| self.0.join(&format!("{name}.{end}"));
        let [key, request, extensions, certificate] = ["key", "csr", "ext", "pem"].map(file);
        let own = ["-keyout", text(&key), "-out", text(&request), "-subj", "/CN=none"];
        tools::run("openssl", &[&["req"], &KEY[..], &own].concat());
        let lines = format!("subjectAltName={alternative}\nbasicConstraints=CA:FALSE\n");
        std::fs::write(&extensions, lines).expect("it can be written");
        let (ca, ca_key) = (self.ca(), self.0.join("ca.key"));
        let signed = ["x509", "-req", "-days", "2", "-CAcreateserial", "-CA", text(&ca), "-CAkey"];
        let files = [text(&ca_key), "-in", text(&request), "-out", text(&certificate)];
        tools::run("openssl", &[&signed[..], &files, &["-extfile", text(&extensions)]].concat());
        (certificate, key)
    }
}
