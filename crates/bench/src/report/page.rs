//! HTML page of a report; the results precede the method.

use std::slice::SliceIndex;

use flagstone_units::{display::duration, format_time, grouped};
use maud::{Markup, html};

use super::html::{
    DATA_HEADING, DATA_ID, document, facts, headline, list, navigation, plots, table as html_table,
};
use super::{HtmlReport, Named, Run, repeat};
use crate::campaign::CampaignPlan;
use crate::caveats::{LISTED, caveats, listed};
use crate::compare::{ComparedMetric, DifferenceVerdict, SIGNIFICANT};
use crate::environment::{DiskRecord, Environment};
use crate::provenance::Provenance;
use crate::stats::{median, shown_deviations};
use crate::table::{Table, UNKNOWN};

pub(super) const CAVEATS: &str = "Caveats";
const SECTIONS: [(&str, &str); 8] = [
    ("experiment", "The experiment"),
    ("results", "Results"),
    ("plots", "Plots"),
    ("details", "Details"),
    ("method", "How it was measured"),
    ("environment", "Environment"),
    ("commands", "Commands to repeat it"),
    (DATA_ID, DATA_HEADING),
];

impl HtmlReport {
    pub fn html(&self) -> String {
        let sections = SECTIONS.into_iter().skip(usize::from(self.additional_sections.is_empty()));
        let header = html! {
            h1 { (self.title) }
            (self.about())
            (headline(&self.headline()))
            (notice(&self.not_real()))
            (navigation(sections.map(|(id, name)| (id.to_owned(), name))))
        };
        document(&self.title, &header, &self.body(), &self.runs)
    }

    pub(super) fn body(&self) -> Markup {
        html! {
            @if !self.additional_sections.is_empty() { (self.section(0, &self.experiment())) }
            (self.section(1, &self.results()))
            (self.section(2, &self.pictures()))
            @if self.tables.len() > 1 { (self.section(3, &self.tables(1..))) }
            (self.section(4, &self.method()))
            (self.section(5, &self.environment()))
            (self.section(6, &self.commands()))
        }
    }

    pub(super) fn about(&self) -> Markup {
        html! {
            p class="about" { (self.comparison.names().join(", ")) (self.when()) }
            @for machine in self.machines() { p class="about" { (machine) } }
        }
    }

    fn machines(&self) -> Vec<String> {
        let mut all: Vec<String> = Vec::new();
        for found in self.runs.iter().flat_map(|run| &run.environments) {
            let machine = found.machine_type.iter().chain(&found.machine).next().cloned();
            let cpus = format!("{} with {} CPUs", found.cpu_model, found.cpus);
            let models = found.disks.values().filter_map(|disk| disk.model.clone());
            let mut parts: Vec<String> = machine.into_iter().chain([cpus]).chain(models).collect();
            parts.push(found.kernel.clone());
            parts.dedup();
            let text = parts.join(", ");
            if !all.contains(&text) {
                all.push(text);
            }
        }
        all
    }

    /// Figures that the report opens with: the largest significant difference, the most IOPS, the
    /// highest throughput and the lowest latency.
    fn headline(&self) -> Vec<(String, String)> {
        let names = self.comparison.names();
        let rows = self.comparison.rows();
        let mut figures = Vec::new();
        let differences = rows.iter().flat_map(|row| {
            self.comparison.pairs_of(row).filter_map(move |(at, first)| {
                let [base, other] = [first, at].map(|at| row.values(at, ComparedMetric::Iops));
                let DifferenceVerdict::Differs { .. } = DifferenceVerdict::of(&other, &base) else {
                    return None;
                };
                let overhead =
                    ComparedMetric::Iops.overhead_percent(median(&other)?, median(&base)?)?;
                Some((row, (at, first), overhead))
            })
        });
        if let Some((row, (at, first), overhead)) =
            differences.max_by(|a, b| a.2.abs().total_cmp(&b.2.abs()))
        {
            let word = if overhead < 0.0 { "more" } else { "fewer" };
            figures.push((
                format!("{:.1} % {word} IOPS", overhead.abs()),
                format!(
                    "{} on {} than on {}: the largest difference",
                    row.job, names[at], names[first]
                ),
            ));
        } else if self.comparison.has_pairs() {
            let jobs = format!("in IOPS of {} jobs", rows.len());
            figures.push(("no difference shown".to_owned(), jobs));
        }
        for (metric, unit, what) in [
            (ComparedMetric::Iops, "IOPS", "most requests per second"),
            (ComparedMetric::Throughput, "MB/s", "highest throughput"),
            (ComparedMetric::Latency, "ms", "lowest mean latency"),
        ] {
            let medians = rows.iter().flat_map(|row| {
                (0..names.len()).filter_map(move |at| Some((row.median(at, metric)?, row, at)))
            });
            let by_value = |a: &(f64, _, _), b: &(f64, _, _)| a.0.total_cmp(&b.0);
            let best = match metric {
                ComparedMetric::Latency => medians.min_by(by_value),
                _ => medians.max_by(by_value),
            };
            let Some((value, row, at)) = best.filter(|(value, ..)| *value > 0.0) else { continue };
            let decimals = usize::from(metric == ComparedMetric::Latency) * 3;
            let figure = format!("{} {unit}", grouped(value, decimals));
            figures.push((figure, format!("{what}: {} on {}", row.job, names[at])));
        }
        figures
    }

