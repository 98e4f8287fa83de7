//! NBD exports of the configured volumes.

use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_nbd::{Drain, Export, Exports, NbdServer, ServerOptions};

use crate::serve::ServeError;
use crate::subsystems::unservable;
use flagstone_config::{Config, Volume};

/// Registers the export names of all volumes, without devices yet.
pub(crate) fn nbd_exports(config: &Config) -> Result<Arc<Exports>, ServeError> {
    let exports = Exports::default();
    for volume in &config.volumes {
        exports.expect(&volume.nbd_export).map_err(unservable)?;
    }
    Ok(Arc::new(exports))
}

/// The export of a volume.
pub(crate) fn export(volume: &Volume, device: &SharedDevice) -> Export {
    Export::new(volume.nbd_export.clone(), device.clone())
        .described(format!("Flagstone volume {}", volume.name))
        .read_only(volume.read_only)
}

/// The NBD server of these exports. It stops when `drain` begins.
pub(crate) fn nbd_server(config: &Config, exports: Arc<Exports>, drain: Drain) -> Arc<NbdServer> {
    let nbd = &config.server.nbd;
    let options = ServerOptions {
        handshake_timeout: nbd.handshake_timeout,
        peer_timeout: nbd.stall_timeout,
        max_connections: nbd.max_connections as usize,
    };
    NbdServer::new(exports, options, drain)
}
