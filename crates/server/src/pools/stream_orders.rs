//! Orders that send and receive snapshots.
//!
//! A volume that is being received is not served until its snapshot is complete, also after a
//! crash: see [`VolumeState`]. An interrupted receive continues when its stream comes again. The
//! content of such a volume changes otherwise only after its recorded position was set to 0.

use std::collections::BTreeMap;
use std::sync::Arc;

use flagstone_pool::stream::frame::{FrameBody, StreamFrame, StreamStart};
use flagstone_pool::stream::receive::{RECEIVED_KEY, Received, VolumeReceiver};
use flagstone_pool::stream::send::StreamPart;
use flagstone_pool::{
    COMPRESSION_PROPERTY, Compression, Pool, PoolVolume, VolumeEncryption, VolumeInfo,
    VolumeOptions, WrappingKey,
};
use flagstone_units::exact_size;

use super::Pools;
use super::key_files;
use super::received_from::ReceivedFrom;
use super::retire::not_retired;
use super::settings::{self, KEY_FILE_KEY, Settings};
use super::snapshot_orders::is_name;
use super::volume_orders::{FoundVolume, problem};
use super::volume_state::{RECEIVING_KEY, ReceiveStep, StreamId, VolumeOrder, VolumeState};
use crate::api::pool_document::ReceiveDocument;
use crate::http::Problem;
use crate::limits::RECEIVE_RECORD_BYTES;
use crate::serve::Server;

type Properties = BTreeMap<String, String>;

/// A part of a stream, and its destination.
pub(crate) struct ReceivePart<'a> {
    pub(crate) name: &'a str,
    /// Pool for a new volume.
    pub(crate) pool: Option<&'a str>,
    /// Compression of a new volume.
    pub(crate) compression: Option<&'a str>,
    /// Key file on the server that encrypts a new volume.
    pub(crate) key_file: Option<&'a str>,
    /// Discards writes since the base, and disconnects hosts.
    pub(crate) force: bool,
    /// Whole frames.
    pub(crate) bytes: &'a [u8],
}

