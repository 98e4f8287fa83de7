//! Probe: proof that the store honors conditional writes, on an object of its own.
//!
//! Some servers compatible with S3 ignore `If-Match` or `If-None-Match`, and some compare and store
//! in two steps, between which another write may come. Each would let both nodes win. A probe that
//! ends well is no proof against rare races, but the servers that are known to fail do so at once.
//!
//! Each node has an object. A conflict is no flaw nevertheless: two nodes may have the same name,
//! and a request without an answer may have been carried out. Such a request is repeated until it
//! is answered, so that a slow store, or a store that limits the rate, is probed as well.

use std::cell::Cell;
use std::time::Duration;

use flagstone_arbiter::{NoAnswer, Stored, StoredVersion, Written};
use flagstone_config::Cloud;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::join;
use tokio::time::sleep;

use crate::arbiter::bounded;
use crate::arbiter::bucket::Bucket;

/// Rounds in which four writes race.
const RACES: usize = 4;
/// Pause before a request without an answer is repeated.
const PAUSE: Duration = if cfg!(test) { Duration::from_millis(5) } else { Duration::from_secs(1) };
/// Time between changes of one object. Google allows one per second.
const GOOGLE_SPACING: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 1100 });

/// A store that is probed.
struct Probe<'a> {
    bucket: &'a Bucket,
    run: u64,
    texts: Cell<u64>,
}

impl Probe<'_> {
    /// Different from all others, also from another node's.
    fn content(&self) -> String {
        self.texts.set(self.texts.get() + 1);
        format!("flagstone-probe {:016x} {}\n", self.run, self.texts.get())
    }

    /// Waits until the store allows a change.
    async fn space(&self) {
        if self.bucket.settings.object_store.cloud == Cloud::Google {
            sleep(GOOGLE_SPACING).await;
        }
    }

    async fn pause(&self, reason: NoAnswer) {
        self.bucket.unknown(reason);
        sleep(PAUSE).await;
    }

    async fn try_put(
        &self,
        expected: Option<&StoredVersion>,
        text: &str,
    ) -> Result<Written, NoAnswer> {
        let path = self.bucket.probe_path();
        let put = async { self.bucket.ready().await?.put(&path, expected, text.into()).await };
        bounded(put).await
    }

    /// Sends a write until it is answered.
    async fn put(&self, expected: Option<&StoredVersion>, text: &str) -> Written {
        loop {
            self.space().await;
            match self.try_put(expected, text).await {
                Ok(written) => return written,
                Err(reason) => self.pause(reason).await,
            }
        }
    }

    async fn get(&self) -> Option<Stored> {
        let path = self.bucket.probe_path();
        loop {
            match bounded(async { self.bucket.ready().await?.get(&path).await }).await {
                Ok(found) => return found,
                Err(reason) => self.pause(reason).await,
            }
        }
    }

    /// Reads the object; creates it if there is none.
    async fn object(&self) -> Stored {
        loop {
            if let Some(found) = self.get().await {
                return found;
            }
            self.put(None, &self.content()).await;
        }
    }
}

/// Probes a store until it has answered everything.
///
/// # Errors
/// A flaw.
pub(super) async fn run(bucket: &Bucket) -> Result<(), &'static str> {
    let mut bytes = [0; 8];
    // The calls of a daemon that has no random numbers have failed before.
    while let Err(error) = getrandom(&mut bytes, GetRandomFlags::empty()) {
        bucket.unknown(NoAnswer(error.to_string()));
        sleep(PAUSE).await;
    }
    let probe = Probe { bucket, run: u64::from_ne_bytes(bytes), texts: Cell::new(0) };
    // Content of writes that must have failed.
    let mut refused = [(); 2].map(|()| probe.content());
    let never_stored = bucket.client.borrow().never_stored();
    probe.object().await;
    if probe.put(None, &refused[0]).await == Written::Yes {
        return Err("it created an object that exists");
    }
    if probe.put(Some(&never_stored), &refused[1]).await == Written::Yes {
        return Err("it replaced an object on a version that never existed");
    }
    let mut races = 0;
    while races < RACES {
        let found = probe.object().await;
        if refused.iter().any(|text| text.as_bytes() == found.bytes) {
            return Err("it stored an object although it refused it");
        }
        let texts = [(); 4].map(|()| probe.content());
        let version = Some(&found.version);
        probe.space().await;
        let [one, two, three, four] = texts.each_ref().map(|text| probe.try_put(version, text));
        let (one, two, three, four) = join!(one, two, three, four);
        let results = [one, two, three, four];
        // A server that loses many concurrent writes may refuse some of them without a conflict.
        match results.iter().filter(|result| matches!(result, Ok(Written::Yes))).count() {
            0 => {
                let failed = results.into_iter().find_map(Result::err);
                let beaten = || NoAnswer("other writers of the probe are faster".to_owned());
                probe.pause(failed.unwrap_or_else(beaten)).await;
                continue;
            }
            1 => races += 1,
            _ => return Err("several writes replaced the same version"),
        }
        let late = probe.content();
        if probe.put(version, &late).await == Written::Yes {
            return Err("it replaced an object on an outdated version");
        }
        refused[1] = late;
    }
    Ok(())
}
