//! What came out of a drill, as data and as tables.

use flagstone_bench::table::Table;
use flagstone_bench::units::format_number;
use flagstone_load::results::Results;
use serde::Serialize;

use super::timeline::{Event, Point, suffix};
use super::{Death, PEER_TIMEOUT};

/// Version of the JSON form.
pub const SCHEMA_VERSION: u32 = 1;

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// `failover`.
    pub experiment: &'static str,
    /// Whether the disks' latency is emulated.
    pub emulated: bool,
    /// How the source died.
    pub death: Death,
    /// Blocks of 4 KiB written.
    pub blocks_written: u64,
    /// Blocks read and compared, by the load and at the end; 0 if not all were read back.
    pub blocks_checked: u64,
    /// Blocks that were not what was written.
    pub wrong_blocks: u64,
    /// Requests that failed.
    pub errors: u64,
    /// The longest that a request took, in ms.
    pub longest_ms: f64,
    /// From the death of the source to the end of the command that made the other one the source,
    /// in ms.
    pub failover_ms: f64,
    /// What was copied to the node that had been dead, of `volume_bytes`.
    pub resynced_bytes: u64,
    /// Size of the volume.
    pub volume_bytes: u64,
    /// From its start until it was in sync, in ms.
    pub return_ms: f64,
    /// The planned switchover back, in ms.
    pub switchover_ms: f64,
    /// What happened when, in the load's time.
    pub events: Vec<Event>,
    /// IOPS of each second of the load.
    pub timeline: Vec<Point>,
}

impl Summary {
    /// What the load and the reading back found; the drill itself tells the rest.
    pub(crate) fn of_host(load: &Results, read_back: &Results) -> Summary {
        let both = [load, read_back];
        let verified = |pick: fn(&flagstone_load::results::VerifyResults) -> u64| {
            both.iter().filter_map(|one| one.verify.as_ref()).map(pick).sum::<u64>()
        };
        let failed = |one: &&Results| {
            one.errors.iter().map(|error| error.count).sum::<u64>() + one.unfinished_ios
        };
        // What was not read back was not verified.
        let is_whole = read_back.verify.as_ref().is_some_and(|verify| verify.read_back);
        let checked = verified(|verify| verify.blocks_checked);
        let longest_us = load.total.as_ref().map_or(0.0, |total| total.latency_us.max);
        let point = |sample: &flagstone_load::results::Sample| Point {
            at_s: sample.at_s,
            iops: sample.iops,
        };
        Summary {
            schema_version: SCHEMA_VERSION,
            experiment: "failover",
            emulated: false,
            death: Death::Silent,
            blocks_written: verified(|verify| verify.blocks_written),
            blocks_checked: if is_whole { checked } else { 0 },
            wrong_blocks: verified(|verify| verify.violations),
            errors: both.iter().map(failed).sum(),
            longest_ms: longest_us / 1e3,
            failover_ms: 0.0,
            resynced_bytes: 0,
            volume_bytes: 0,
            return_ms: 0.0,
            switchover_ms: 0.0,
            events: Vec::new(),
            timeline: load.samples.iter().map(point).collect(),
        }
    }

    /// Nothing was lost, and the host saw no error.
    pub fn is_right(&self) -> bool {
        self.wrong_blocks == 0 && self.errors == 0 && self.blocks_checked > 0
    }

    /// In one sentence.
    pub fn verdict(&self) -> String {
        match (self.wrong_blocks, self.errors, self.blocks_checked) {
            (0, 0, 0) => "NOTHING WAS CHECKED".to_owned(),
            (0, 0, checked) => format!(
                "nothing lost: {} blocks written, {checked} read and compared, no error, all as \
                 written",
                self.blocks_written
            ),
            (wrong, errors, _) => format!("{wrong} blocks WRONG, {errors} requests FAILED"),
        }
    }

    /// What was done to the source.
    pub fn death_in_words(&self) -> String {
        match self.death {
            Death::Silent => format!(
                "node-a fell silent, as at the loss of its power; its peer waits {PEER_TIMEOUT} for it"
            ),
            Death::Kill => "node-a's process was killed, which closes its connections at once; a \
                            machine that loses its power does not"
                .to_owned(),
            Death::Told => "node-a was killed by its operator, or by their command".to_owned(),
        }
    }
}

