//! Mirrored volume under fio's nbd engine, with checksums independent of Flagstone: the target dies
//! and stalls, and the link is cut. `FLAGSTONE_MIRROR_ROUNDS` sets the number of events.

use std::fs::File;
use std::process::{Child, Stdio};

use flagstone_tests::mirror::{Pair, Setup, VOLUME};
use flagstone_tests::mirror_events::{Host, TARGET_EVENTS, rounds};
use flagstone_tests::process::until;
use flagstone_tests::rng;
use flagstone_tests::tools::{find, have, run, skip};

const SIZE_BYTES: u64 = 32 << 20;

/// A sequence of fio runs: each writes 8 MiB at random and reads it back.
struct Fio {
    child: Child,
    uri: String,
    begun: u64,
}

impl Fio {
    fn start(pair: &Pair, uri: String) -> Fio {
        let child = Fio::spawn(pair, &uri, 1);
        Fio { child, uri, begun: 1 }
    }

    fn spawn(pair: &Pair, uri: &str, seed: u64) -> Child {
        let log = pair.file("fio.log");
        let log = File::create(log).expect("a log can be made");
        let errors = log.try_clone().expect("a descriptor can be copied");
        let fio = find("fio").expect("it was looked for");
        let line = "--name=verify --ioengine=nbd --thread --rw=randwrite --size=8m --iodepth=16 \
                    --bssplit=4k/80:64k/20 --verify=crc32c --verify_fatal=1 --verify_state_save=0";
        pair.host()
            .command(&fio)
            .args(line.split_whitespace())
            .arg(format!("--uri={uri}"))
            .arg(format!("--randseed={seed}"))
            .arg(format!("--aux-path={}", pair.file("").display()))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn()
            .expect("fio can be started")
    }

    /// Starts the next fio if the current one has ended, which must be without errors.
    fn look(&mut self, pair: &Pair) {
        let Some(status) = self.child.try_wait().expect("a child can be looked at") else { return };
        let log = || std::fs::read_to_string(pair.file("fio.log")).unwrap_or_default();
        assert!(status.success(), "fio: {status}\n{}", log());
        self.begun += 1;
        self.child = Fio::spawn(pair, &self.uri, self.begun);
    }
}

impl Host for Fio {
    /// Waits until the source has received `writes` further writes.
    fn later(&mut self, pair: &Pair, writes: u64) {
        let count = || pair.status(0)["replica"]["writes"].as_u64().expect("a number");
        let until_count = count() + writes;
        let came = || {
            self.look(pair);
            count() >= until_count
        };
        until("fio writes", came, || format!("{:#}", pair.status(0)));
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Fio {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn fio_checksums_hold_through_target_and_link_faults() {
    let test = "fio on a mirrored volume";
    if !have(test, &["fio"]) {
        return;
    }
    if !run("fio", &["--enghelp"]).lines().any(|engine| engine.trim() == "nbd") {
        return skip(test, "this fio is built without its nbd engine");
    }
    let setup = Setup { size_bytes: SIZE_BYTES, ..Setup::default() };
    let Some(mut pair) = Pair::linked(test, setup) else { return };
    let mut rng = rng::from_env("FLAGSTONE_MIRROR_SEED", 4);
    let uri = pair.node(0).nbd_uri(VOLUME);
    let mut fio = Fio::start(&pair, uri);
    for round in 0..rounds(TARGET_EVENTS.len()) {
        fio.later(&pair, 100 + rng.below(500));
        let event = TARGET_EVENTS.get(round as usize).copied();
        let event = event.unwrap_or_else(|| TARGET_EVENTS[rng.below(11) as usize]);
        eprintln!("round {round}: {event:?}");
        event.happen(&mut pair, 0, &mut rng, &mut fio);
        assert_eq!(pair.source(), 0);
        fio.hold(&mut || pair.assert_equal_legs(0));
    }
    // Complete runs, at least one of which was read back after the last event.
    let last = fio.begun + 2;
    let ended = || {
        fio.look(&pair);
        fio.begun >= last
    };
    until("fio has read back what it wrote", ended, String::new);
    drop(fio);
    pair.end(0);
}
