//! Sending and receiving snapshots.
//!
//! A volume that is being received has the property `receiving`: it is not served until its snapshot
//! is complete, also after a crash. The property `received` has what is on the volume durably, and of
//! which base: another stream of the same snapshot and base continues there.

use std::sync::Arc;

use flagstone_pool::stream::frame::{Frame, FrameBody, StreamStart};
use flagstone_pool::stream::receive::Receiver;
use flagstone_pool::stream::send::StreamPart;
use flagstone_pool::{Pool, PoolId, PoolVolume, VolumeInfo, VolumeOptions};
use flagstone_units::size_text;

use super::failed;
use super::settings::{self, Settings};
use super::volume_orders::{Found, problem};
use crate::api::pool_document::ReceiveDocument;
use crate::http::Problem;
use crate::serve::Server;

/// Property of a volume that is being received: the identifier of the snapshot.
pub(super) const RECEIVING_KEY: &str = "receiving";

/// Property of a volume that is being received: a [`Received`].
const RECEIVED_KEY: &str = "received";

/// Bytes of data after which the position is recorded.
const RECORD_BYTES: u64 = 64 << 20;

/// What a volume that is being received has of its snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Received {
    /// Everything before this offset.
    end: u64,
    /// The base of the stream.
    base: Option<PoolId>,
}

impl Received {
    /// Nothing for a property that cannot be read: then the receive starts over.
    fn of(info: &VolumeInfo) -> Received {
        let read = |text: &String| {
            let (end, base) = text.split_once(' ')?;
            let end = end.parse().ok()?;
            Some(Received { end, base: (base != WHOLE).then(|| base.parse()).transpose().ok()? })
        };
        info.properties.get(RECEIVED_KEY).and_then(read).unwrap_or_default()
    }

    fn to_property(self) -> String {
        let base = self.base.map_or(WHOLE.to_owned(), |base| base.to_string());
        format!("{} {base}", self.end)
    }
}

/// The base of a stream without one.
const WHOLE: &str = "whole";

/// Where a stream goes.
pub(crate) struct ReceivePart<'a> {
    pub(crate) name: &'a str,
    /// For a new volume.
    pub(crate) pool: Option<&'a str>,
    /// Discard what was written since the base, and disconnect hosts.
    pub(crate) force: bool,
    /// Whole frames.
    pub(crate) bytes: &'a [u8],
}

/// Why a volume is not served, if it is being received.
pub(super) fn check_received(info: &VolumeInfo) -> Result<(), String> {
    match info.properties.contains_key(RECEIVING_KEY) {
        true => Err(format!(
            "it was not received in full: run flagstone volume receive {0} with the stream again, of \
             which it has {1} bytes (flagstone volume send --resume {1}), or flagstone volume delete \
             {0}",
            info.name,
            Received::of(info).end
        )),
        false => Ok(()),
    }
}

impl Server {
    /// A part of the stream of a snapshot.
    pub(crate) async fn send_part(
        &self,
        full: &str,
        since: Option<&str>,
        offset: u64,
    ) -> Result<StreamPart, Problem> {
        let (Found { pool_name, pool, .. }, _) = self.find_snapshot(full)?;
        if let Some(since) = since {
            let (other, _) = self.find_snapshot(since)?;
            if other.pool_name != pool_name {
                let pools = format!("{full} and {since} are in different pools");
                return Err(Problem::conflict(pools));
            }
        }
        let part = pool.send_part(full, since, offset).await;
        part.map_err(|error| problem(&pool_name, error))
    }

    /// Receives some frames of a stream.
    pub(crate) async fn receive_part(
        &self,
        part: ReceivePart<'_>,
    ) -> Result<ReceiveDocument, Problem> {
        let _order = self.pools.order().await;
        let ReceivePart { name, bytes, .. } = part;
        let mut rest = bytes;
        let mut receiver = self.pools.receivers.borrow_mut().remove(name);
        if let (Some(interrupted), Ok(Some((Frame { body: FrameBody::Begin(_), .. }, _)))) =
            (&mut receiver, Frame::decode(rest))
        {
            // Its client was cut off.
            self.record_received(name, interrupted).await?;
        }
        while !rest.is_empty() {
            let bad = |why: &dyn std::fmt::Display| {
                Problem::invalid(format!("the stream cannot be used: {why}"))
            };
            let (frame, len) = match Frame::decode(rest) {
                Ok(Some(decoded)) => decoded,
                Ok(None) => return Err(bad(&"a frame is cut")),
                Err(error) => return Err(bad(&error)),
            };
            rest = &rest[len..];
            if let FrameBody::Begin(start) = &frame.body {
                match self.begin_receive(&part, frame.snapshot, start).await? {
                    Some(begun) => receiver = Some(begun),
                    None => return Ok(complete(name, start)),
                }
                continue;
            }
            let Some(receiver) = &mut receiver else {
                return Err(Problem::conflict(format!(
                    "volume {name} is not being received: begin with the first frame"
                )));
            };
            let applied = receiver.apply(&frame).await;
            applied.map_err(|error| Problem::conflict(format!("volume {name}: {error}")))?;
        }
        let mut receiver = receiver.ok_or_else(|| Problem::invalid("the body has no frame"))?;
        if receiver.has_ended() {
            self.end_receive(name, &receiver).await?;
            return Ok(complete(name, &receiver.start));
        }
        if receiver.unflushed_bytes() >= RECORD_BYTES {
            self.record_received(name, &mut receiver).await?;
        }
        let document = ReceiveDocument {
            name: name.to_owned(),
            position_bytes: receiver.position(),
            size_bytes: receiver.start.size_bytes,
            complete: false,
            outcome: format!("volume {name} is being received"),
        };
        self.pools.receivers.borrow_mut().insert(name.to_owned(), receiver);
        Ok(document)
    }

