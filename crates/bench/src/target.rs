//! What is measured on: a device, a file, a served volume, or several of them as one; named, so
//! that results can be put side by side.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::limits::DISKS;

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A block device or a file of this machine, driven by fio.
    Path(PathBuf),
    /// An export, `nbd://…`, driven by fio's nbd engine.
    Nbd(String),
    /// A namespace, `nvme-tcp://…`, driven by the kernel and fio, or by our own load generator.
    NvmeTcp(String),
}

impl Place {
    /// The path, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Place::Path(path) => Some(path),
            _ => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Path(path) => write!(f, "{}", path.display()),
            Place::Nbd(uri) | Place::NvmeTcp(uri) => f.write_str(uri),
        }
    }
}

/// One thing to measure: `[NAME=]DISK[,DISK…]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// What tables call it.
    pub name: String,
    /// Its disks, all of one kind.
    pub disks: Vec<Place>,
}

impl Target {
    /// The disks as they were written.
    pub fn address(&self) -> String {
        self.disks.iter().map(Place::to_string).collect::<Vec<_>>().join(",")
    }
}

fn place(text: &str) -> Result<Place, String> {
    if text.is_empty() {
        return Err("a target's disk is empty".to_owned());
    }
    if text.contains(['\n', '\r', '\0']) {
        return Err("a target with a line break".to_owned());
    }
    if text.starts_with("nbd://") || text.starts_with("nbd+unix://") {
        return Ok(Place::Nbd(text.to_owned()));
    }
    if text.starts_with("nvme-tcp://") {
        return Ok(Place::NvmeTcp(text.to_owned()));
    }
    match text.split_once("://") {
        Some((scheme, _)) => Err(format!("`{scheme}://` is no target: nbd:// or nvme-tcp://")),
        None => Ok(Place::Path(PathBuf::from(text))),
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
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
        Ok(Target { name: name.to_owned(), disks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Target, String> {
        text.parse()
    }

    #[test]
    fn kinds_and_names() {
        let target = parse("local=/dev/nvme0n1,/dev/nvme0n2").unwrap();
        assert_eq!((target.name.as_str(), target.disks.len()), ("local", 2));
        assert_eq!(target.address(), "/dev/nvme0n1,/dev/nvme0n2");
        assert_eq!(parse("./f").unwrap().name, "./f");
        assert!(matches!(parse("x=nbd://h:1/e").unwrap().disks[0], Place::Nbd(_)));
        assert!(matches!(parse("nvme-tcp://h/nqn").unwrap().disks[0], Place::NvmeTcp(_)));
        let strange = parse("/a/b=c").unwrap();
        assert_eq!(strange.disks[0].path(), Some(Path::new("/a/b=c")), "no name has a slash");
    }

    #[test]
    fn mistakes() {
        for text in ["", "a=", "a,,b", "http://x", "f,nbd://h/e", "a\nb", "nvme-tcp://a,nbd://b"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
    }
}
