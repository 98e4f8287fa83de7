//! User-supplied prices: of machines, which catalogs lack, and of disks in another region or
//! under another contract.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use crate::catalog::{
    Catalog, CatalogError, CatalogSource, Confidence, Price, SizeUnit, ThroughputUnit, Units,
};
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

/// Price of a disk type. A key names its unit, which must be the catalog's: a GiB is 7 % more than
/// a GB. A price has one key of each pair.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct DiskPrice {
    usd_per_gb: Option<f64>,
    usd_per_gib: Option<f64>,
    usd_per_gb_regional: Option<f64>,
    usd_per_gib_regional: Option<f64>,
    usd_per_iops: Option<f64>,
    usd_per_mb_per_s: Option<f64>,
    usd_per_mib_per_s: Option<f64>,
}

/// A price of a disk with its key.
struct UnitPrice {
    key: &'static str,
    usd: Option<f64>,
}

impl DiskPrice {
    /// The decimal and the binary key of each price with a unit.
    fn pairs(&self) -> [[UnitPrice; 2]; 3] {
        let pair = |[decimal, binary]: [(&'static str, Option<f64>); 2]| {
            [decimal, binary].map(|(key, usd)| UnitPrice { key, usd })
        };
        [
            [("usd_per_gb", self.usd_per_gb), ("usd_per_gib", self.usd_per_gib)],
            [
                ("usd_per_gb_regional", self.usd_per_gb_regional),
                ("usd_per_gib_regional", self.usd_per_gib_regional),
            ],
            [
                ("usd_per_mb_per_s", self.usd_per_mb_per_s),
                ("usd_per_mib_per_s", self.usd_per_mib_per_s),
            ],
        ]
        .map(pair)
    }

    /// The first mistake that no catalog makes right.
    fn mistake(&self) -> Option<(String, String)> {
        let pairs = self.pairs();
        if let Some([one, other]) = pairs.iter().find(|pair| pair.iter().all(|p| p.usd.is_some())) {
            let message = format!("`{}` and `{}` are one price", one.key, other.key);
            return Some((message, "leave one of them out".to_owned()));
        }
        let has_size = pairs[0].iter().any(|price| price.usd.is_some());
        (!has_size)
            .then(|| ("`usd_per_gb` is missing".to_owned(), "add it, or `usd_per_gib`".to_owned()))
    }

    /// A key in another unit than the catalog's, the catalog's unit, and its key.
    fn wrong_unit(&self, units: &Units) -> Option<(&'static str, &'static str, &'static str)> {
        let size_is_binary = units.size == SizeUnit::Gib;
        let throughput_is_binary = units.throughput == ThroughputUnit::Mib;
        let is_binary = [size_is_binary, size_is_binary, throughput_is_binary];
        let names = [units.size.name(), units.size.name(), units.throughput.name()];
        self.pairs().into_iter().zip(is_binary).zip(names).find_map(|((pair, is_binary), unit)| {
            let [decimal, binary] = pair;
            let (right, other) = if is_binary { (binary, decimal) } else { (decimal, binary) };
            other.usd.map(|_| (other.key, unit, right.key))
        })
    }
}

impl Prices {
    /// Parses prices in TOML. `file` is its name for messages.
    pub fn parse(file: &str, text: &str) -> Result<Prices, CatalogError> {
        let prices: Prices = crate::catalog::from_toml(file, text)?;
        let disks = prices.disk.iter().flat_map(|(name, disk)| {
            let units = disk.pairs().into_iter().flatten().map(|price| price.usd);
            units.chain([disk.usd_per_iops]).flatten().map(move |usd| (name, usd))
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
        let mistake = prices.disk.iter().find_map(|(name, disk)| Some((name, disk.mistake()?)));
        match mistake {
            None => Ok(prices),
            Some((name, (message, help))) => Err(CatalogError {
                file: file.to_owned(),
                line: None,
                message: format!("[disk.{name}]: {message}"),
                help,
            }),
        }
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
        let wrong = |message: String, help: String| CatalogError {
            file: file.to_owned(),
            line: None,
            message,
            help,
        };
        for name in self.machines() {
            if let Err(PlanError::Input { found, accepted }) = catalog.machine(name) {
                return Err(wrong(found, accepted));
            }
        }
        for (kind, disk) in &self.disk {
            if !catalog.types.contains_key(kind) {
                let names: Vec<&str> = catalog.types.keys().map(String::as_str).collect();
                return Err(wrong(
                    format!("unknown type of disk `{kind}`"),
                    format!("{} has {}", catalog.name, names.join(", ")),
                ));
            }
            if let Some((key, unit, accepted)) = disk.wrong_unit(&catalog.units) {
                return Err(wrong(
                    format!("`{key}` of `{kind}`: {} counts in {unit}", catalog.name),
                    format!("convert the price and write `{accepted}`"),
                ));
            }
            with.prices.retain(|price| price.kind != *kind);
            with.prices.push(Price {
                kind: kind.clone(),
                region: self.title.clone(),
                source: vec![SOURCE.to_owned()],
                confidence: None,
                usd_per_gb: disk.usd_per_gb.or(disk.usd_per_gib).unwrap_or(0.0),
                usd_per_gb_regional: disk.usd_per_gb_regional.or(disk.usd_per_gib_regional),
                usd_per_iops: disk.usd_per_iops,
                usd_per_mb_per_s: disk.usd_per_mb_per_s.or(disk.usd_per_mib_per_s),
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
