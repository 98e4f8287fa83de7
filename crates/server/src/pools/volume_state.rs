//! Volume state: whether hosts may see the content of a volume, and which orders it accepts.
//!
//! A volume that is being received has the property `receiving`, the identifier of the snapshot. It
//! keeps the property until that snapshot is complete, also after a crash.

use flagstone_pool::{PoolId, VolumeInfo};

/// Property of a volume that is being received.
pub(super) const RECEIVING_KEY: &str = "receiving";

/// State of a volume of an open pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VolumeState {
    /// Its content is complete.
    Complete,
    /// It has a part of a snapshot.
    Receiving {
        /// Identifier of the snapshot.
        snapshot: String,
    },
    /// It is out of service, and commands of its hosts have not ended.
    Draining,
}

/// An order on a volume or its snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeOrder {
    /// Create it, which it was already.
    Create,
    /// Serve it to hosts.
    Serve,
    Resize,
    Set,
    Rename,
    Promote,
    Delete,
    TakeSnapshot,
    /// Also ends a receive.
    Rollback,
    DeleteSnapshot,
}

/// First step of a receive into a volume that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveStep {
    /// It has the snapshot: nothing to do.
    Done,
    /// The snapshot was taken, and the crash came before the volume was served.
    Serve,
    /// A stream without a base begins again.
    StartOver,
    /// The volume gets the content of the base first. That discards no complete content if it is
    /// being received.
    Rebase { is_complete: bool },
}

impl VolumeState {
    pub(super) fn of(info: &VolumeInfo) -> VolumeState {
        match info.properties.get(RECEIVING_KEY) {
            Some(snapshot) => VolumeState::Receiving { snapshot: snapshot.clone() },
            None => VolumeState::Complete,
        }
    }

    fn accepts(&self, order: VolumeOrder) -> bool {
        match self {
            VolumeState::Complete => true,
            // Each of the others would publish half of a snapshot, or change it or its base.
            VolumeState::Receiving { .. } => {
                matches!(order, VolumeOrder::Delete | VolumeOrder::Rollback)
            }
            // The commands change what they find. The content may go, and be looked at.
            VolumeState::Draining => {
                use VolumeOrder::{Delete, DeleteSnapshot, Promote, Resize, TakeSnapshot};
                matches!(order, Delete | DeleteSnapshot | Promote | Resize | TakeSnapshot)
            }
        }
    }

    /// # Errors
    /// Why the volume `name` does not accept an order, and the way out.
    pub(super) fn check(&self, name: &str, order: VolumeOrder) -> Result<(), String> {
        if self.accepts(order) {
            return Ok(());
        }
        Err(match self {
            VolumeState::Draining => ending(name),
            _ => format!(
                "volume {name} was not received in full: run flagstone volume receive {name} with \
                 the whole stream, go back with flagstone snapshot rollback {name}@SNAPSHOT, or run \
                 flagstone volume delete {name}"
            ),
        })
    }

    /// The first step of a receive of `snapshot`, which the volume has already if `exists`.
    ///
    /// # Errors
    /// Why the volume `name` does not take the stream.
    pub(super) fn receive(
        &self,
        name: &str,
        snapshot: PoolId,
        exists: bool,
        has_base: bool,
    ) -> Result<ReceiveStep, String> {
        let is_own = |receiving: &str| receiving == snapshot.to_string();
        match (self, exists, has_base) {
            (VolumeState::Draining, ..) => Err(ending(name)),
            (VolumeState::Complete, true, _) => Ok(ReceiveStep::Done),
            (VolumeState::Receiving { snapshot: own }, true, _) if is_own(own) => {
                Ok(ReceiveStep::Serve)
            }
            (VolumeState::Receiving { .. }, true, _) => Err(format!(
                "volume {name} has this snapshot, and a part of a later one: receive that one in \
                 full, or go back with flagstone snapshot rollback"
            )),
            (VolumeState::Complete, false, true) => Ok(ReceiveStep::Rebase { is_complete: true }),
            (VolumeState::Receiving { .. }, false, true) => {
                Ok(ReceiveStep::Rebase { is_complete: false })
            }
            (VolumeState::Receiving { snapshot: own }, false, false) if is_own(own) => {
                Ok(ReceiveStep::StartOver)
            }
            (_, false, false) => {
                Err(format!("volume {name} exists already: receive the stream under another name"))
            }
        }
    }
}

fn ending(name: &str) -> String {
    format!("commands of volume {name} have not ended: repeat the order, which waits for them")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [VolumeOrder; 10] = [
        VolumeOrder::Create,
        VolumeOrder::Serve,
        VolumeOrder::Resize,
        VolumeOrder::Set,
        VolumeOrder::Rename,
        VolumeOrder::Promote,
        VolumeOrder::Delete,
        VolumeOrder::TakeSnapshot,
        VolumeOrder::Rollback,
        VolumeOrder::DeleteSnapshot,
    ];

    fn receiving(snapshot: u8) -> VolumeState {
        VolumeState::Receiving { snapshot: PoolId([snapshot; 16]).to_string() }
    }

    #[test]
    fn half_received_volume_is_only_given_up() {
        for order in ORDERS {
            assert_eq!(VolumeState::Complete.check("db", order), Ok(()), "{order:?}");
            let ends = matches!(order, VolumeOrder::Delete | VolumeOrder::Rollback);
            assert_eq!(receiving(1).check("db", order).is_ok(), ends, "{order:?}");
        }
    }

    #[test]
    fn content_is_kept_until_old_commands_have_ended() {
        use VolumeOrder::{Create, Rename, Rollback, Serve, Set};
        for order in ORDERS {
            let waits = [Create, Rename, Rollback, Serve, Set].contains(&order);
            assert_eq!(VolumeState::Draining.check("db", order).is_err(), waits, "{order:?}");
        }
        for (exists, has_base) in [(true, true), (true, false), (false, true), (false, false)] {
            let step = VolumeState::Draining.receive("db", PoolId([1; 16]), exists, has_base);
            assert!(step.is_err(), "{exists} {has_base}");
        }
    }

    #[test]
    fn only_its_own_stream_completes_a_volume() {
        use ReceiveStep::{Done, Rebase, Serve, StartOver};
        let complete = VolumeState::Complete;
        let cases = [
            (&complete, true, true, Some(Done)),
            (&complete, true, false, Some(Done)),
            (&complete, false, true, Some(Rebase { is_complete: true })),
            (&complete, false, false, None),
            (&receiving(1), true, true, Some(Serve)),
            (&receiving(1), true, false, Some(Serve)),
            (&receiving(1), false, true, Some(Rebase { is_complete: false })),
            (&receiving(1), false, false, Some(StartOver)),
            // Another snapshot is being received.
            (&receiving(2), true, true, None),
            (&receiving(2), true, false, None),
            (&receiving(2), false, true, Some(Rebase { is_complete: false })),
            (&receiving(2), false, false, None),
        ];
        for (state, exists, has_base, step) in cases {
            let found = state.receive("db", PoolId([1; 16]), exists, has_base).ok();
            assert_eq!(found, step, "{state:?} {exists} {has_base}");
        }
    }
}