    /// Records what a volume has of its snapshot, after making it durable.
    async fn record_received(&self, name: &str, receiver: &mut Receiver) -> Result<(), Problem> {
        let Some(Found { pool_name, pool, info, .. }) = self.find_in_pools(name)? else {
            return Ok(());
        };
        // It was deleted, and another stream is received under its name.
        if info.properties.get(RECEIVING_KEY) != Some(&receiver.snapshot.to_string()) {
            return Ok(());
        }
        let flushed = receiver.flush().await;
        let end = flushed.map_err(|error| Problem::conflict(format!("volume {name}: {error}")))?;
        let received = Received { end, base: receiver.start.base };
        let mut properties = info.properties.clone();
        properties.insert(RECEIVED_KEY.to_owned(), received.to_property());
        let set = pool.set_volume(name, info.thick, properties).await;
        set.map_err(|error| problem(&pool_name, error))?;
        self.note_unserved(&pool_name, &pool, name);
        Ok(())
    }

    /// Notes why a volume that is being received is not served.
    fn note_unserved(&self, pool_name: &str, pool: &Pool, name: &str) {
        if let (Some(info), Some(slot)) =
            (pool.volume(name), self.pools.slots.borrow_mut().get_mut(pool_name))
            && let Err(why) = check_received(&info)
        {
            slot.unserved.insert(name.to_owned(), why);
        }
    }

    /// Prepares a volume for a stream; none if it has the snapshot already.
    async fn begin_receive(
        &self,
        part: &ReceivePart<'_>,
        snapshot: PoolId,
        start: &StreamStart,
    ) -> Result<Option<Receiver>, Problem> {
        let name = part.name;
        let receiver = |device| Some(Receiver::new(device, snapshot, start.clone()));
        let Some(found) = self.find_in_pools(name)? else {
            let device = self.create_received(part, snapshot, start).await?;
            return Ok(receiver(device));
        };
        let Found { pool_name, pool, info, .. } = &found;
        let full = format!("{name}@{}", start.name);
        let same = pool.snapshots().into_iter().find(|other| other.name == full);
        match same.map(|other| other.id == snapshot) {
            Some(true) if check_received(info).is_ok() => return Ok(None),
            Some(false) => {
                return Err(Problem::conflict(format!("there is another snapshot {full} already")));
            }
            // The snapshot was taken, and the crash came before the volume was served.
            Some(true) => {
                self.serve_received(&found).await?;
                return Ok(None);
            }
            None => {}
        }
        let receiving = info.properties.get(RECEIVING_KEY);
        let received = Received::of(info);
        let is_continued = receiving == Some(&snapshot.to_string())
            && received.base == start.base
            && info.size_bytes == start.size_bytes;
        if is_continued && received.end > 0 {
            let device = pool.open_volume(name).map_err(|error| problem(pool_name, error))?;
            tracing::info!("volume {name} continues to be received at {} bytes", received.end);
            return Ok(receiver(device).map(|receiver| receiver.resumed(received.end)));
        }
        match start.base {
            None => {
                let is_own = receiving == Some(&snapshot.to_string());
                if !is_own || info.size_bytes != start.size_bytes {
                    return Err(Problem::conflict(format!(
                        "volume {name} exists already: receive the stream under another name"
                    )));
                }
            }
            Some(base) => self.prepare_base(part, &found, snapshot, base, start).await?,
        }
        let device = pool.open_volume(name).map_err(|error| problem(pool_name, error))?;
        Ok(receiver(device))
    }

