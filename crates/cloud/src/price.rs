//! Monthly prices of disks.

use serde::Serialize;

use crate::catalog::{Catalog, Confidence, Price};
use crate::placement::{Demand, Placement};
use crate::prediction::{Cost, SourceUse};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoPrice(pub String);

/// Monthly price of capacity, without what is provisioned beside it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CapacityPrice {
    #[serde(rename = "type")]
    pub kind: String,
    pub regional: bool,
    /// USD per month for one byte.
    #[serde(skip)]
    pub usd_per_byte: f64,
    pub region: String,
    pub sources: Vec<SourceUse>,
    pub confidence: Confidence,
}

impl Catalog {
    /// Price of the capacity of a disk type.
    ///
    /// # Errors
    /// [`NoPrice`] if the type has none, or a disputed one.
    pub fn capacity_price(&self, kind: &str, regional: bool) -> Result<CapacityPrice, NoPrice> {
        let price = self.prices.iter().find(|price| price.kind == kind);
        let price = price.ok_or_else(|| NoPrice(format!("no price of {kind} in {}", self.name)))?;
        let per_size = per_size(price, regional)?;
        let confidence = self.confidence_of(&price.source, price.confidence);
        Ok(CapacityPrice {
            kind: kind.to_owned(),
            regional,
            usd_per_byte: per_size * self.units.size_of(1),
            region: price.region.clone(),
            sources: self.source_uses([(&price.source, price.confidence)]),
            confidence,
        })
    }
}

/// Price of a unit of capacity.
fn per_size(price: &Price, regional: bool) -> Result<f64, NoPrice> {
    if price.disputed {
        let text = format!("the price of {}: the sources contradict each other", price.kind);
        return Err(NoPrice(text));
    }
    match regional {
        true => price
            .usd_per_gb_regional
            .ok_or_else(|| NoPrice(format!("the price of regional {}", price.kind))),
        false => Ok(price.usd_per_gb),
    }
}

impl<'a> Placement<'a> {
    pub fn price(&self) -> Option<&'a Price> {
        self.catalog.prices.iter().find(|price| price.kind == self.kind)
    }

    pub fn cost(&self, demand: &Demand) -> Result<Cost, NoPrice> {
        let name = &self.catalog.name;
        let price =
            self.price().ok_or_else(|| NoPrice(format!("no price of {} in {name}", self.kind)))?;
        let per_size = per_size(price, self.regional)?;
        let disks = f64::from(demand.disks);
        let (mut usd_iops, mut usd_throughput) = (0.0, 0.0);
        if let Some(part) = &self.disk.provisioned {
            // IOPS that follow the throughput are paid with it, and vice versa.
            if part.iops_per_mb_per_s.is_none() {
                usd_iops = beyond(demand.iops, part.iops_free, price.usd_per_iops, "IOPS")?;
            }
            let sold = part.throughput_range(demand.size, demand.iops).is_some();
            if sold {
                let (free, each) = (part.mb_per_s_free, price.usd_per_mb_per_s);
                usd_throughput = beyond(demand.throughput, free, each, "throughput")?;
            }
        }
        let usd_capacity = per_size * demand.size * disks;
        let (usd_iops, usd_throughput) = (usd_iops * disks, usd_throughput * disks);
        Ok(Cost {
            usd_per_month: usd_capacity + usd_iops + usd_throughput,
            usd_capacity,
            usd_iops,
            usd_throughput,
            region: price.region.clone(),
            sources: price.source.clone(),
            confidence: self.catalog.confidence_of(&price.source, price.confidence),
        })
    }
}

fn beyond(
    bought: Option<f64>,
    free: Option<f64>,
    each: Option<f64>,
    what: &str,
) -> Result<f64, NoPrice> {
    let paid = (bought.unwrap_or(0.0) - free.unwrap_or(0.0)).max(0.0);
    match each {
        Some(each) => Ok(paid * each),
        None if paid == 0.0 => Ok(0.0),
        None => Err(NoPrice(format!("the price of provisioned {what}"))),
    }
}
