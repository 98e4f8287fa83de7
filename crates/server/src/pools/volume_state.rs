//! Volume state: whether hosts may see the content of a volume, and which orders it accepts.
//!
//! A volume that is being received has the property `receiving`, with the identifier of the
//! snapshot, until that snapshot is complete, also after a crash. The property `received` has the
//! position at which the receive continues.

use flagstone_pool::stream::receive::{RECEIVED_KEY, Received};
use flagstone_pool::{PoolId, VolumeInfo};

/// Property of a volume that is being received.
pub(super) const RECEIVING_KEY: &str = "receiving";

/// State of a volume of an open pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VolumeState {
    /// The content is complete.
    Complete,
    /// The content is a part of a snapshot.
    Receiving {
        /// Identifier of the snapshot.
        snapshot: String,
        /// Position; `None` if it is not known.
        received: Option<Received>,
    },
    /// Out of service, with commands of hosts in progress.
    Draining,
    /// The content is that of a leg of a mirrored volume of the configuration.
    Leg {
        /// Name of the mirrored volume.
        mirrored: String,
    },
    /// A leg that is being rolled back: its mirror opens it when that has ended.
    RollingBack {
        /// Name of the mirrored volume.
        mirrored: String,
    },
}

/// An order on a volume or its snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VolumeOrder {
    /// Repeated creation.
    Create,
    /// Serve it to hosts.
    Serve,
    Resize,
    Set,
    Rename,
    Promote,
    Delete,
    TakeSnapshot,
    /// Roll back. Also ends a receive.
    Rollback,
    DeleteSnapshot,
}

/// A stream that an existing volume is to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamId {
    /// Identifier of the snapshot.
    pub(super) snapshot: PoolId,
    pub(super) source: u64,
    pub(super) base: Option<PoolId>,
}

impl StreamId {
    /// True if a volume has a part of this stream, as far as its properties say.
    fn is_of(&self, snapshot: &str, received: Option<Received>) -> bool {
        let is_same =
            |received: Received| (received.source, received.base) == (self.source, self.base);
        snapshot == self.snapshot.to_string() && received.is_none_or(is_same)
    }
}

/// First step of a receive into an existing volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveStep {
    /// Nothing to do: the volume has the snapshot.
    Done,
    /// Serve the volume: a crash came after its snapshot was taken.
    Serve,
    /// Continue at this offset, in bytes.
    Continue { end: u64 },
    /// Begin again, for a stream without a base.
    StartOver,
    /// Give the volume the content of the base. No complete content is discarded if the volume is
    /// being received.
    Rebase { is_complete: bool },
}

impl VolumeState {
    pub(super) fn of(info: &VolumeInfo) -> VolumeState {
        match info.properties.get(RECEIVING_KEY) {
            Some(snapshot) => VolumeState::Receiving {
                snapshot: snapshot.clone(),
                received: info.properties.get(RECEIVED_KEY).and_then(|text| text.parse().ok()),
            },
            None => VolumeState::Complete,
        }
    }

    /// True if a mirror of the configuration opens the volume, and reports why it cannot.
    pub(super) fn is_leg(&self) -> bool {
        matches!(self, VolumeState::Leg { .. } | VolumeState::RollingBack { .. })
    }

    fn accepts(&self, order: VolumeOrder) -> bool {
        match self {
            VolumeState::Complete => true,
            // Other orders would publish half of a snapshot, or change it or its base.
            VolumeState::Receiving { .. } => {
                matches!(order, VolumeOrder::Delete | VolumeOrder::Rollback)
            }
            // Commands in progress may still change the content, so it may only be deleted or read.
            VolumeState::Draining => {
                use VolumeOrder::{Delete, DeleteSnapshot, Promote, Resize, TakeSnapshot};
                matches!(order, Delete | DeleteSnapshot | Promote | Resize | TakeSnapshot)
            }
            // Other orders would change the content or the name under the mirror.
            VolumeState::Leg { .. } => {
                use VolumeOrder::{Create, DeleteSnapshot, Promote, Resize, TakeSnapshot};
                matches!(order, Create | DeleteSnapshot | Promote | Resize | TakeSnapshot)
            }
            // Any would change what the rollback still needs.
            VolumeState::RollingBack { .. } => false,
        }
    }

    /// Checks that a volume accepts an order.
    ///
    /// # Errors
    /// The reason why the volume `name` does not, and the way out.
    pub(super) fn check(&self, name: &str, order: VolumeOrder) -> Result<(), String> {
        if self.accepts(order) {
            return Ok(());
        }
        Err(match self {
            VolumeState::Draining => ending(name),
            VolumeState::Leg { mirrored } => used_by(name, mirrored),
            VolumeState::RollingBack { mirrored } => rolling_back(name, mirrored),
            VolumeState::Complete | VolumeState::Receiving { .. } => {
                let end = self.received_bytes().unwrap_or_default();
                format!(
                    "volume {name} was not received in full: run flagstone volume receive {name} \
                     with the stream again, which may leave out the first {end} bytes (flagstone \
                     volume send --resume {end}), go back with flagstone snapshot rollback \
                     {name}@SNAPSHOT, or run flagstone volume delete {name}"
                )
            }
        })
    }

