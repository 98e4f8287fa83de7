//! Device stacks: opens the devices named by a configuration or a command line, and adds the layers
//! of a volume.
//!
//! Mirrored volumes are excluded: their layer needs the server's nodes and peers.

mod host_identity;
pub mod keys;
mod open;
pub mod private_file;
mod remote;
mod survey;
pub mod tls_files;

pub use open::{
    OpenError, OpenOptions, OpenVolume, beginning, check_block_size, layered, open_backing,
    open_device, open_limits, open_volume, over, own_limit, volume_error, within,
};
pub use survey::{DataSearch, find_data};