    async fn create_received(
        &self,
        part: &ReceivePart<'_>,
        snapshot: PoolId,
        start: &StreamStart,
    ) -> Result<Arc<PoolVolume>, Problem> {
        let name = part.name;
        if start.base.is_some() {
            return Err(Problem::conflict(format!(
                "there is no volume {name}: a stream with a base is received by a volume that has \
                 the base as a snapshot"
            )));
        }
        let pool_name = part.pool.ok_or_else(|| {
            Problem::invalid(format!("volume {name} is new: name its pool with --pool"))
        })?;
        let pool = self.pools.open_pool(pool_name)?;
        self.checked(pool_name, name, &Settings::new(), None)?;
        let mut properties = settings::to_properties(&Settings::new());
        properties.insert(RECEIVING_KEY.to_owned(), snapshot.to_string());
        let options =
            VolumeOptions { size_bytes: start.size_bytes, properties, ..VolumeOptions::default() };
        let created = pool.create_volume(name, &options).await;
        let device = created.map_err(|error| problem(pool_name, error))?;
        self.note_unserved(pool_name, &pool, name);
        tracing::info!("volume {name} of {} is received", size_text(start.size_bytes));
        Ok(device)
    }

    /// Takes a volume out of service and gives it the content of the base.
    async fn prepare_base(
        &self,
        part: &ReceivePart<'_>,
        found: &Found,
        snapshot: PoolId,
        base: PoolId,
        start: &StreamStart,
    ) -> Result<(), Problem> {
        let Found { pool_name, pool, info, served } = found;
        let (name, of_pool) = (part.name, |error| problem(pool_name, error));
        let own = format!("{name}@");
        let base = pool
            .snapshots()
            .into_iter()
            .find(|other| other.id == base && other.name.starts_with(&own))
            .ok_or_else(|| {
                Problem::conflict(format!(
                    "volume {name} has no snapshot with identifier {base}, on which the stream is \
                     based: send and receive that one first"
                ))
            })?;
        if start.size_bytes < base.size_bytes {
            return Err(Problem::invalid("the stream is smaller than its base"));
        }
        let is_again = info.properties.contains_key(RECEIVING_KEY);
        if !is_again && !part.force && pool.has_changed(name, &base.name).await.map_err(of_pool)? {
            return Err(Problem::conflict(format!(
                "volume {name} was written since {}: use --force to discard that",
                base.name
            )));
        }
        self.check_detached(served.as_slice(), part.force)?;
        let mut properties = info.properties.clone();
        properties.insert(RECEIVING_KEY.to_owned(), snapshot.to_string());
        properties.remove(RECEIVED_KEY);
        pool.set_volume(name, info.thick, properties).await.map_err(of_pool)?;
        if let Some(served) = served {
            self.retire(served).await.map_err(failed)?;
        }
        let base_name = base.name.trim_start_matches(&own);
        pool.rollback(name, base_name).await.map_err(of_pool)?;
        if start.size_bytes > base.size_bytes {
            pool.resize_volume(name, start.size_bytes).await.map_err(of_pool)?;
        }
        self.note_unserved(pool_name, pool, name);
        Ok(())
    }

    /// Takes the snapshot of a volume that has everything, and serves the volume.
    async fn end_receive(&self, name: &str, receiver: &Receiver) -> Result<(), Problem> {
        let found = self.required(name)?;
        let of_pool = |error| problem(&found.pool_name, error);
        let prepared =
            found.pool.prepare_snapshot(&[name], &receiver.start.name, receiver.snapshot).await;
        prepared.map_err(of_pool)?.take().await.map_err(of_pool)?;
        self.serve_received(&found).await?;
        tracing::info!("volume {name} was received, as {name}@{}", receiver.start.name);
        Ok(())
    }

    /// A volume that is being received will have other content: what was received is forgotten.
    pub(super) async fn forget_received(&self, found: &Found) -> Result<(), Problem> {
        let Found { pool_name, pool, info, .. } = found;
        self.pools.receivers.borrow_mut().remove(&info.name);
        let mut properties = info.properties.clone();
        if properties.remove(RECEIVED_KEY).is_none() {
            return Ok(());
        }
        let set = pool.set_volume(&info.name, info.thick, properties).await;
        set.map_err(|error| problem(pool_name, error))
    }

    async fn serve_received(&self, found: &Found) -> Result<(), Problem> {
        let Found { pool_name, pool, info, .. } = found;
        let mut properties = info.properties.clone();
        properties.remove(RECEIVING_KEY);
        properties.remove(RECEIVED_KEY);
        let set = pool.set_volume(&info.name, info.thick, properties).await;
        set.map_err(|error| problem(pool_name, error))?;
        self.serve_again(pool_name, pool, None, &info.name).await
    }
}

fn complete(name: &str, start: &StreamStart) -> ReceiveDocument {
    ReceiveDocument {
        name: name.to_owned(),
        position_bytes: start.size_bytes,
        size_bytes: start.size_bytes,
        complete: true,
        outcome: format!("volume {name} has the content of {name}@{}", start.name),
    }
}