    fn section(&self, at: usize, content: &Markup) -> Markup {
        let (id, name) = SECTIONS[at];
        html! {
            section id={ (self.place.prefix) (id) } { (self.heading(2, name)) (content) }
        }
    }

    fn heading(&self, depth: usize, text: &str) -> Markup {
        match depth + self.place.depth {
            2 => html! { h2 { (text) } },
            3 => html! { h3 { (text) } },
            _ => html! { h4 { (text) } },
        }
    }

    fn table(&self, id: &str, table: &Table) -> Markup {
        html_table(&format!("{}{id}", self.place.prefix), table)
    }

    fn experiment(&self) -> Markup {
        html! {
            @for shown in &self.additional_sections {
                @if self.additional_sections.len() > 1 { (self.heading(3, &shown.title)) }
                (plots(&self.place.prefix, &shown.plots))
                @for named in &shown.tables { (self.table(&named.id, &named.table)) }
                @if !shown.caveats.is_empty() {
                    (self.heading(3, CAVEATS))
                    (list(&shown.caveats))
                }
            }
        }
    }

    fn when(&self) -> String {
        let all = self.runs.iter().flat_map(|run| &run.records).map(|record| record.started_unix_s);
        let (first, last) = all
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), at| (low.min(at), high.max(at)));
        if first <= 0.0 || !first.is_finite() {
            return String::new();
        }
        let [first, last] = [first, last].map(|time| format_time(time, "%Y-%m-%d %H:%M"));
        if first == last { format!("; {first} UTC") } else { format!("; {first} to {last} UTC") }
    }

    fn results(&self) -> Markup {
        let findings = self.findings();
        html! {
            @if !findings.is_empty() { (list(&findings)) }
            (self.tables(..1))
        }
    }

    fn tables(&self, range: impl SliceIndex<[Named], Output = [Named]>) -> Markup {
        html! { @for named in &self.tables[range] { (self.table(&named.id, &named.table)) } }
    }

    /// Findings above the tables: significant differences, and caveats.
    fn findings(&self) -> Vec<String> {
        let (mut found, mut not_shown, mut few) = (Vec::new(), Vec::new(), Vec::new());
        let names = self.comparison.names();
        for row in self.comparison.rows() {
            for (at, base) in self.comparison.pairs_of(row) {
                let name = &names[at];
                let (first, values) =
                    (row.values(base, ComparedMetric::Iops), row.values(at, ComparedMetric::Iops));
                if first.is_empty() || values.is_empty() {
                    continue;
                }
                match DifferenceVerdict::of(&values, &first) {
                    DifferenceVerdict::Differs { .. } => {
                        found.push(self.difference(row, at, base));
                    }
                    DifferenceVerdict::NotShown { .. } => {
                        not_shown.push(format!("{} on {name}", row.job))
                    }
                    DifferenceVerdict::TooFew => few.push(format!("{} on {name}", row.job)),
                }
            }
        }
        let more = found.len().saturating_sub(LISTED);
        found.truncate(LISTED);
        if more > 0 {
            found.push(format!("{more} more differences: see the tables."));
        }
        if !not_shown.is_empty() {
            found.push(format!("No difference shown in IOPS: {}.", listed(not_shown)));
        }
        if !few.is_empty() {
            found.push(format!("Too few repetitions for a verdict: {}.", listed(few)));
        }
        found.extend(caveats(&self.comparison));
        found
    }

    fn difference(&self, row: &crate::compare::JobRow, at: usize, first: usize) -> String {
        let names = self.comparison.names();
        let change = |figure| {
            let (base, other) = (row.median(first, figure)?, row.median(at, figure)?);
            (base > 0.0).then(|| 100.0 * (other - base) / base)
        };
        let word = |change: Option<f64>, more: &str, less: &str| match change {
            Some(change) if change < 0.0 => format!("{:.1} % {less}", -change),
            Some(change) => format!("{change:.1} % {more}"),
            None => "an unknown change".to_owned(),
        };
        format!(
            "{} on {}: {} IOPS and {} mean latency than on {}.",
            row.job,
            names[at],
            word(change(ComparedMetric::Iops), "more", "fewer"),
            word(change(ComparedMetric::Latency), "longer", "shorter"),
            names[first]
        )
    }

    fn pictures(&self) -> Markup {
        html! {
            @if self.plots_left_out > 0 {
                p {
                    (self.plots_left_out) " plots exceed the limit of a report and are omitted; the \
                     data has their values."
                }
            }
            (plots(&self.place.prefix, &self.plots))
        }
    }

    fn method(&self) -> Markup {
        html! {
            @for run in &self.runs {
                @if self.runs.len() > 1 { (self.heading(3, &run.name)) }
                @match &run.plan {
                    Some(plan) => (facts(&method_of(plan))),
                    None => p { "Unknown: the input is a results file without a plan." },
                }
            }
            @if self.comparison.names().len() > 1 { p { (self.statistics()) } }
        }
    }

    fn statistics(&self) -> String {
        let rows = self.comparison.rows();
        let least = rows.iter().flat_map(|row| row.records.iter().map(Vec::len)).min().unwrap_or(0);
        let power = match shown_deviations(least) {
            Some(deviations) => format!(
                "With {least} repetitions, a difference of {deviations:.1} standard deviations of one \
                 side is shown with a power of 80 %; each \"no difference shown\" names that \
                 difference in % of the baseline."
            ),
            None => format!("{least} repetitions cannot show any difference; 4 of each side can."),
        };
        let count = rows.len() * (self.comparison.names().len() - 1);
        let by_chance = count as f64 * SIGNIFICANT;
        format!(
            "Medians with 95 % confidence intervals (bootstrap). \"Differs\" is the two-sided \
             Mann-Whitney test at {:.0} %: of {count} comparisons of identical targets, about \
             {by_chance:.1} differ by chance. {power}",
            SIGNIFICANT * 100.0
        )
    }

    fn environment(&self) -> Markup {
        html! {
            @for (at, run) in self.runs.iter().enumerate() {
                @if self.runs.len() > 1 { (self.heading(3, &run.name)) }
                @if run.environments.is_empty() {
                    p { "Unknown: the input is a results file without an environment." }
                }
                @for (number, found) in run.environments.iter().enumerate() {
                    (facts(&environment_of(found)))
                    @if !found.disks.is_empty() {
                        (self.table(&format!("disks-{at}-{number}"), &disks_of(found)))
                    }
                }
                (self.origins(run))
            }
        }
    }

    fn commands(&self) -> Markup {
        html! {
            @for plan in self.runs.iter().filter_map(|run| run.plan.as_ref()) {
                @let (command, note) = repeat::run_command(plan);
                p { "The whole run:" }
                pre { (command) }
                @if let Some(note) = note { p { (note) "." } }
            }
            @for (what, command) in repeat::commands(&self.runs) {
                (self.heading(3, &what))
                pre { (command) }
            }
        }
    }

    /// The user's statements on disks that cannot be inspected.
    fn origins(&self, run: &Run) -> Markup {
        html! {
            @for (disk, origin) in run.plan.iter().flat_map(|plan| &plan.origins) {
                @let real = "a real disk, as declared by the user";
                @let provenance = origin.provenance.warning().unwrap_or(real);
                (self.heading(3, &format!("Configuration of {disk}: {provenance}")))
                @if !origin.stack.is_empty() { pre { (origin.stack) } }
            }
        }
    }
}

