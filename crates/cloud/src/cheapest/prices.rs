//! User-supplied prices: of machines, which catalogs lack, and of disks in another region or
//! under another contract.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::catalog::{Catalog, CatalogError, CatalogSource, Confidence, Price};
use crate::input::PlanError;

/// Key of the price file among the sources.
const SOURCE: &str = "price-file";

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Region, contract or date of the prices.
    #[serde(default)]
    title: String,
    #[serde(default)]
    machine_usd_per_month: BTreeMap<String, f64>,
    #[serde(default)]
    disk: BTreeMap<String, DiskPrice>,
}

/// Price of a disk type, in the catalog's units.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskPrice {
    #[serde(alias = "usd_per_gib")]
    usd_per_gb: f64,
    #[serde(alias = "usd_per_gib_regional")]
    usd_per_gb_regional: Option<f64>,
    usd_per_iops: Option<f64>,
    #[serde(alias = "usd_per_mib_per_s")]
    usd_per_mb_per_s: Option<f64>,
}

impl Prices {
    /// Parses prices in TOML. `file` is its name for messages.
    pub fn parse(file: &str, text: &str) -> Result<Prices, CatalogError> {
        let prices: Prices = crate::catalog::from_toml(file, text)?;
        let disks = prices.disk.iter().flat_map(|(name, disk)| {
            let rest = [disk.usd_per_gb_regional, disk.usd_per_iops, disk.usd_per_mb_per_s];
            rest.into_iter().flatten().chain([disk.usd_per_gb]).map(move |usd| (name, usd))
        });
        let machines = prices.machine_usd_per_month.iter().map(|(name, usd)| (name, *usd));
        for (name, usd) in disks.chain(machines) {
            if !(usd.is_finite() && usd >= 0.0) {
                return Err(CatalogError {
                    file: file.to_owned(),
                    line: None,
                    message: format!("a price of {usd} for `{name}`"),
                    help: "write a number from 0, in USD".to_owned(),
                });
            }
        }
        Ok(prices)
    }

    /// Reads a price file of at most 1 MiB.
    ///
    /// # Errors
    /// The file is unreadable, or its first mistake.
    pub fn read(path: &Path) -> Result<Prices, CatalogError> {
        let text = crate::catalog::read_text(path, "a price file")?;
        Prices::parse(&path.display().to_string(), &text)
    }

    /// The catalog with these disk prices instead of its own.
    pub fn apply(&self, file: &str, catalog: &Catalog) -> Result<Catalog, CatalogError> {
        let mut with = catalog.clone();
        let source = CatalogSource {
            address: file.to_owned(),
            date: if self.title.is_empty() { "as given".to_owned() } else { self.title.clone() },
            confidence: Confidence::A,
            note: None,
            commit: None,
        };
        with.sources.insert(SOURCE.to_owned(), source);
        for name in self.machines() {
            if let Err(PlanError::Input { found, accepted }) = catalog.machine(name) {
                return Err(CatalogError {
                    file: file.to_owned(),
                    line: None,
                    message: found,
                    help: accepted,
                });
            }
        }
        for (kind, disk) in &self.disk {
            if !catalog.types.contains_key(kind) {
                let names: Vec<&str> = catalog.types.keys().map(String::as_str).collect();
                return Err(CatalogError {
                    file: file.to_owned(),
                    line: None,
                    message: format!("unknown type of disk `{kind}`"),
                    help: format!("{} has {}", catalog.name, names.join(", ")),
                });
            }
            with.prices.retain(|price| price.kind != *kind);
            with.prices.push(Price {
                kind: kind.clone(),
                region: self.title.clone(),
                source: vec![SOURCE.to_owned()],
                confidence: None,
                usd_per_gb: disk.usd_per_gb,
                usd_per_gb_regional: disk.usd_per_gb_regional,
                usd_per_iops: disk.usd_per_iops,
                usd_per_mb_per_s: disk.usd_per_mb_per_s,
                disputed: false,
                note: None,
            });
        }
        Ok(with)
    }

    pub(super) fn machines(&self) -> impl Iterator<Item = &str> {
        self.machine_usd_per_month.keys().map(String::as_str)
    }

    /// Whether machines have prices. Machines without a price are then left out.
    pub(crate) fn has_machines(&self) -> bool {
        !self.machine_usd_per_month.is_empty()
    }

    /// USD per month of a machine type, if it is priced.
    pub fn machine(&self, name: &str) -> Option<f64> {
        self.machine_usd_per_month.get(name).copied()
    }
}