    /// Checks that the mirror may open the volume as its leg.
    ///
    /// # Errors
    /// The reason why not, and the way out.
    pub(super) fn check_leg(&self, name: &str) -> Result<(), String> {
        match self {
            VolumeState::Complete | VolumeState::Leg { .. } | VolumeState::RollingBack { .. } => {
                Ok(())
            }
            VolumeState::Draining => Err(ending(name)),
            VolumeState::Receiving { .. } => self.check(name, VolumeOrder::Serve),
        }
    }

    /// True if the volume has a part of this stream.
    pub(super) fn is_receiving(&self, stream: &StreamId) -> bool {
        match self {
            VolumeState::Receiving { snapshot, received } => stream.is_of(snapshot, *received),
            VolumeState::Complete
            | VolumeState::Draining
            | VolumeState::Leg { .. }
            | VolumeState::RollingBack { .. } => false,
        }
    }

    /// Bytes of its snapshot that a volume has which is being received.
    pub(super) fn received_bytes(&self) -> Option<u64> {
        match self {
            VolumeState::Receiving { received, .. } => {
                Some(received.map_or(0, |received| received.end))
            }
            VolumeState::Complete
            | VolumeState::Draining
            | VolumeState::Leg { .. }
            | VolumeState::RollingBack { .. } => None,
        }
    }

    /// First step of a receive of a stream, whose snapshot `exists` in the volume or not. `force`
    /// discards the part of another stream.
    ///
    /// # Errors
    /// The reason why the volume `name` does not accept the stream.
    pub(super) fn receive(
        &self,
        name: &str,
        stream: &StreamId,
        exists: bool,
        force: bool,
    ) -> Result<ReceiveStep, String> {
        let begin = |is_complete| match stream.base {
            Some(_) => ReceiveStep::Rebase { is_complete },
            None => ReceiveStep::StartOver,
        };
        match self {
            VolumeState::Draining => Err(ending(name)),
            VolumeState::Leg { mirrored } => Err(used_by(name, mirrored)),
            VolumeState::RollingBack { mirrored } => Err(rolling_back(name, mirrored)),
            VolumeState::Complete if exists => Ok(ReceiveStep::Done),
            VolumeState::Complete if stream.base.is_some() => Ok(begin(true)),
            VolumeState::Complete => {
                Err(format!("volume {name} exists already: receive the stream under another name"))
            }
            VolumeState::Receiving { snapshot, .. } if exists => {
                match *snapshot == stream.snapshot.to_string() {
                    true => Ok(ReceiveStep::Serve),
                    false => Err(format!(
                        "volume {name} has this snapshot, and a part of a later one: receive that \
                         one in full, or go back with flagstone snapshot rollback"
                    )),
                }
            }
            VolumeState::Receiving { snapshot, received } => {
                match (stream.is_of(snapshot, *received), received) {
                    (true, Some(Received { end, .. })) if *end > 0 => {
                        Ok(ReceiveStep::Continue { end: *end })
                    }
                    (true, _) => Ok(begin(false)),
                    (false, _) if force => Ok(begin(false)),
                    (false, _) => Err(format!(
                        "volume {name} has a part of another stream, of snapshot {snapshot}: \
                         receive that one in full, or use --force to discard the part"
                    )),
                }
            }
        }
    }
}

fn ending(name: &str) -> String {
    format!("commands of volume {name} have not ended: repeat the order, which waits for them")
}

fn rolling_back(name: &str, mirrored: &str) -> String {
    format!(
        "leg {name} is being rolled back: repeat the order when its mirrored volume is open, as \
         flagstone mirror status {mirrored} says"
    )
}

