//! A configuration's volumes as NBD exports.

use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_nbd::{Drain, Export, Exports, Server, ServerOptions};

use crate::config::Config;
use crate::serve::ServeError;

/// A server of every volume under its export name, which goes down when `drain` begins.
pub(crate) fn nbd_server(
    config: &Config,
    volumes: &[SharedDevice],
    drain: Drain,
) -> Result<Arc<Server>, ServeError> {
    let exports = config.volumes.iter().zip(volumes).map(|(volume, device)| {
        Export::new(volume.nbd_export.clone(), device.clone())
            .described(format!("Flagstone volume {}", volume.name))
            .read_only(volume.read_only)
    });
    let exports = Exports::new(exports);
    let exports = exports.map_err(|error| ServeError::Unservable(error.to_string()))?;
    let nbd = &config.server.nbd;
    let options = ServerOptions {
        handshake_timeout: nbd.handshake_timeout,
        peer_timeout: nbd.stall_timeout,
        max_connections: nbd.max_connections as usize,
    };
    Ok(Server::new(Arc::new(exports), options, drain))
}
