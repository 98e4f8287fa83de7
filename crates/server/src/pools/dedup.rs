//! Deduplication of volumes: which volumes may share blocks, and what an order says about it.

use flagstone_pool::Pool;

use super::settings::{self, Settings};
use crate::http::Problem;
use crate::serve::Server;

impl Server {
    /// Checks that a volume with these settings may share blocks in its pool.
    ///
    /// # Errors
    /// 409 if the pool cannot share blocks, 422 for a leg without a domain: it has the hosts of
    /// its mirrored volume, which may change without the pool.
    pub(super) fn check_dedup(
        &self,
        pool_name: &str,
        pool: &Pool,
        name: &str,
        settings: &Settings,
    ) -> Result<(), Problem> {
        if !settings::has_dedup(settings) {
            return Ok(());
        }
        if !pool.can_share_blocks() {
            return Err(Problem::conflict(format!(
                "pool {pool_name} cannot deduplicate: its segments are too small for compressed \
                 units; leave dedup out, or use a pool that flagstone pool create made"
            )));
        }
        match self.pools.mirrored(pool_name, name) {
            Some(mirrored) if !settings::names_domain(settings) => Err(Problem::invalid(format!(
                "volume {name} is the leg of mirrored volume {mirrored}, whose hosts its pool does \
                 not know: name the volumes with which it may share blocks with --dedup-domain NAME"
            ))),
            _ => Ok(()),
        }
    }
}

/// Addition to the answer of an order that turns deduplication on or off, or changes its domain.
/// Empty, or with a separator.
pub(super) fn change_note(pool: &str, before: &Settings, after: &Settings) -> String {
    let (was, is) = (settings::share_domain(before), settings::share_domain(after));
    match (was, is) {
        (was, is) if was == is => String::new(),
        (Some(_), None) => "; equal blocks that are shared already stay so".to_owned(),
        (_, _) => format!(
            "; the pool shares its equal blocks in the background: flagstone pool status {pool}"
        ),
    }
}