/// The figures, and what happened when.
pub fn tables(summary: &Summary) -> Vec<Table> {
    let suffix = suffix(summary);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let ms = |value: f64| format!("{} ms", format_number(value, 0));
    let count = |value: u64| format_number(value as f64, 0);
    let rows = [
        ("the source's death", summary.death_in_words()),
        ("from it until the other served", ms(summary.failover_ms)),
        ("longest wait of a request of the host", ms(summary.longest_ms)),
        (
            "copied to the first at its return",
            format!("{:.1} of {:.1} MiB", mib(summary.resynced_bytes), mib(summary.volume_bytes)),
        ),
        ("from its start until it was in sync", ms(summary.return_ms)),
        ("planned switchover back", ms(summary.switchover_ms)),
        ("blocks of 4 KiB written", count(summary.blocks_written)),
        ("blocks read and compared", count(summary.blocks_checked)),
        ("blocks that were wrong", count(summary.wrong_blocks)),
        ("requests that failed", count(summary.errors)),
    ];
    let mut figures = Table::new(format!("a failover{suffix}"), &["what", "here"]);
    figures.rows = rows.map(|(what, value)| vec![what.to_owned(), value]).into();
    let mut events = Table::new(format!("what happened when{suffix}"), &["event", "second"]);
    events.rows = summary
        .events
        .iter()
        .map(|event| vec![event.what.clone(), format!("{:.3}", event.at_s)])
        .collect();
    vec![figures, events]
}

/// What the numbers do not say by themselves.
pub fn doubts(summary: &Summary) -> Vec<String> {
    let disks = match summary.emulated {
        true => "the latency of the disks is EMULATED; host and nodes are processes of one machine",
        false => "the nodes' disks are files, and host and nodes processes, of one machine",
    };
    let mut doubts = vec![disks.to_owned()];
    doubts.push(match summary.death {
        Death::Silent => "the source was stopped, so that it answered nothing and closed nothing, and \
                          killed as soon as the other served, which ends its connections: how long a \
                          host itself waits for a silent target (30 s of flagstone load) is not in \
                          these numbers"
            .to_owned(),
        Death::Kill => {
            "a killed process's connections are closed by its kernel, so the peer knew at once; a \
             machine that loses its power is known to be dead after the peer's time-out"
                .to_owned()
        }
        Death::Told => "the death is when its command began, or its operator said so".to_owned(),
    });
    doubts.push(
        "what was acknowledged was recorded by the host, and all of it was read back by another \
         process after the load had ended"
            .to_owned(),
    );
    doubts
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::failover) fn example() -> Summary {
        let point = |at_s, iops| Point { at_s, iops };
        let event = |at_s, what: &str| Event { at_s, what: what.to_owned() };
        Summary {
            schema_version: SCHEMA_VERSION,
            experiment: "failover",
            emulated: true,
            death: Death::Silent,
            blocks_written: 5,
            blocks_checked: 7,
            wrong_blocks: 0,
            errors: 0,
            longest_ms: 900.0,
            failover_ms: 80.0,
            resynced_bytes: 1 << 20,
            volume_bytes: 255 << 20,
            return_ms: 0.0,
            switchover_ms: 0.0,
            events: vec![event(1.5, "node-a falls silent"), event(1.6, "node-b serves")],
            timeline: vec![point(1.0, 4000.0), point(2.0, 1000.0), point(3.0, 0.0)],
        }
    }

    #[test]
    fn only_what_was_checked_is_right() {
        assert!(example().is_right());
        assert!(example().verdict().contains("nothing lost: 5 blocks written, 7 read"));
        for (wrong_blocks, errors, blocks_checked) in [(1, 0, 7), (0, 1, 7), (0, 0, 0)] {
            let found = Summary { wrong_blocks, errors, blocks_checked, ..example() };
            assert!(!found.is_right() && !found.verdict().contains("nothing lost"));
        }
    }

    #[test]
    fn tables_say_what_was_done_and_that_it_is_emulated() {
        let [figures, events] = &tables(&example())[..] else { panic!("two") };
        assert!(figures.title.contains("EMULATED") && events.title.contains("EMULATED"));
        assert!(figures.rows[0][1].contains("fell silent"), "{:?}", figures.rows[0]);
        assert_eq!(figures.rows[3][1], "1.0 of 255.0 MiB");
        assert_eq!(events.rows[1], ["node-b serves", "1.600"]);
        let killed = Summary { death: Death::Kill, emulated: false, ..example() };
        assert!(tables(&killed)[0].title.contains("[served]"));
        assert!(doubts(&killed)[1].contains("the peer knew at once"));
    }
}
