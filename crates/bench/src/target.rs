//! Targets: a device, a file, a served volume, or several as one, with a name for comparisons.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::DISKS;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DiskAddress {
    /// A block device or file of this machine, measured with fio.
    Path(PathBuf),
    /// An export, `nbd://…`, measured with fio's nbd engine.
    Nbd(String),
    /// A namespace, `nvme-tcp://…`, measured through the kernel and fio, or with our own generator.
    NvmeTcp(String),
}

impl DiskAddress {
    /// Whether it may discard: not a regular file, nor a file that does not exist.
    pub(crate) fn can_discard(&self) -> bool {
        self.path().is_none_or(|path| path.exists() && !path.is_file())
    }

    /// Path of a device or file; `None` for served volumes.
    pub fn path(&self) -> Option<&Path> {
        match self {
            DiskAddress::Path(path) => Some(path),
            _ => None,
        }
    }
}

impl fmt::Display for DiskAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DiskAddress::Path(path) => write!(f, "{}", path.display()),
            DiskAddress::Nbd(uri) | DiskAddress::NvmeTcp(uri) => f.write_str(uri),
        }
    }
}

/// A target: `[NAME=]DISK[,DISK…]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BenchTarget {
    pub name: String,
    pub disks: Vec<DiskAddress>,
}

impl BenchTarget {
    pub fn address(&self) -> String {
        self.disks.iter().map(DiskAddress::to_string).collect::<Vec<_>>().join(",")
    }
}

fn place(text: &str) -> Result<DiskAddress, String> {
    if text.is_empty() {
        return Err("a target's disk is empty".to_owned());
    }
    if text.contains(['\n', '\r', '\0']) {
        return Err("a target with a line break".to_owned());
    }
    if text.starts_with("nbd://") || text.starts_with("nbd+unix://") {
        return Ok(DiskAddress::Nbd(text.to_owned()));
    }
    if text.starts_with("nvme-tcp://") {
        return Ok(DiskAddress::NvmeTcp(text.to_owned()));
    }
    match text.split_once("://") {
        Some((scheme, _)) => Err(format!("`{scheme}://` is no target: nbd:// or nvme-tcp://")),
        None => Ok(DiskAddress::Path(PathBuf::from(text))),
    }
}

impl FromStr for BenchTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<BenchTarget, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) if !name.is_empty() && name.chars().all(is_name) => (name, rest),
            _ => (text, text),
        };
        let disks = rest.split(',').map(place).collect::<Result<Vec<_>, _>>()?;
        if disks.len() > DISKS {
            return Err(format!("a target joins at most {DISKS} disks"));
        }
        let kind = std::mem::discriminant(&disks[0]);
        if disks.iter().any(|disk| std::mem::discriminant(disk) != kind) {
            return Err(format!("{text}: disks of one target are of one kind"));
        }
        Ok(BenchTarget { name: name.to_owned(), disks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<BenchTarget, String> {
        text.parse()
    }

    #[test]
    fn target_kinds_and_names() {
        let target = parse("local=/dev/nvme0n1,/dev/nvme0n2").unwrap();
        assert_eq!((target.name.as_str(), target.disks.len()), ("local", 2));
        assert_eq!(target.address(), "/dev/nvme0n1,/dev/nvme0n2");
        assert_eq!(parse("./f").unwrap().name, "./f");
        assert!(matches!(parse("x=nbd://h:1/e").unwrap().disks[0], DiskAddress::Nbd(_)));
        assert!(matches!(parse("nvme-tcp://h/nqn").unwrap().disks[0], DiskAddress::NvmeTcp(_)));
        let strange = parse("/a/b=c").unwrap();
        assert_eq!(strange.disks[0].path(), Some(Path::new("/a/b=c")), "no name has a slash");
    }

    #[test]
    fn invalid_targets_are_refused() {
        for text in ["", "a=", "a,,b", "http://x", "f,nbd://h/e", "a\nb", "nvme-tcp://a,nbd://b"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
