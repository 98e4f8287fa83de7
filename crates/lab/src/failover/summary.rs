//! Results of a drill, as data and as tables.

use flagstone_bench::table::Table;
use flagstone_load::results::LoadResults;
use flagstone_units::display::count;
use flagstone_units::grouped;
use serde::Serialize;

use super::Death;
use super::emulated::PEER_TIMEOUT;
use super::timeline::{DrillEvent, TimelinePoint};
use crate::bed::SCHEMA_VERSION;
use flagstone_bench::provenance::Provenance;

/// Result of the host's verifying load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VerifiedLoad {
    /// Written blocks of 4 KiB.
    pub blocks_written: u64,
    /// Blocks that were read and compared, by the load and at the end; 0 if not all were read back.
    pub blocks_checked: u64,
    /// Blocks with other data than was written.
    pub wrong_blocks: u64,
    pub errors: u64,
}

impl VerifiedLoad {
    /// Whether nothing was lost and the host saw no error.
    pub fn is_right(&self) -> bool {
        self.wrong_blocks == 0 && self.errors == 0 && self.blocks_checked > 0
    }

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
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FailoverSummary {
    pub schema_version: u32,
    pub experiment: &'static str,
    /// True if the disks are known to be emulated.
    pub emulated: bool,
    pub real_nodes: bool,
    pub provenance: Provenance,
    pub machine: Option<String>,
    pub death: Death,
    #[serde(flatten)]
    pub verified: VerifiedLoad,
    pub longest_ms: f64,
    /// Time from the death of the source to the end of the command that made the other node the
    /// source, in ms.
    pub failover_ms: f64,
    /// Bytes of the volume that were copied to the node that had been dead.
    pub resynced_bytes: u64,
    pub volume_bytes: u64,
    /// Time from that node's start until it was in sync, in ms.
    pub return_ms: f64,
    pub switchover_ms: f64,
    /// Events, in the load's time.
    pub events: Vec<DrillEvent>,
    pub timeline: Vec<TimelinePoint>,
    pub caveats: Vec<String>,
}

impl FailoverSummary {
    /// Results of the load and of reading back; the drill adds the rest.
    pub(crate) fn of_host(load: &LoadResults, read_back: &LoadResults) -> FailoverSummary {
        let both = [load, read_back];
        let verified = |pick: fn(&flagstone_load::results::VerifyResults) -> u64| {
            both.iter().filter_map(|one| one.verify.as_ref()).map(pick).sum::<u64>()
        };
        let failed = |one: &&LoadResults| {
            one.errors.iter().map(|error| error.count).sum::<u64>() + one.unfinished_ios
        };
        // Blocks that were not read back were not verified.
        let is_whole = read_back.verify.as_ref().is_some_and(|verify| verify.read_back);
        let checked = verified(|verify| verify.blocks_checked);
        let longest_us = load.total.as_ref().map_or(0.0, |total| total.latency_us.max);
        let point = |sample: &flagstone_load::results::Sample| TimelinePoint {
            at_s: sample.at_s,
            iops: sample.iops,
        };
        FailoverSummary {
            schema_version: SCHEMA_VERSION,
            experiment: "failover",
            verified: VerifiedLoad {
                blocks_written: verified(|verify| verify.blocks_written),
                blocks_checked: if is_whole { checked } else { 0 },
                wrong_blocks: verified(|verify| verify.violations),
                errors: both.iter().map(failed).sum(),
            },
            longest_ms: longest_us / 1e3,
            timeline: load.samples.iter().map(point).collect(),
            ..FailoverSummary::default()
        }
    }

    pub fn death_in_words(&self) -> String {
        match self.death {
            Death::Silent => format!(
                "node-a fell silent, as after a loss of power; its peer waits {PEER_TIMEOUT} for it"
            ),
            Death::Kill => "node-a's process was killed, which closes its connections at once; a \
                            machine that loses its power does not"
                .to_owned(),
            Death::Operator => "node-a was killed by its operator, or by their command".to_owned(),
        }
    }
}

pub fn tables(summary: &FailoverSummary) -> Vec<Table> {
    let suffix = summary.provenance.suffix();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let ms = |value: f64| format!("{} ms", grouped(value, 0));
    let rows = [
        ("death of the source", summary.death_in_words()),
        ("time until the other node served", ms(summary.failover_ms)),
        ("longest latency of a request", ms(summary.longest_ms)),
        (
            "copied to the first node at its return",
            format!("{:.1} of {:.1} MiB", mib(summary.resynced_bytes), mib(summary.volume_bytes)),
        ),
        ("time from its start until in sync", ms(summary.return_ms)),
        ("planned switchover back", ms(summary.switchover_ms)),
        ("written blocks of 4 KiB", count(summary.verified.blocks_written)),
        ("compared blocks", count(summary.verified.blocks_checked)),
        ("wrong blocks", count(summary.verified.wrong_blocks)),
        ("failed requests", count(summary.verified.errors)),
    ];
    let mut figures = Table::new(format!("failover{suffix}"), &["what", "here"]);
    figures.rows = rows.map(|(what, value)| vec![what.to_owned(), value]).into();
    let mut events = Table::new(format!("events{suffix}"), &["event", "second"]);
    events.rows = summary
        .events
        .iter()
        .map(|event| vec![event.what.clone(), format!("{:.3}", event.at_s)])
        .collect();
    vec![figures, events]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> FailoverSummary {
        let point = |at_s, iops| TimelinePoint { at_s, iops };
        let event = |at_s, what: &str| DrillEvent { at_s, what: what.to_owned() };
        FailoverSummary {
            schema_version: SCHEMA_VERSION,
            experiment: "failover",
            emulated: true,
            real_nodes: false,
            provenance: Provenance::Emulated,
            machine: None,
            death: Death::Silent,
            verified: VerifiedLoad {
                blocks_written: 5,
                blocks_checked: 7,
                wrong_blocks: 0,
                errors: 0,
            },
            longest_ms: 900.0,
            failover_ms: 80.0,
            resynced_bytes: 1 << 20,
            volume_bytes: 255 << 20,
            return_ms: 0.0,
            switchover_ms: 0.0,
            events: vec![event(1.5, "node-a falls silent"), event(1.6, "node-b serves")],
            timeline: vec![point(1.0, 4000.0), point(2.0, 1000.0), point(3.0, 0.0)],
            caveats: Vec::new(),
        }
    }

    #[test]
    fn only_checked_data_is_right() {
        let right = example().verified;
        assert!(right.is_right());
        assert!(right.verdict().contains("nothing lost: 5 blocks written, 7 read"));
        for (wrong_blocks, errors, blocks_checked) in [(1, 0, 7), (0, 1, 7), (0, 0, 0)] {
            let found = VerifiedLoad { wrong_blocks, errors, blocks_checked, ..right };
            assert!(!found.is_right() && !found.verdict().contains("nothing lost"));
        }
    }

    #[test]
    fn tables_state_the_death_and_the_provenance() {
        let [figures, events] = &tables(&example())[..] else { panic!("two") };
        assert!(figures.title.contains("EMULATED") && events.title.contains("EMULATED"));
        assert!(figures.rows[0][1].contains("fell silent"), "{:?}", figures.rows[0]);
        assert_eq!(figures.rows[3][1], "1.0 of 255.0 MiB");
        assert_eq!(events.rows[1], ["node-b serves", "1.600"]);
        let killed = FailoverSummary { provenance: Provenance::Served, ..example() };
        assert!(tables(&killed)[0].title.contains("[served]"));
    }
}
