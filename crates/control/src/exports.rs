//! A configuration's volumes as NBD exports.

use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_nbd::{Drain, Export, Exports, Server, ServerOptions};

use crate::config::{Config, Volume};
use crate::serve::ServeError;
use crate::subsystems::unservable;

/// Exports of every volume under its export name: all are expected, and none is there yet.
pub(crate) fn nbd_exports(config: &Config) -> Result<Arc<Exports>, ServeError> {
    let exports = Exports::default();
    for volume in &config.volumes {
        exports.expect(&volume.nbd_export).map_err(unservable)?;
    }
    Ok(Arc::new(exports))
}

/// A volume as an export.
pub(crate) fn export(volume: &Volume, device: &SharedDevice) -> Export {
    Export::new(volume.nbd_export.clone(), device.clone())
        .described(format!("Flagstone volume {}", volume.name))
        .read_only(volume.read_only)
}

/// A server of them, which goes down when `drain` begins.
pub(crate) fn nbd_server(config: &Config, exports: Arc<Exports>, drain: Drain) -> Arc<Server> {
    let nbd = &config.server.nbd;
    let options = ServerOptions {
        handshake_timeout: nbd.handshake_timeout,
        peer_timeout: nbd.stall_timeout,
        max_connections: nbd.max_connections as usize,
    };
    Server::new(exports, options, drain)
}