/// Notice on targets that are not known to be real disks, with one sentence for each provenance.
pub(super) fn notice(targets: &[(Provenance, String)]) -> Markup {
    let mut provenances: Vec<Provenance> =
        targets.iter().map(|(provenance, _)| *provenance).collect();
    provenances.sort_unstable_by(|a, b| b.cmp(a));
    provenances.dedup();
    let head = match provenances.first() {
        Some(worst) if *worst >= Provenance::Memory => "Not only real disks.",
        _ => "Not known to be real disks.",
    };
    html! {
        @if !targets.is_empty() {
            div class="notice" role="note" {
                p { strong { (head) } }
                @for provenance in provenances { p { (sentence(provenance, targets)) } }
            }
        }
    }
}

fn sentence(provenance: Provenance, targets: &[(Provenance, String)]) -> String {
    let of = targets.iter().filter(|(one, _)| *one == provenance);
    let names: Vec<&str> = of.map(|(_, name)| name.as_str()).collect();
    let what = provenance.warning().unwrap_or_default();
    match &names[..] {
        [one] => format!("{one} is {what}."),
        // Names may contain commas.
        several => format!("{}; each is {what}.", several.join("; ")),
    }
}

fn method_of(plan: &CampaignPlan) -> Vec<(&'static str, String)> {
    let times = |pick: fn(&crate::job::BenchJob) -> u64| {
        let mut all: Vec<u64> = plan.jobs.iter().map(pick).collect();
        all.sort_unstable();
        all.dedup();
        let texts = all.iter().map(|ms| format!("{} s", grouped(*ms as f64 / 1e3, 1)));
        texts.collect::<Vec<_>>().join(", ")
    };
    let steps = plan.steps();
    let seconds: f64 = steps.iter().map(|step| plan.step_seconds(*step)).sum();
    let precondition = match plan.precondition {
        true if plan.destroys() => "unwritten areas were filled with incompressible data first",
        true => "new files were filled; a read-only suite does not fill devices",
        false => "none",
    };
    let order = "targets alternate within a repetition; each repetition starts with another target";
    let mut facts = vec![
        ("suite", format!("{}: {}", plan.suite, plan.title)),
        ("jobs", plan.jobs.len().to_string()),
        ("repetitions", format!("{} of each job on each target", plan.repetitions)),
        ("order", order.to_owned()),
        ("warm-up", times(|job| job.ramp_ms)),
        ("measured", format!("{}; {} in all", times(|job| job.runtime_ms), duration(seconds))),
        ("precondition", precondition.to_owned()),
    ];
    if plan.steady_state {
        let text = "rounds were added until the last five were steady; the results are those five";
        facts.push(("steady state", text.to_owned()));
    }
    facts
}

