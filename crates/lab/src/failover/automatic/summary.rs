//! Results of the drill: the table of times to serve, beside published promises, and the picture.

use std::path::Path;

use flagstone_bench::provenance::Provenance;
use flagstone_bench::report::Plot;
use flagstone_bench::table::Table;
use flagstone_plot::Theme;
use flagstone_units::grouped;
use serde::Serialize;

use super::AutomaticDeath;
use crate::Error;
use crate::failover::VerifiedLoad;
use crate::failover::timeline::{self, DrillEvent, TimelinePoint};

/// Promises of other products: product, text, and where it is published.
const PUBLISHED: [(&str, &str, &str); 2] = [
    ("MayaScale", "under 60 s", "its overview of high availability"),
    (
        "NetApp Cloud Volumes ONTAP",
        "120 s, with a mediator",
        "its documentation of high-availability pairs in Google Cloud",
    ),
];

/// Times to serve after one kind of death.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeathTimes {
    pub death: AutomaticDeath,
    /// In the order of the rounds, in ms.
    pub times_ms: Vec<f64>,
    pub median_ms: f64,
    pub worst_ms: f64,
}

impl DeathTimes {
    /// Groups the times of all deaths, in the order of their first occurrence.
    pub(super) fn of(times: &[(AutomaticDeath, f64)]) -> Vec<DeathTimes> {
        let mut kinds: Vec<AutomaticDeath> = Vec::new();
        for (death, _) in times {
            if !kinds.contains(death) {
                kinds.push(*death);
            }
        }
        let of_kind = |death: AutomaticDeath| {
            let own = times.iter().filter(|(other, _)| *other == death).map(|(_, ms)| *ms);
            let times_ms: Vec<f64> = own.collect();
            let mut sorted = times_ms.clone();
            sorted.sort_by(f64::total_cmp);
            let middle = sorted.len() / 2;
            let median_ms = match sorted.len() % 2 {
                1 => sorted[middle],
                _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
            };
            DeathTimes { death, times_ms, median_ms, worst_ms: sorted[sorted.len() - 1] }
        };
        kinds.into_iter().map(of_kind).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AutomaticSummary {
    pub schema_version: u32,
    pub experiment: &'static str,
    pub emulated: bool,
    pub provenance: Provenance,
    /// Silence after which the target asks the arbiter.
    pub failover_after_ms: f64,
    pub deaths: Vec<DeathTimes>,
    #[serde(flatten)]
    pub verified: VerifiedLoad,
    /// Deaths, in the load's time.
    pub events: Vec<DrillEvent>,
    pub timeline: Vec<TimelinePoint>,
    pub caveats: Vec<String>,
}

impl AutomaticSummary {
    fn count(&self) -> usize {
        self.deaths.iter().map(|kind| kind.times_ms.len()).sum()
    }
}

pub(super) fn caveats() -> Vec<String> {
    [
        "the latency of the disks is EMULATED; host, nodes and etcd are processes of one machine, and \
         their links are relayed by another one, which cuts them",
        "the time to serve is the longest interval around the death in which no write of the host was \
         acknowledged",
        "the host's connections to a silent source were closed as soon as the other node served: the \
         time that a host waits for a silent target (30 s by default in flagstone load) is not included",
        "promises are not measurements: other products were not run",
    ]
    .map(str::to_owned)
    .into()
}

/// The times by kind of death, and what others promise.
pub fn tables(summary: &AutomaticSummary) -> Vec<Table> {
    let suffix = summary.provenance.suffix();
    let title = format!(
        "time until the host is served again, in ms{suffix}; failover_after {} ms",
        grouped(summary.failover_after_ms, 0)
    );
    let mut times = Table::new(title, &["the source is", "deaths", "median", "worst"]);
    times.rows = summary
        .deaths
        .iter()
        .map(|kind| {
            vec![
                kind.death.in_words().to_owned(),
                kind.times_ms.len().to_string(),
                grouped(kind.median_ms, 0),
                grouped(kind.worst_ms, 0),
            ]
        })
        .collect();
    let mut published =
        Table::new("failover as others promise it".to_owned(), &["product", "time", "source"]);
    published.rows = PUBLISHED
        .map(|(product, time, source)| [product, time, source].map(str::to_owned).to_vec())
        .into();
    vec![times, published]
}

/// The timeline with its deaths.
pub fn drawing(summary: &AutomaticSummary) -> Plot {
    let verified = &summary.verified;
    let found = if verified.is_right() { "nothing lost".to_owned() } else { verified.verdict() };
    let suffix = summary.provenance.suffix();
    timeline::picture(
        (&summary.timeline, &summary.events),
        format!("{} deaths of a source, nobody intervenes{suffix}", summary.count()),
        format!("verifying load by both nodes{suffix}: {found}"),
    )
}

pub(super) fn write(summary: &AutomaticSummary, directory: &Path) -> Result<(), Error> {
    let picture = drawing(summary).picture;
    std::fs::write(directory.join("timeline.svg"), picture.svg(Theme::Auto))
        .map_err(Error::system("cannot write the timeline"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> AutomaticSummary {
        let times = [
            (AutomaticDeath::Kill, 5100.0),
            (AutomaticDeath::Stop, 90.0),
            (AutomaticDeath::Kill, 5300.0),
            (AutomaticDeath::Stop, 70.0),
            (AutomaticDeath::Kill, 5000.0),
        ];
        AutomaticSummary {
            schema_version: 1,
            experiment: "automatic_failover",
            emulated: true,
            provenance: Provenance::Emulated,
            failover_after_ms: 5000.0,
            deaths: DeathTimes::of(&times),
            verified: VerifiedLoad {
                blocks_written: 5,
                blocks_checked: 7,
                wrong_blocks: 0,
                errors: 0,
            },
            events: vec![DrillEvent { at_s: 1.5, what: "killed".to_owned() }],
            timeline: vec![TimelinePoint { at_s: 1.0, iops: 10.0 }],
            caveats: caveats(),
        }
    }

    #[test]
    fn table_has_median_and_worst_of_each_death() {
        let [times, published] = &tables(&example())[..] else { panic!("two") };
        assert!(times.title.contains("EMULATED") && times.title.contains("5,000 ms"));
        assert_eq!(times.rows[0], ["killed (SIGKILL)", "3", "5,100", "5,300"]);
        assert_eq!(times.rows[1], ["stopped in order (SIGTERM)", "2", "80", "90"]);
        assert!(published.rows.iter().any(|row| row[1] == "under 60 s"));
    }

    #[test]
    fn picture_states_the_verdict_and_the_provenance() {
        let svg = drawing(&example()).picture.svg(Theme::Light);
        assert!(svg.contains("EMULATED") && svg.contains("nothing lost"));
    }
}
