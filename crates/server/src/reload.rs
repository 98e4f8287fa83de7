//! Rate limits of a running server: applies a reloaded configuration, and lifts the limits at shutdown.
//!
//! A reload changes only the numbers of existing limits. Other changes need a restart.

use std::sync::Arc;

use flagstone_limit::{Limit, Limiter};

use crate::api::document::ReloadDocument;
use flagstone_config::{Config, Diagnostics, Layer, Provisioned, Volume};
use flagstone_stack::keys;

pub(crate) struct Limits {
    /// Limiters of [`Config::limits`], in its order.
    pub(crate) shared: Vec<Arc<Limiter>>,
    /// Own limiters of [`Config::volumes`], in its order.
    pub(crate) own: Vec<Option<Arc<Limiter>>>,
}

impl Limits {
    /// Applies the limits of `read`, unless it has errors, to a server that runs with `running`.
    pub(crate) fn reload(
        &self,
        running: &Config,
        read: Result<Config, Diagnostics>,
    ) -> Result<ReloadDocument, Diagnostics> {
        let read = read.inspect_err(|diagnostics| {
            let errors = diagnostics.render(false);
            tracing::error!("nothing was changed: the configuration has errors\n{errors}");
        })?;
        let limits_changed = self.apply(running, &read);
        let changed = limits_changed;
        tracing::info!(changed, "reloaded the configuration and applied its limits");
        let (keys_changed, unusable) = keys::reload();
        if keys_changed > 0 {
            tracing::info!(keys_changed, "connections made from now on use the changed keys");
        }
        for error in unusable {
            tracing::error!("the keys that were read before stay in use: {error}");
        }
        let next_start_keys = running.keys_for_next_start(&read);
        if !next_start_keys.is_empty() {
            let keys = next_start_keys.join(", ");
            tracing::warn!("changed keys that take effect at the next start: {keys}");
        }
        Ok(ReloadDocument { limits_changed, next_start_keys })
    }

    /// Removes all limits, so that they do not delay the shutdown.
    pub(crate) fn lift(&self) {
        for limiter in self.shared.iter().chain(self.own.iter().flatten()) {
            // The absence of limits is always valid.
            let _ = limiter.set(Limit::default());
        }
    }

    /// Applies the limits that differ. Returns their number.
    fn apply(&self, running: &Config, read: &Config) -> usize {
        let shared = running.limits.iter().zip(&self.shared).filter_map(|(limit, limiter)| {
            let read = read.limits.iter().find(|other| other.name == limit.name)?;
            Some((format!("limit `{}`", limit.name), limiter, &read.limit))
        });
        let own = running.volumes.iter().zip(&self.own).filter_map(|(volume, limiter)| {
            let read = read.volumes.iter().find(|other| other.name == volume.name)?;
            Some((format!("volume `{}`", volume.name), limiter.as_ref()?, own_limit(read)?))
        });
        let mut changed = 0;
        for (what, limiter, limit) in shared.chain(own) {
            if limiter.limit() != limit.numbers && limiter.set(limit.numbers).is_ok() {
                tracing::info!("{what} is limited to {limit}");
                changed += 1;
            }
        }
        changed
    }
}

fn own_limit(volume: &Volume) -> Option<&Provisioned> {
    volume.layers.iter().find_map(|layer| match layer {
        Layer::Limit(limit) => Some(limit.as_ref()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use flagstone_limit::Budget;
    use flagstone_runtime::block_on;

    use super::*;
    use flagstone_stack::{open_limits, open_volume};

    const RUNNING: &str = "[limit.vm]\niops = 100\n[limit.spare]\niops = 7\n\
        [volume.a]\nlimit.iops = 5\nshared_limit = \"vm\"\ndevice = \"null:1GiB\"\n\
        [volume.b]\ndevice = \"null:1GiB\"\n";

    fn parse(text: &str) -> Config {
        Config::parse("f", text).unwrap_or_else(|error| panic!("{error}"))
    }

    async fn open(config: &Config) -> Limits {
        let mut limits = Limits { shared: open_limits(&config.limits).unwrap(), own: Vec::new() };
        for index in 0..config.volumes.len() {
            limits.own.push(open_volume(config, index, &limits.shared).await.unwrap().limiter);
        }
        limits
    }

    #[test]
    fn reload_matches_limits_by_name() {
        block_on(async {
            let running = parse(RUNNING);
            let limits = open(&running).await;
            assert_eq!(limits.apply(&running, &running), 0);
            // Another order, other numbers, and one limit less.
            let read = parse(
                "[volume.b]\ndevice = \"null:1GiB\"\n\
                 [volume.a]\nlimit.throughput = \"5MB/s\"\nshared_limit = \"vm\"\n\
                 device = \"null:1GiB\"\n[limit.new]\niops = 3\n[limit.vm]\niops = 200\n",
            );
            assert_eq!(limits.apply(&running, &read), 2);
            let ios = |rate| Limit { ios: Budget::total(rate), ..Limit::default() };
            let bytes = Limit { bytes: Budget::total(5_000_000), ..Limit::default() };
            assert_eq!(limits.own[0].as_ref().unwrap().limit(), bytes);
            assert!(limits.own[1].is_none());
            assert_eq!([0, 1].map(|at| limits.shared[at].limit()), [ios(200), ios(7)]);
        })
        .unwrap();
    }

    #[test]
    fn reload_applies_limit_profiles() {
        block_on(async {
            let like = |kind: &str, size: &str| {
                parse(&format!(
                    "[volume.a]\nlimit = {{ profile = \"{kind}\", size = \"{size}\", \
                     machine = \"n2-standard-8\" }}\ndevice = \"null:1GiB\"\n\
                     [volume.b]\ndisk_model = {{ profile = \"pd-standard\", size = \"{size}\", \
                     machine = \"n2-standard-8\" }}\ndevice = \"null:1GiB\"\n"
                ))
            };
            let running = like("pd-ssd", "100GiB");
            let limits = open(&running).await;
            let read = like("pd-balanced", "200GiB");
            assert!(running.keys_for_next_start(&read).is_empty());
            assert_eq!(limits.apply(&running, &read), 2);
            for (volume, limiter) in read.volumes.iter().zip(&limits.own) {
                let now = limiter.as_ref().unwrap().limit();
                assert_eq!(Some(now), own_limit(volume).map(|limit| limit.numbers));
            }
        })
        .unwrap();
    }

    #[test]
    fn shutdown_lifts_all_limits() {
        block_on(async {
            let running = parse(RUNNING);
            let limits = open(&running).await;
            limits.lift();
            for limiter in limits.shared.iter().chain(limits.own.iter().flatten()) {
                assert_eq!(limiter.limit(), Limit::default());
            }
        })
        .unwrap();
    }

    #[test]
    fn invalid_configuration_changes_nothing() {
        block_on(async {
            let running = parse(RUNNING);
            let limits = open(&running).await;
            let read = Config::parse("f", &(RUNNING.replace("100", "200") + "[limit.x]\n"));
            assert!(read.is_err());
            assert!(limits.reload(&running, read).is_err());
            assert_eq!(limits.shared[0].limit(), running.limits[0].limit.numbers);
            let read =
                Config::parse("f", &(RUNNING.replace("100", "200") + "[limit.x]\niops = 1\n"));
            let next_start_keys = vec!["limit.x".to_owned()];
            let expected = ReloadDocument { limits_changed: 1, next_start_keys };
            assert_eq!(limits.reload(&running, read).ok(), Some(expected));
        })
        .unwrap();
    }
}
