//! Reload of a running server: the numbers of existing limits, and the files of keys, certificates
//! and tokens. Other changes need a restart. Whoever has proven a key that was withdrawn is
//! disconnected: a key that its file does not have any more, or of a host that was removed from the
//! configuration.
//!
//! Invariant: everything is read before anything changes. If the configuration or any file cannot
//! be used, nothing changes, so a key is never withdrawn for some of its users only.

use std::sync::Arc;

use flagstone_nbd::{NbdTlsClient, NbdTlsKeys};
use flagstone_runtime::tls::TlsClient;

use flagstone_limit::{Limit, Limiter};

use crate::api::document::ReloadDocument;
use crate::http::access::Credentials;
use crate::serve::Server;
use flagstone_config::{Config, Diagnostics, LayerConfig, Nbd, Provisioned, Volume};
use flagstone_stack::tls_files::TlsFileError;
use flagstone_stack::{keys, tls_files};

/// Why a reload changed nothing.
#[derive(Debug)]
pub(crate) enum ReloadRefusal {
    /// The configuration has errors.
    Configuration(Diagnostics),
    /// These files cannot be used. No text has a part of a file's contents.
    Files(Vec<String>),
}

/// Contents of all files of keys, certificates and tokens, read again.
struct FilesRead {
    rings: keys::ReadAgain,
    nbd_server: Option<NbdTlsKeys>,
    nbd_clients: Vec<(NbdTlsClient, TlsClient)>,
    users: Option<Credentials>,
}

impl Server {
    /// Applies a configuration that was read again, and the files of keys that it names.
    ///
    /// # Errors
    /// Something cannot be used, and nothing was changed.
    pub(crate) fn reload(
        &self,
        read: Result<Config, Diagnostics>,
    ) -> Result<ReloadDocument, ReloadRefusal> {
        let read = read.map_err(|diagnostics| {
            let errors = diagnostics.render(false);
            tracing::error!("nothing was changed: the configuration has errors\n{errors}");
            ReloadRefusal::Configuration(diagnostics)
        })?;
        let files = self.read_files(&read).map_err(|unusable| {
            for error in &unusable {
                tracing::error!("nothing was changed: {error}");
            }
            ReloadRefusal::Files(unusable)
        })?;
        let withdrawn = keys::withdrawn_hosts(&self.config, &read);
        let reloaded = self.limits.reload(&self.config, &read, withdrawn);
        self.apply_files(files);
        Ok(reloaded)
    }

    fn read_files(&self, read: &Config) -> Result<FilesRead, Vec<String>> {
        let texts =
            |errors: Vec<TlsFileError>| errors.iter().map(ToString::to_string).collect::<Vec<_>>();
        let rings = keys::ReadAgain::new(&self.config, read);
        let rings = rings.map_err(|errors| errors.iter().map(ToString::to_string).collect());
        let nbd_server = self.read_nbd_server(read).map_err(|error| texts(vec![error]));
        let nbd_clients = tls_files::read_clients_again(read).map_err(texts);
        let users = self.read_users(read).map_err(|error| vec![error.to_string()]);
        match (rings, nbd_server, nbd_clients, users) {
            (Ok(rings), Ok(nbd_server), Ok(nbd_clients), Ok(users)) => {
                Ok(FilesRead { rings, nbd_server, nbd_clients, users })
            }
            (rings, nbd_server, nbd_clients, users) => {
                let errors = [rings.err(), nbd_server.err(), nbd_clients.err(), users.err()];
                Err(errors.into_iter().flatten().flatten().collect())
            }
        }
    }