fn known(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or(UNKNOWN)
}

fn environment_of(found: &Environment) -> [(&'static str, String); 7] {
    let governor = found.cpu_governor.iter().map(|governor| format!(", governor {governor}"));
    let governor = governor.collect::<String>();
    let memory_gib = found.memory_bytes as f64 / (1u64 << 30) as f64;
    [
        ("kernel", found.kernel.clone()),
        ("CPU", format!("{}, {} usable{governor}", found.cpu_model, found.cpus)),
        ("memory", format!("{} GiB", grouped(memory_gib, 1))),
        ("machine", known(&found.machine).to_owned()),
        ("machine type", known(&found.machine_type).to_owned()),
        ("fio", format!("{}, engine {}", known(&found.fio), known(&found.engine))),
        ("flagstone", found.flagstone.clone()),
    ]
}

fn disks_of(found: &Environment) -> Table {
    let head = ["disk", "kind", "size", "device", "model", "mounted", "queue settings"];
    let mut table = Table::new("disks", &head);
    table.rows = found.disks.iter().map(|(name, disk)| disk_row(name, disk)).collect();
    table
}

fn disk_row(name: &str, disk: &DiskRecord) -> Vec<String> {
    let size = disk.size_bytes.map(|bytes| format!("{} GB", grouped(bytes as f64 / 1e9, 2)));
    let initiator = disk.initiator.as_ref();
    let driver = initiator.map_or(String::new(), |initiator| format!(", driven by {initiator}"));
    let queue = disk.queue.iter().map(|(key, value)| format!("{key} = {value}"));
    vec![
        name.to_owned(),
        format!("{}{driver}", disk.kind.name()),
        known(&size).to_owned(),
        known(&disk.device).to_owned(),
        known(&disk.model).to_owned(),
        known(&disk.mount).to_owned(),
        queue.collect::<Vec<_>>().join("; "),
    ]
}