fn used_by(name: &str, mirrored: &str) -> String {
    format!(
        "volume {name} is the leg of mirrored volume {mirrored}, which has its content: first remove \
         [volume.{mirrored}] from the configuration of this node, and restart the server"
    )
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

    const BASE: Option<PoolId> = Some(PoolId([8; 16]));

    fn receiving(snapshot: u8, received: Option<Received>) -> VolumeState {
        VolumeState::Receiving { snapshot: PoolId([snapshot; 16]).to_string(), received }
    }

    fn stream(base: Option<PoolId>) -> StreamId {
        StreamId { snapshot: PoolId([1; 16]), source: 7, base }
    }

    #[test]
    fn half_received_volume_is_only_given_up() {
        for order in ORDERS {
            assert_eq!(VolumeState::Complete.check("db", order), Ok(()), "{order:?}");
            let ends = matches!(order, VolumeOrder::Delete | VolumeOrder::Rollback);
            assert_eq!(receiving(1, None).check("db", order).is_ok(), ends, "{order:?}");
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
            let stream = stream(BASE.filter(|_| has_base));
            let step = VolumeState::Draining.receive("db", &stream, exists, true);
            assert!(step.is_err(), "{exists} {has_base}");
        }
    }

    #[test]
    fn only_its_own_stream_completes_a_volume() {
        use ReceiveStep::{Continue, Done, Rebase, Serve, StartOver};
        let complete = VolumeState::Complete;
        let begun = |base, end| Some(Received { source: 7, base, end });
        let own = |received| receiving(1, received);
        let (rebase, proceed) = (Some(Rebase { is_complete: false }), Some(Continue { end: 5 }));
        // State, existence of the snapshot, base of the stream; step without and with force.
        let cases = [
            (complete.clone(), true, BASE, Some(Done), Some(Done)),
            (complete.clone(), true, None, Some(Done), Some(Done)),
            (
                complete.clone(),
                false,
                BASE,
                Some(Rebase { is_complete: true }),
                Some(Rebase { is_complete: true }),
            ),
            (complete, false, None, None, None),
            (own(None), true, BASE, Some(Serve), Some(Serve)),
            (own(begun(None, 5)), true, None, Some(Serve), Some(Serve)),
            (own(None), false, BASE, rebase, rebase),
            (own(None), false, None, Some(StartOver), Some(StartOver)),
            (own(begun(None, 0)), false, None, Some(StartOver), Some(StartOver)),
            (own(begun(BASE, 0)), false, BASE, rebase, rebase),
            (own(begun(None, 5)), false, None, proceed, proceed),
            (own(begun(BASE, 5)), false, BASE, proceed, proceed),
            // The stream has another base, or is of another volume whose snapshot was taken
            // together.
            (own(begun(None, 5)), false, BASE, None, rebase),
            (own(begun(BASE, 5)), false, None, None, Some(StartOver)),
            (
                own(Some(Received { source: 6, base: None, end: 5 })),
                false,
                None,
                None,
                Some(StartOver),
            ),
            // Another snapshot is being received.
            (receiving(2, None), true, BASE, None, None),
            (receiving(2, begun(BASE, 5)), true, None, None, None),
            (receiving(2, begun(BASE, 5)), false, BASE, None, rebase),
            (receiving(2, begun(None, 5)), false, None, None, Some(StartOver)),
        ];
        for (state, exists, base, step, forced) in cases {
            let found = |force| state.receive("db", &stream(base), exists, force).ok();
            assert_eq!((found(false), found(true)), (step, forced), "{state:?} {exists} {base:?}");
        }
    }

    #[test]
    fn leg_keeps_its_name_and_content() {
        use VolumeOrder::{Create, DeleteSnapshot, Promote, Resize, TakeSnapshot};
        let leg = VolumeState::Leg { mirrored: "db".to_owned() };
        for order in ORDERS {
            let keeps = [Create, DeleteSnapshot, Promote, Resize, TakeSnapshot].contains(&order);
            let checked = leg.check("db-leg", order);
            assert_eq!(checked.is_ok(), keeps, "{order:?}");
            assert!(keeps || checked.unwrap_err().contains("leg of mirrored volume db"));
        }
        let rolling = VolumeState::RollingBack { mirrored: "db".to_owned() };
        for order in ORDERS {
            let refused = rolling.check("db-leg", order).unwrap_err();
            assert!(refused.contains("mirror status db"), "{order:?}: {refused}");
        }
        for (exists, force) in [(true, true), (true, false), (false, true), (false, false)] {
            assert!(rolling.receive("db-leg", &stream(BASE), exists, force).is_err());
            assert!(leg.receive("db-leg", &stream(BASE), exists, force).is_err());
        }
        assert_eq!(leg.check_leg("db-leg"), Ok(()));
        for state in [VolumeState::Draining, receiving(1, None)] {
            assert!(state.check_leg("db-leg").is_err(), "{state:?}");
        }
    }

    #[test]
    fn positions_survive_as_properties() {
        let received = Received { source: u64::MAX, base: BASE, end: 1 << 54 };
        let first = Received { source: 0, base: None, end: 0 };
        for one in [received, first] {
            assert_eq!(one.to_string().parse(), Ok(one));
        }
        assert_eq!(received.to_string().len(), first.to_string().len());
        let text = received.to_string();
        let with = |from: &str, to: &str| text.replace(from, to);
        for bad in ["", "5", &text[1..], &format!("{text} "), &with("f", "F"), &with("-", "")] {
            assert!(bad.parse::<Received>().is_err(), "{bad}");
        }
    }
}
