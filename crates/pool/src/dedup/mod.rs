//! Deduplication: the cleaner packs equal blocks of volumes with `dedup` into one compressed unit.
//!
//! A unit has a part for each copy, each with a volume, a block and a location of its own. So no
//! other code knows that a block is shared: overwriting or deleting one part leaves the others, and
//! the unit keeps its space while one part is live.
//!
//! This module has what finds equal blocks: the setting, the [`fingerprint`], the [`index`], and
//! the [`progress`] of the scan.

pub(crate) mod fingerprint;
pub(crate) mod index;
pub(crate) mod progress;

use std::collections::BTreeMap;

/// Name of the volume's property that turns deduplication `on` or `off`, its default.
pub const DEDUP_PROPERTY: &str = "dedup";

/// Name of the volume's property with its domain: volumes share only with volumes that have the
/// same value, or none either.
pub const DEDUP_DOMAIN_PROPERTY: &str = "dedup.domain";

/// Whether the blocks of a volume may be stored together with equal ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dedup {
    /// No block gets shared. What was shared before stays so.
    #[default]
    Off,
    /// With all volumes of the pool that have it on and the same domain.
    On,
}

impl Dedup {
    /// All settings.
    pub const ALL: [Dedup; 2] = [Dedup::Off, Dedup::On];

    /// Its name in properties.
    pub fn name(self) -> &'static str {
        match self {
            Dedup::Off => "off",
            Dedup::On => "on",
        }
    }

    /// The setting of this name.
    pub fn parse(name: &str) -> Option<Dedup> {
        Dedup::ALL.into_iter().find(|setting| setting.name() == name)
    }

    /// The setting among a volume's properties; off without a known one.
    pub fn of(properties: &BTreeMap<String, String>) -> Dedup {
        let name = properties.get(DEDUP_PROPERTY);
        name.and_then(|name| Dedup::parse(name)).unwrap_or_default()
    }
}

/// State of deduplication in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupStatus {
    /// Volumes whose equal blocks are shared.
    pub volumes: usize,
    /// Space to scan for equal blocks, in bytes of whole segments.
    pub unscanned_bytes: u64,
    /// Memory of the index of fingerprints, in bytes.
    pub index_bytes: u64,
}

/// Domain of volumes that may share blocks: a digest of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Domain([u8; 16]);

impl Domain {
    pub(crate) fn of(name: &str) -> Domain {
        let hash = blake3::hash(name.as_bytes());
        let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
        Domain(*first)
    }
}

/// Name of the domain of a volume with these properties; `None` if its blocks are not to be shared.
pub(crate) fn domain_name(properties: &BTreeMap<String, String>) -> Option<&str> {
    let name = properties.get(DEDUP_DOMAIN_PROPERTY).map_or("", String::as_str);
    (Dedup::of(properties) == Dedup::On).then_some(name)
}

/// Value of [`DEDUP_DOMAIN_PROPERTY`] for volumes of these owners, in any order.
pub fn dedup_domain<'a>(owners: impl IntoIterator<Item = &'a str>) -> String {
    let owners: std::collections::BTreeSet<&str> = owners.into_iter().collect();
    let mut hasher = blake3::Hasher::new();
    for owner in owners {
        hasher.update(&(owner.len() as u64).to_le_bytes());
        hasher.update(owner.as_bytes());
    }
    hasher.finalize().to_hex().as_str()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_is_the_set_of_owners() {
        assert_eq!(dedup_domain(["a", "b"]), dedup_domain(["b", "a", "b"]));
        assert_ne!(dedup_domain(["a", "b"]), dedup_domain(["ab"]));
        assert_ne!(dedup_domain(["a"]), dedup_domain([]));
        let of = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).into(), (*value).into()));
            domain_name(&pairs.collect()).map(Domain::of)
        };
        assert_eq!((of(&[]), of(&[("dedup", "off")]), of(&[("dedup", "On")])), (None, None, None));
        assert_eq!(of(&[("dedup", "on")]), of(&[("dedup", "on"), ("compression", "lz4")]));
        assert_ne!(of(&[("dedup", "on")]), of(&[("dedup", "on"), ("dedup.domain", "1")]));
    }
}
