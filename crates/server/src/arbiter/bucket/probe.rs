//! Probe: proof that the store honors conditional writes, on an object of its own.
//!
//! Some servers compatible with S3 ignore `If-Match` or `If-None-Match`, and some compare and store in
//! two steps, between which another write may come. Each would let both nodes win. A probe that ends
//! well is no proof against rare races, but the servers that are known to fail do so at once.
//!
//! Both nodes may probe at the same time: a conflict with the other one is no flaw.

use std::cell::Cell;

use flagstone_arbiter::{NoAnswer, StoredVersion, Written};
use object_store::path::Path;
use rustix::rand::{GetRandomFlags, getrandom};
use tokio::join;

use crate::arbiter::bucket::build::Client;

/// Rounds in which four writes race.
const RACES: usize = 4;
/// Rounds in which no write may have won, because the other node probes as well.
const DISTURBED_MAX: usize = 8;

/// Probes a store; the inner error is a flaw.
pub(super) async fn run(client: &Client, path: Path) -> Result<Result<(), &'static str>, NoAnswer> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|error| NoAnswer(error.to_string()))?;
    let (run, count) = (u64::from_ne_bytes(bytes), Cell::new(0));
    // Different from all others, also from those of the other node.
    let content = || {
        count.set(count.get() + 1);
        format!("flagstone-probe {run:016x} {}\n", count.get())
    };
    let put = async |expected: Option<&StoredVersion>, text: &str| {
        client.put(&path, expected, text.into()).await
    };
    // Content of writes that must have failed.
    let mut refused = [(); 2].map(|()| content());
    put(None, &content()).await?;
    if put(None, &refused[0]).await? == Written::Yes {
        return Ok(Err("it created an object that exists"));
    }
    if put(Some(&client.never_stored()), &refused[1]).await? == Written::Yes {
        return Ok(Err("it replaced an object on a version that never existed"));
    }
    let (mut races, mut disturbed) = (0, 0);
    while races < RACES {
        let found = client.get(&path).await?;
        let found = found.ok_or_else(|| NoAnswer("the probe's object is gone".to_owned()))?;
        if refused.iter().any(|text| text.as_bytes() == found.bytes) {
            return Ok(Err("it stored an object although it refused it"));
        }
        let texts = [(); 4].map(|()| content());
        let version = Some(&found.version);
        let [one, two, three, four] = texts.each_ref().map(|text| put(version, text));
        let (one, two, three, four) = join!(one, two, three, four);
        let results = [one, two, three, four];
        // A server that loses many concurrent writes may refuse some of them without a conflict.
        let won = results.iter().filter(|result| matches!(result, Ok(Written::Yes))).count();
        match won {
            0 => disturbed += 1,
            1 => races += 1,
            _ => return Ok(Err("several writes replaced the same version")),
        }
        if disturbed > DISTURBED_MAX {
            let failed = results.into_iter().find_map(Result::err);
            let silent = || NoAnswer("other writers of the probe are always faster".to_owned());
            return Err(failed.unwrap_or_else(silent));
        }
        let late = content();
        if won == 1 && put(version, &late).await? == Written::Yes {
            return Ok(Err("it replaced an object on an outdated version"));
        }
        refused[1] = late;
    }
    Ok(Ok(()))
}
