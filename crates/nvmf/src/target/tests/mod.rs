//! The target as hosts see it, driven command by command without a socket.

mod admin;
mod connect;
mod events;
mod identify;
mod life;
mod logs;

use super::connect::Refusal;
use super::testing::*;
use super::*;
