//! Monthly prices of disks.

use crate::catalog::Price;
use crate::placement::{Demand, Placement};
use crate::prediction::Cost;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoPrice(pub String);

impl<'a> Placement<'a> {
    pub fn price(&self) -> Option<&'a Price> {
        self.catalog.prices.iter().find(|price| price.kind == self.kind)
    }

    pub fn cost(&self, demand: &Demand) -> Result<Cost, NoPrice> {
        let name = &self.catalog.name;
        let price =
            self.price().ok_or_else(|| NoPrice(format!("no price of {} in {name}", self.kind)))?;
        if price.disputed {
            let text = format!("the price of {}: the sources contradict each other", self.kind);
            return Err(NoPrice(text));
        }
        let per_size = match self.regional {
            true => price
                .usd_per_gb_regional
                .ok_or_else(|| NoPrice(format!("the price of regional {}", self.kind)))?,
            false => price.usd_per_gb,
        };
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