impl Server {
    /// A part of the stream of a snapshot.
    pub(crate) async fn send_part(
        &self,
        full: &str,
        since: Option<&str>,
        offset: u64,
    ) -> Result<StreamPart, Problem> {
        let (FoundVolume { pool_name, pool, .. }, _) = self.find_snapshot(full)?;
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
        let ReceivePart { name, bytes, .. } = part;
        let _order = self.pools.order_on(&[name], part.pool).await?;
        let mut receiver = self.pools.receivers.borrow_mut().remove(name);
        match self.receive_frames(&part, bytes, &mut receiver).await {
            Ok(None) => {}
            Ok(Some(start)) => return self.received_before(name, &start).await,
            Err(refused) => {
                // Another stream continues at what the volume has now.
                if let Some(receiver) = &mut receiver
                    && let Err(problem) = self.record_received(name, receiver).await
                {
                    tracing::warn!(
                        "the position of volume {name} is not recorded: {}",
                        problem.detail
                    );
                }
                return Err(refused);
            }
        }
        let mut receiver = receiver.ok_or_else(|| Problem::invalid("the body has no frame"))?;
        if receiver.has_ended() {
            self.end_receive(name, &receiver).await?;
            return Ok(self.complete(name, &receiver.start));
        }
        if receiver.unrecorded_bytes() >= RECEIVE_RECORD_BYTES {
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

    /// Answer to a stream whose snapshot the volume has already.
    async fn received_before(
        &self,
        name: &str,
        start: &StreamStart,
    ) -> Result<ReceiveDocument, Problem> {
        let full = format!("{name}@{}", start.name);
        let FoundVolume { pool_name, pool, .. } = self.required(name)?;
        let changed = pool.has_changed(name, &full).await;
        let mut answer = self.complete(name, start);
        if changed.map_err(|error| problem(&pool_name, error))? {
            answer.outcome = format!(
                "{full} was received before; volume {name} has changed since, and stays as it is"
            );
        }
        Ok(answer)
    }

    /// Applies frames. Returns the first frame of a stream whose snapshot the volume has already.
    async fn receive_frames(
        &self,
        part: &ReceivePart<'_>,
        mut rest: &[u8],
        receiver: &mut Option<VolumeReceiver>,
    ) -> Result<Option<StreamStart>, Problem> {
        let name = part.name;
        while !rest.is_empty() {
            let bad = |why: &dyn std::fmt::Display| {
                Problem::invalid(format!("the stream cannot be used: {why}"))
            };
            let (frame, len) = match StreamFrame::decode(rest) {
                Ok(Some(decoded)) => decoded,
                Ok(None) => return Err(bad(&"a frame is cut")),
                Err(error) => return Err(bad(&error)),
            };
            rest = &rest[len..];
            if let FrameBody::Begin(start) = &frame.body {
                // The client of the former stream was interrupted, or this is another client.
                let mut former = receiver.take();
                if let Some(former) = &mut former {
                    self.record_received(name, former).await?;
                }
                *receiver = match self.begin_receive(part, &frame, start).await {
                    Ok(receiver) => receiver,
                    Err(refused) => {
                        self.keep_receiving(name, former);
                        return Err(refused);
                    }
                };
                if receiver.is_none() {
                    return Ok(Some(start.clone()));
                }
                continue;
            }
            let Some(receiver) = receiver else {
                return Err(Problem::conflict(format!(
                    "volume {name} is not being received: begin with the first frame"
                )));
            };
            let applied = receiver.apply(&frame).await;
            applied.map_err(|error| Problem::conflict(format!("volume {name}: {error}")))?;
        }
        Ok(None)
    }

    /// Continues a receive after a stream that was refused, unless the volume is in another one.
    fn keep_receiving(&self, name: &str, receiver: Option<VolumeReceiver>) {
        let Some(receiver) = receiver else { return };
        let is_in_it = |found: FoundVolume| {
            receiver.volume().is_some_and(|info| info.uuid == found.info.uuid)
                && found.state.is_receiving(&stream_of(&receiver))
        };
        if self.find_in_pools(name).is_ok_and(|found| found.is_some_and(is_in_it)) {
            self.pools.receivers.borrow_mut().insert(name.to_owned(), receiver);
        }
    }

    /// Records the position of a receive.
    async fn record_received(
        &self,
        name: &str,
        receiver: &mut VolumeReceiver,
    ) -> Result<(), Problem> {
        let Some(found) = self.find_in_pools(name)? else { return Ok(()) };
        // A volume that was deleted and made again is another one.
        let is_own = receiver.volume().is_some_and(|info| info.uuid == found.info.uuid);
        if !is_own || !found.state.is_receiving(&stream_of(receiver)) {
            return Ok(());
        }
        let recorded = receiver.record(&found.pool).await;
        recorded.map_err(|error| problem(&found.pool_name, error))?;
        self.pools.note_receiving(&found.pool_name, &found.pool, name);
        Ok(())
    }

    /// Prepares a volume for a stream; `None` if it already has the snapshot.
    async fn begin_receive(
        &self,
        part: &ReceivePart<'_>,
        frame: &StreamFrame<'_>,
        start: &StreamStart,
    ) -> Result<Option<VolumeReceiver>, Problem> {
        let (name, snapshot, source) = (part.name, frame.snapshot, frame.source);
        if !is_name(&start.name) {
            return Err(Problem::invalid(format!(
                "the stream names its snapshot {:?}: a name has letters, digits, `-`, `_`, `.` or `:`",
                start.name
            )));
        }
        let stream = StreamId { snapshot, source, base: start.base };
        let receiver = |device, empty_from| {
            Some(VolumeReceiver::new(device, snapshot, source, start.clone(), empty_from))
        };
        self.settle(name).await;
        let Some(found) = self.find_in_pools(name)? else {
            if start.base.is_some() {
                return Err(Problem::conflict(format!(
                    "there is no volume {name}: a stream with a base is received by a volume that \
                     has the base as a snapshot"
                )));
            }
            let pool_name = part.pool.ok_or_else(|| {
                Problem::invalid(format!("volume {name} is new: name its pool with --pool"))
            })?;
            let mut settings = settings::compressed(part.compression.unwrap_or_default());
            settings.extend(part.key_file.map(with_key_file));
            // An unknown pool is reported before a missing key.
            self.pools.open_pool(pool_name)?;
            let key = key_files::for_creation(&self.pools.key_command, &settings).await?;
            let made = self.create_received(name, pool_name, &stream, start, &settings, key).await;
            let device = made?;
            return Ok(receiver(device, 0));
        };
        let FoundVolume { pool_name, pool, info, state, .. } = &found;
        let full = format!("{name}@{}", start.name);
        let same = pool.snapshots().into_iter().find(|other| other.name == full);
        if same.as_ref().is_some_and(|other| other.id != snapshot) {
            return Err(Problem::conflict(format!("there is another snapshot {full} already")));
        }
        if let Some(from) = ReceivedFrom::of(&info.properties) {
            let checked = from.check(&stream);
            checked.map_err(|why| Problem::conflict(format!("volume {name}: {why}")))?;
        }
        let step = state.receive(name, &stream, same.is_some(), part.force);
        let step = step.map_err(Problem::conflict)?;
        // A volume that begins again takes the new one, and a complete one stays as it is.
        let keeps = matches!(step, ReceiveStep::Continue { .. } | ReceiveStep::Rebase { .. });
        if let (Some(wanted), true) = (part.compression, keeps) {
            check_same_compression(name, info, wanted)?;
        }
        // A repeated receive must not report a plaintext volume as an encrypted one.
        if let (Some(wanted), false) = (part.key_file, matches!(step, ReceiveStep::StartOver)) {
            check_same_key_file(name, info, wanted)?;
        }
        match step {
            ReceiveStep::Done => Ok(None),
            ReceiveStep::Serve => {
                self.serve_received(&found, &stream).await?;
                Ok(None)
            }
            ReceiveStep::Continue { end } => {
                let size_bytes = info.size_bytes;
                if size_bytes != start.size_bytes {
                    return Err(Problem::conflict(format!(
                        "volume {name} has {size_bytes} bytes, and the stream {}: it is not the stream \
                         of which the volume has a part",
                        start.size_bytes
                    )));
                }
                let device = pool.open_volume(name).map_err(|error| problem(pool_name, error))?;
                tracing::info!("volume {name} continues to be received at {end} bytes");
                // Without a base, the volume was empty.
                let empty_from = if start.base.is_some() { size_bytes } else { 0 };
                Ok(receiver(device, empty_from).map(|receiver| receiver.resumed(end)))
            }
            // A new volume is empty, so zeroes need no writes.
            ReceiveStep::StartOver => {
                let own = info.properties.get(COMPRESSION_PROPERTY).map(String::as_str);
                let settings = settings::compressed(part.compression.or(own).unwrap_or_default());
                let mut settings = settings;
                // Its next content is encrypted as well.
                let former = settings::from_properties(&info.properties).unwrap_or_default();
                let key_file = settings::key_file(&former).ok().flatten();
                settings.extend(part.key_file.or(key_file).map(with_key_file));
                // A refusal must not follow the deletion.
                self.check_name_of(pool_name, name, &settings, None)?;
                let key = key_files::for_creation(&self.pools.key_command, &settings).await?;
                if key.is_none() && info.encryption != VolumeEncryption::None {
                    return Err(Problem::conflict(format!(
                        "volume {name} is encrypted, and its key file is not known: delete it first"
                    )));
                }
                let deleted = pool.delete_volume(name).await;
                deleted.map_err(|error| problem(pool_name, error))?;
                let device =
                    self.create_received(name, pool_name, &stream, start, &settings, key).await?;
                Ok(receiver(device, 0))
            }
            ReceiveStep::Rebase { is_complete } => {
                let base_bytes =
                    self.prepare_base(part, &found, &stream, start, is_complete).await?;
                let device = pool.open_volume(name).map_err(|error| problem(pool_name, error))?;
                Ok(receiver(device, base_bytes))
            }
        }
    }

    async fn create_received(
        &self,
        name: &str,
        pool_name: &str,
        stream: &StreamId,
        start: &StreamStart,
        settings: &Settings,
        key: Option<WrappingKey>,
    ) -> Result<Arc<PoolVolume>, Problem> {
        let pool = self.pools.open_pool(pool_name)?;
        self.check_name_of(pool_name, name, settings, None)?;
        let mut properties = settings::to_properties(settings);
        mark_receiving(&mut properties, stream);
        let options =
            VolumeOptions { size_bytes: start.size_bytes, properties, ..VolumeOptions::default() };
        let created = match &key {
            Some(key) => pool.create_encrypted_volume(name, &options, key).await,
            None => pool.create_volume(name, &options).await,
        };
        let device = created.map_err(|error| problem(pool_name, error))?;
        self.pools.note_receiving(pool_name, &pool, name);
        tracing::info!("volume {name} of {} is received", exact_size(start.size_bytes));
        Ok(device)
    }

    /// Takes a volume out of service, and gives it the content of the base. Returns the size of the
    /// base.
    async fn prepare_base(
        &self,
        part: &ReceivePart<'_>,
        found: &FoundVolume,
        stream: &StreamId,
        start: &StreamStart,
        is_complete: bool,
    ) -> Result<u64, Problem> {
        let FoundVolume { pool_name, pool, info, served, .. } = found;
        let (name, of_pool) = (part.name, |error| problem(pool_name, error));
        let own = format!("{name}@");
        let base = start.base.unwrap_or_default();
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
        let check_unchanged = async || {
            let matters = is_complete && !part.force;
            match matters && pool.has_changed(name, &base.name).await.map_err(of_pool)? {
                false => Ok(()),
                true => Err(Problem::conflict(format!(
                    "volume {name} was written since {}: use --force to discard that",
                    base.name
                ))),
            }
        };
        check_unchanged().await?;
        let base_name = base.name.trim_start_matches(&own);
        pool.check_rollback(name, base_name).map_err(of_pool)?;
        if start.size_bytes > base.size_bytes {
            pool.check_resize(name, start.size_bytes.max(info.size_bytes)).map_err(of_pool)?;
        }
        let _detached = self.keep_detached(served.as_slice(), part.force)?;
        if let Some(served) = served {
            self.retire(served).await.map_err(|why| not_retired(&why))?;
        }
        let marked = async {
            // A host may have connected and written in between. From here on, none can.
            check_unchanged().await?;
            let mut properties = info.properties.clone();
            mark_receiving(&mut properties, stream);
            pool.set_volume(name, info.thick, properties).await.map_err(of_pool)
        };
        if let Err(refused) = marked.await {
            if served.is_some() {
                self.serve_again(pool_name, pool, None, name).await?;
            }
            return Err(refused);
        }
        if let Err(refused) = pool.rollback(name, base_name).await {
            // The content is as before, e.g. because the pool has no space for its reservation.
            let unmarked = pool.set_volume(name, info.thick, info.properties.clone()).await;
            match (unmarked, served) {
                (Ok(()), Some(_)) => self.serve_again(pool_name, pool, None, name).await?,
                (Ok(()), None) | (Err(_), _) => self.pools.note_receiving(pool_name, pool, name),
            }
            return Err(of_pool(refused));
        }
        let grown = match start.size_bytes > base.size_bytes {
            true => pool.resize_volume(name, start.size_bytes).await.map_err(of_pool),
            false => Ok(()),
        };
        self.pools.note_receiving(pool_name, pool, name);
        grown.map(|()| base.size_bytes)
    }

    /// Answer to the end of a stream.
    fn complete(&self, name: &str, start: &StreamStart) -> ReceiveDocument {
        let mut outcome = format!("volume {name} has the content of {name}@{}", start.name);
        let state = self.find_in_pools(name).ok().flatten().map(|found| found.state);
        if let Some(VolumeState::Leg { mirrored }) = state {
            outcome += &format!(
                "; it is the leg of mirrored volume {mirrored}, which may replace the content"
            );
        }
        ReceiveDocument {
            name: name.to_owned(),
            position_bytes: start.size_bytes,
            size_bytes: start.size_bytes,
            complete: true,
            outcome,
        }
    }

    /// Takes the snapshot of a completely received volume, and serves the volume.
    async fn end_receive(&self, name: &str, receiver: &VolumeReceiver) -> Result<(), Problem> {
        let found = self.required(name)?;
        let of_pool = |error| problem(&found.pool_name, error);
        let is_own = receiver.volume().is_some_and(|info| info.uuid == found.info.uuid);
        if !is_own || !found.state.is_receiving(&stream_of(receiver)) {
            return Err(Problem::conflict(format!(
                "volume {name} was changed while it was being received: begin with the first frame"
            )));
        }
        let prepared =
            found.pool.prepare_snapshot(&[name], &receiver.start.name, receiver.snapshot).await;
        prepared.map_err(of_pool)?.take().await.map_err(of_pool)?;
        self.serve_received(&found, &stream_of(receiver)).await?;
        tracing::info!("volume {name} was received, as {name}@{}", receiver.start.name);
        Ok(())
    }

    async fn serve_received(&self, found: &FoundVolume, stream: &StreamId) -> Result<(), Problem> {
        let FoundVolume { pool_name, pool, info, .. } = found;
        let mut properties = info.properties.clone();
        end_receiving(&mut properties);
        ReceivedFrom::record(&mut properties, stream);
        let set = pool.set_volume(&info.name, info.thick, properties).await;
        set.map_err(|error| problem(pool_name, error))?;
        self.serve_again(pool_name, pool, None, &info.name).await
    }
}

impl Pools {
    /// Notes why a volume that is being received is not served.
    fn note_receiving(&self, pool_name: &str, pool: &Pool, name: &str) {
        if let (Some(info), Some(slot)) =
            (pool.volume(name), self.slots.borrow_mut().get_mut(pool_name))
            && let Err(why) = VolumeState::of(&info).check(name, VolumeOrder::Serve)
        {
            slot.unserved.insert(name.to_owned(), why);
        }
    }

    /// Bytes of its snapshot that a volume durably has which is being received.
    pub(crate) fn received_bytes(&self, pool: &Pool, name: &str) -> Option<u64> {
        VolumeState::of(&pool.volume(name)?).received_bytes()
    }
}

fn stream_of(receiver: &VolumeReceiver) -> StreamId {
    let VolumeReceiver { snapshot, source, start: StreamStart { base, .. }, .. } = receiver;
    StreamId { snapshot: *snapshot, source: *source, base: *base }
}

/// Refuses another compression than an existing volume has.
fn check_same_compression(name: &str, info: &VolumeInfo, wanted: &str) -> Result<(), Problem> {
    settings::check_pool_keys(&settings::compressed(wanted))?;
    let own = Compression::of(&info.properties).name();
    match own == wanted {
        true => Ok(()),
        false => Err(Problem::conflict(format!(
            "volume {name} exists already, with compression {own}: leave --compression out, and \
             change it with flagstone volume set {name} --compression {wanted} once it is received"
        ))),
    }
}

fn with_key_file(path: &str) -> (String, serde_json::Value) {
    (KEY_FILE_KEY.to_owned(), path.into())
}

fn check_same_key_file(name: &str, info: &VolumeInfo, wanted: &str) -> Result<(), Problem> {
    let settings = settings::from_properties(&info.properties).unwrap_or_default();
    let own = settings::key_file(&settings).ok().flatten();
    let why = match (info.encryption, own) {
        (VolumeEncryption::None, _) => "is not encrypted".to_owned(),
        (_, Some(own)) if own == wanted => return Ok(()),
        (_, own) => format!("has key file {}", own.unwrap_or("-")),
    };
    Err(Problem::conflict(format!(
        "volume {name} exists already, and {why}: leave --encryption-key-file out"
    )))
}

/// Marks a volume that gets other content: it has nothing of a stream yet.
fn mark_receiving(properties: &mut Properties, stream: &StreamId) {
    let received = Received { source: stream.source, base: stream.base, end: 0 };
    properties.insert(RECEIVING_KEY.to_owned(), stream.snapshot.to_string());
    properties.insert(RECEIVED_KEY.to_owned(), received.to_string());
}

/// Removes the marks of a volume that is being received; false without any.
pub(super) fn end_receiving(properties: &mut Properties) -> bool {
    properties.remove(RECEIVED_KEY);
    properties.remove(RECEIVING_KEY).is_some()
}