    /// Keys of the NBD listeners, `None` without TLS. Files that `next`, the configuration of the
    /// next start, does not name any more may be missing.
    fn read_nbd_server(&self, next: &Config) -> Result<Option<NbdTlsKeys>, TlsFileError> {
        let files = |nbd: &Nbd| (nbd.tls_certificates.clone(), nbd.tls_psk_file.clone());
        let (running, next) = (&self.config.server.nbd, &next.server.nbd);
        if self.nbd_tls.is_none() {
            return Ok(None);
        }
        match tls_files::server(running) {
            Err(error) if files(running) != files(next) => {
                tracing::warn!("its keys stay in use until the next start: {error}");
                Ok(None)
            }
            read => read.map(Some),
        }
    }

    fn apply_files(&self, files: FilesRead) {
        let keys_changed = files.rings.apply();
        if keys_changed > 0 {
            tracing::info!(keys_changed, "connections made from now on use the changed keys");
        }
        let mut ended = self.target.end_withdrawn();
        if let (Some(tls), Some(keys)) = (&self.nbd_tls, files.nbd_server) {
            ended += tls.replace(keys);
        }
        if ended > 0 {
            tracing::warn!(ended, "ended controllers and connections whose keys were withdrawn");
        }
        for (client, again) in files.nbd_clients {
            client.replace(again);
        }
        if let (Some(users), Some(credentials)) = (self.api_users.get(), files.users) {
            users.replace(credentials);
        }
    }
}

pub(crate) struct Limits {
    /// Limiters of [`Config::limits`], in its order.
    pub(crate) shared: Vec<Arc<Limiter>>,
    /// Own limiters of [`Config::volumes`], in its order.
    pub(crate) own: Vec<Option<Arc<Limiter>>>,
}

impl Limits {
    /// Applies the limits of `read` to a server that runs with `running`. The keys of the hosts
    /// `withdrawn_hosts` are withdrawn at once.
    fn reload(
        &self,
        running: &Config,
        read: &Config,
        withdrawn_hosts: Vec<String>,
    ) -> ReloadDocument {
        let limits_changed = self.apply(running, read);
        let changed = limits_changed;
        tracing::info!(changed, "reloaded the configuration and applied its limits");
        let mut next_start_keys = running.keys_for_next_start(read);
        let is_withdrawn =
            |key: &str| withdrawn_hosts.iter().any(|host| key.strip_prefix("host.") == Some(host));
        next_start_keys.retain(|key| !is_withdrawn(key));
        if !next_start_keys.is_empty() {
            let keys = next_start_keys.join(", ");
            tracing::warn!("changed keys that take effect at the next start: {keys}");
        }
        ReloadDocument { limits_changed, withdrawn_hosts, next_start_keys }
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
        LayerConfig::Limit(limit) => Some(limit.as_ref()),
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

    /// The answer said that the removal takes effect at the next start.
    #[test]
    fn removed_host_is_withdrawn_at_once() {
        block_on(async {
            let host = |name: &str, file: &str| {
                format!(
                    "[host.{name}]\nnqn = \"nqn.2026-01.io.x:{name}\"\nkey_file = \"/{file}\"\n"
                )
            };
            let kept = format!("{RUNNING}{}", host("kept", "shared"));
            let running = parse(&format!("{kept}{}{}", host("one", "own"), host("two", "shared")));
            let limits = open(&running).await;
            let read = parse(&kept);
            let withdrawn = keys::withdrawn_hosts(&running, &read);
            let document = limits.reload(&running, &read, withdrawn);
            assert_eq!(document.withdrawn_hosts, ["one"]);
            // The key of this one is in use.
            assert_eq!(document.next_start_keys, ["host.two"]);
        })
        .unwrap();
    }

    #[test]
    fn reload_names_the_keys_for_the_next_start() {
        block_on(async {
            let running = parse(RUNNING);
            let limits = open(&running).await;
            let read = parse(&(RUNNING.replace("100", "200") + "[limit.x]\niops = 1\n"));
            let next_start_keys = vec!["limit.x".to_owned()];
            let expected =
                ReloadDocument { limits_changed: 1, next_start_keys, ..Default::default() };
            assert_eq!(limits.reload(&running, &read, Vec::new()), expected);
        })
        .unwrap();
    }
}
