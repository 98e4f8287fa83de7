//! Unit tests of the target: commands without a socket.

mod admin;
mod connect;
mod events;
mod identify;
mod life_cycle;
mod logs;
pub(super) mod support;

use super::connect::ConnectRefusal;
use super::*;
use support::*;
