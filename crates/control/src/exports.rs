//! A configuration's volumes as NBD exports.

use std::sync::Arc;

use flagstone_blockdev::SharedDevice;
use flagstone_nbd::{Export, Exports, Limits};

use crate::config::{Config, Nbd};
use crate::serve::ServeError;

/// Every volume under its export name.
pub(crate) fn nbd_exports(
    config: &Config,
    volumes: &[SharedDevice],
) -> Result<Arc<Exports>, ServeError> {
    let exports = config.volumes.iter().zip(volumes).map(|(volume, device)| {
        Export::new(volume.nbd_export.clone(), device.clone())
            .described(format!("Flagstone volume {}", volume.name))
            .read_only(volume.read_only)
    });
    let exports = Exports::new(exports);
    exports.map(Arc::new).map_err(|error| ServeError::Unservable(error.to_string()))
}

/// What one NBD connection may take.
pub(crate) fn nbd_limits(nbd: &Nbd) -> Limits {
    Limits {
        queue_depth: nbd.queue_depth,
        max_request_bytes: nbd.max_request_bytes,
        handshake_timeout: nbd.handshake_timeout,
        stall_timeout: nbd.stall_timeout,
        idle_timeout: nbd.idle_timeout,
    }
}
