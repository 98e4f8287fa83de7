//! HTML page of a report; the results precede the method.

use std::collections::BTreeMap;

use flagstone_plot::Theme;

use super::html::{Writer, json_in_script};
use super::{HtmlReport, Plot, Run, data, repeat};
use crate::campaign::CampaignPlan;
use crate::caveats::{LISTED, caveats, listed};
use crate::compare::{ComparedMetric, DifferenceVerdict, SIGNIFICANT};
use crate::environment::{DiskRecord, Environment};
use crate::provenance::Provenance;
use crate::stats::shown_deviations;
use crate::table::Table;
use crate::units::{format_number, format_seconds, format_utc};

/// Style sheet, embedded in the page.
const STYLE: &str = include_str!("style.css");
/// Heading of an experiment's caveats.
pub(super) const CAVEATS: &str = "Caveats";
/// Sections: ids and headings.
const SECTIONS: [(&str, &str); 7] = [
    ("experiment", "The experiment"),
    ("results", "Results"),
    ("plots", "Plots"),
    ("method", "How it was measured"),
    ("environment", "Environment"),
    ("commands", "Commands to repeat it"),
    ("raw", "Data"),
];

impl HtmlReport {
    /// The report as one HTML document.
    pub fn html(&self) -> String {
        let mut out = Writer::default();
        begin(&mut out, &self.title);
        out.raw("<header>\n");
        out.element("h1", &self.title);
        self.about(&mut out);
        notice(&mut out, &self.doubtful());
        let sections = SECTIONS.into_iter().skip(usize::from(self.additional_sections.is_empty()));
        navigation(&mut out, sections.map(|(id, name)| (id.to_owned(), name)));
        out.raw("</header>\n<main>\n");
        self.body(&mut out);
        data_section(&mut out, &self.runs);
        out.raw("</main>\n");
        end(&mut out);
        out.finish()
    }

    /// All sections except the data.
    pub(super) fn body(&self, out: &mut Writer) {
        self.experiment(out);
        self.results(out);
        self.pictures(out);
        self.method(out);
        self.environment(out);
        self.commands(out);
    }

    /// Names of the targets and time of the measurement.
    pub(super) fn about(&self, out: &mut Writer) {
        let names = self.comparison.names().join(", ");
        out.element("p class=\"about\"", &format!("{names}{}", self.when()));
    }

    fn section(&self, out: &mut Writer, at: usize) {
        let (id, name) = SECTIONS[at];
        out.raw(&format!("<section id=\"{}{id}\">\n", self.place.prefix));
        self.heading(out, 2, name);
        out.raw("\n");
    }

    fn heading(&self, out: &mut Writer, depth: usize, text: &str) {
        out.element(&format!("h{}", depth + self.place.depth), text);
    }

    fn table(&self, out: &mut Writer, id: &str, table: &Table) {
        out.table(&format!("{}{id}", self.place.prefix), table);
    }

    /// Sections of the experiments, before the measurements.
    fn experiment(&self, out: &mut Writer) {
        if self.additional_sections.is_empty() {
            return;
        }
        self.section(out, 0);
        for shown in &self.additional_sections {
            if self.additional_sections.len() > 1 {
                self.heading(out, 3, &shown.title);
            }
            plots(out, &self.place.prefix, &shown.plots);
            shown.tables.iter().for_each(|named| self.table(out, &named.id, &named.table));
            if !shown.caveats.is_empty() {
                self.heading(out, 3, CAVEATS);
                list(out, &shown.caveats);
            }
        }
        out.raw("</section>\n");
    }

    /// Time of the measurement.
    fn when(&self) -> String {
        let all = self.runs.iter().flat_map(|run| &run.records).map(|record| record.started_unix_s);
        let (first, last) = all
            .fold((f64::INFINITY, 0.0), |(low, high): (f64, f64), at| (low.min(at), high.max(at)));
        if first <= 0.0 || !first.is_finite() {
            return String::new();
        }
        let (first, last) = (date(first), date(last));
        if first == last { format!("; {first} UTC") } else { format!("; {first} to {last} UTC") }
    }

    fn results(&self, out: &mut Writer) {
        self.section(out, 1);
        let findings = self.findings();
        if !findings.is_empty() {
            list(out, &findings);
        }
        self.tables.iter().for_each(|named| self.table(out, &named.id, &named.table));
        out.raw("</section>\n");
    }

    /// Findings above the tables: significant differences, and caveats.
    fn findings(&self) -> Vec<String> {
        let (mut found, mut not_shown, mut few) = (Vec::new(), Vec::new(), Vec::new());
        let names = self.comparison.names();
        for row in self.comparison.rows() {
            for (at, name) in names.iter().enumerate().skip(1) {
                let (first, values) =
                    (row.values(0, ComparedMetric::Iops), row.values(at, ComparedMetric::Iops));
                if first.is_empty() || values.is_empty() {
                    continue;
                }
                match DifferenceVerdict::of(&values, &first) {
                    DifferenceVerdict::Differs(_) => found.push(self.difference(row, at, name)),
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
            found.push(format!("Too few repetitions to tell: {}.", listed(few)));
        }
        found.extend(caveats(&self.comparison));
        found
    }

    fn difference(&self, row: &crate::compare::JobRow, at: usize, name: &str) -> String {
        let change = |figure| {
            let (base, other) = (row.median(0, figure)?, row.median(at, figure)?);
            (base > 0.0).then(|| 100.0 * (other - base) / base)
        };
        let word = |change: Option<f64>, more: &str, less: &str| match change {
            Some(change) if change < 0.0 => format!("{:.1} % {less}", -change),
            Some(change) => format!("{change:.1} % {more}"),
            None => "an unknown change".to_owned(),
        };
        format!(
            "{} on {name}: {} IOPS and {} mean latency than on {}.",
            row.job,
            word(change(ComparedMetric::Iops), "more", "fewer"),
            word(change(ComparedMetric::Latency), "longer", "shorter"),
            self.comparison.names()[0]
        )
    }

    fn pictures(&self, out: &mut Writer) {
        self.section(out, 2);
        if self.plots_left_out > 0 {
            let text = format!(
                "{} plots were left out, as there are too many; the data has what they would show.",
                self.plots_left_out
            );
            out.element("p", &text);
        }
        plots(out, &self.place.prefix, &self.plots);
        out.raw("</section>\n");
    }

    fn method(&self, out: &mut Writer) {
        self.section(out, 3);
        for run in &self.runs {
            if self.runs.len() > 1 {
                self.heading(out, 3, &run.name);
            }
            match &run.plan {
                Some(plan) => method_of(out, plan),
                None => out.element("p", "It is a file of results, which does not tell."),
            }
        }
        if self.comparison.names().len() > 1 {
            self.statistics(out);
        }
        out.raw("</section>\n");
    }

    /// Explanation of the significance tests.
    fn statistics(&self, out: &mut Writer) {
        let rows = self.comparison.rows();
        let least = rows.iter().flat_map(|row| row.records.iter().map(Vec::len)).min().unwrap_or(0);
        let power = match shown_deviations(least) {
            Some(deviations) => format!(
                "With {least} repetitions a difference of {deviations:.1} standard deviations of one \
                 side is shown 4 times of 5; what that is in % of the first stands beside each \
                 \"no difference shown\"."
            ),
            None => format!("{least} repetitions can show no difference at all; 4 of each can."),
        };
        let count = rows.len() * (self.comparison.names().len() - 1);
        let accidents = count as f64 * SIGNIFICANT;
        let text = format!(
            "Medians, with 95 % confidence by the bootstrap. \"Differs\" is Mann and Whitney's rank \
             test, two-sided, at {:.0} %: of {count} comparisons of things that are the same, some \
             {accidents:.1} differ by accident. {power}",
            SIGNIFICANT * 100.0
        );
        out.element("p", &text);
    }

    fn environment(&self, out: &mut Writer) {
        self.section(out, 4);
        for (at, run) in self.runs.iter().enumerate() {
            if self.runs.len() > 1 {
                self.heading(out, 3, &run.name);
            }
            if run.environments.is_empty() {
                out.element("p", "It is not known: a file of results does not tell.");
            }
            for (number, found) in run.environments.iter().enumerate() {
                environment_of(out, found);
                let disks = disks_of(found);
                if !disks.rows.is_empty() {
                    self.table(out, &format!("disks-{at}-{number}"), &disks);
                }
            }
            self.origins(out, run);
        }
        out.raw("</section>\n");
    }

    fn commands(&self, out: &mut Writer) {
        self.section(out, 5);
        for plan in self.runs.iter().filter_map(|run| run.plan.as_ref()) {
            let (command, note) = repeat::run_command(plan);
            out.element("p", "All of it:");
            out.element("pre", &command);
            if let Some(note) = note {
                out.element("p", &format!("{note}."));
            }
        }
        for (what, command) in repeat::commands(&self.runs) {
            self.heading(out, 3, &what);
            out.element("pre", &command);
        }
        out.raw("</section>\n");
    }

    /// The user's statements on disks that cannot be inspected.
    fn origins(&self, out: &mut Writer, run: &Run) {
        let origins = run.plan.as_ref().map(|plan| &plan.origins);
        for (disk, origin) in origins.unwrap_or(&BTreeMap::new()) {
            let provenance = origin.provenance.warning().unwrap_or("a real disk, as the user said");
            self.heading(out, 3, &format!("What {disk} is made of: {provenance}"));
            if !origin.stack.is_empty() {
                out.element("pre", &origin.stack);
            }
        }
    }
}

/// Start of a page, up to the body.
pub(super) fn begin(out: &mut Writer, title: &str) {
    out.raw("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n");
    out.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    out.raw("<meta name=\"color-scheme\" content=\"light dark\">\n");
    out.element("title", &format!("{title} - flagstone bench"));
    out.raw(&format!("\n<style>\n{STYLE}</style>\n</head>\n<body>\n"));
}

/// End of a page.
pub(super) fn end(out: &mut Writer) {
    out.raw("<footer>");
    out.element("p", &format!("Made by flagstone bench {}.", env!("CARGO_PKG_VERSION")));
    out.raw("</footer>\n</body>\n</html>\n");
}

/// Notice on targets that are not known to be real disks, with one sentence for each provenance.
pub(super) fn notice(out: &mut Writer, doubtful: &[(Provenance, String)]) {
    if doubtful.is_empty() {
        return;
    }
    out.raw("<div class=\"notice\" role=\"note\">");
    let false_disk = doubtful.iter().any(|(provenance, _)| *provenance >= Provenance::Memory);
    let head = if false_disk { "Not only real disks." } else { "Not known to be real disks." };
    out.raw("<p>");
    out.element("strong", head);
    out.raw("</p>");
    let mut natures: Vec<Provenance> = doubtful.iter().map(|(provenance, _)| *provenance).collect();
    natures.sort_unstable_by(|a, b| b.cmp(a));
    natures.dedup();
    for provenance in natures {
        out.element("p", &sentence(provenance, doubtful));
    }
    out.raw("</div>\n");
}

/// Sentence for all targets of one provenance.
fn sentence(provenance: Provenance, doubtful: &[(Provenance, String)]) -> String {
    let of = doubtful.iter().filter(|(one, _)| *one == provenance);
    let names: Vec<&str> = of.map(|(_, name)| name.as_str()).collect();
    let what = provenance.warning().unwrap_or_default();
    match &names[..] {
        [one] => format!("{one} is {what}."),
        // Names may contain commas.
        several => format!("{}; each is {what}.", several.join("; ")),
    }
}

/// Links to the sections of the page: ids and headings.
pub(super) fn navigation<'a>(out: &mut Writer, sections: impl Iterator<Item = (String, &'a str)>) {
    out.raw("<nav aria-label=\"Sections\"><ul>");
    for (id, name) in sections {
        out.raw("<li>");
        out.element(&format!("a href=\"#{id}\""), name);
        out.raw("</li>");
    }
    out.raw("</ul></nav>\n");
}

pub(super) fn list(out: &mut Writer, texts: &[String]) {
    out.raw("<ul>");
    texts.iter().for_each(|text| out.element("li", text));
    out.raw("</ul>\n");
}

pub(super) fn plots(out: &mut Writer, prefix: &str, plots: &[Plot]) {
    out.raw("<div class=\"plots\">\n");
    for plot in plots {
        out.raw(&format!("<figure id=\"{prefix}plot-{}\">", super::slug(&plot.id)));
        out.raw(plot.picture.svg(Theme::Auto).trim_end());
        out.raw("</figure>\n");
    }
    out.raw("</div>\n");
}

/// Data section of a page.
pub(super) fn data_section<'a>(out: &mut Writer, runs: impl IntoIterator<Item = &'a Run>) {
    let (id, name) = SECTIONS[6];
    out.raw(&format!("<section id=\"{id}\">\n"));
    out.element("h2", name);
    out.element(
        "p",
        "This page holds the plans, the environments and every measurement as JSON, in its last \
             element. In Python:",
    );
    out.element(
            "pre",
            "import json, re\n\
             page = open(\"report.html\", encoding=\"utf-8\").read()\n\
             data = json.loads(re.search(r'<script type=\"application/json\" id=\"data\">(.*?)</script>', page, re.S)[1])",
        );
    out.raw("<script type=\"application/json\" id=\"data\">");
    out.raw(&json_in_script(&data::json(runs)));
    out.raw("</script>\n</section>\n");
}

fn date(unix_seconds: f64) -> String {
    let utc = format_utc(unix_seconds);
    let part = |from: usize, to: usize| utc.get(from..to).unwrap_or("00").to_owned();
    format!("{}-{}-{} {}:{}", part(0, 4), part(4, 6), part(6, 8), part(9, 11), part(11, 13))
}

fn method_of(out: &mut Writer, plan: &CampaignPlan) {
    let times = |pick: fn(&crate::job::BenchJob) -> u64| {
        let mut all: Vec<u64> = plan.jobs.iter().map(pick).collect();
        all.sort_unstable();
        all.dedup();
        let texts = all.iter().map(|ms| format!("{} s", format_number(*ms as f64 / 1e3, 1)));
        texts.collect::<Vec<_>>().join(", ")
    };
    let steps = plan.steps();
    let seconds: f64 = steps.iter().map(|step| plan.step_seconds(*step)).sum();
    let mut facts: Vec<(&str, String)> = vec![
        ("suite", format!("{}: {}", plan.suite, plan.title)),
        ("jobs", plan.jobs.len().to_string()),
        ("repetitions", format!("{} of each job on each target", plan.repetitions)),
        ("order", "targets take turns within each repetition, and another begins each time".into()),
        ("warm-up", times(|job| job.ramp_ms)),
        (
            "measured",
            format!("{}; {} in all", times(|job| job.runtime_ms), format_seconds(seconds)),
        ),
    ];
    let filled = "what was never written was filled first with data that no disk can compress";
    facts.push((
        "precondition",
        match plan.precondition {
            true if plan.writes() => filled.to_owned(),
            true => "files that were made were filled; a suite that only reads fills no device"
                .to_owned(),
            false => "none: it was left out".to_owned(),
        },
    ));
    if plan.steady_state {
        let text = "rounds were added until the last five were steady; those are the results";
        facts.push(("steady state", text.to_owned()));
    }
    facts_list(out, &facts);
}

fn facts_list(out: &mut Writer, facts: &[(&str, String)]) {
    out.raw("<dl class=\"facts\">");
    for (name, value) in facts {
        out.element("dt", name);
        out.element("dd", value);
    }
    out.raw("</dl>\n");
}

fn environment_of(out: &mut Writer, found: &Environment) {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    facts_list(
        out,
        &[
            ("kernel", found.kernel.clone()),
            (
                "CPU",
                format!(
                    "{}, {} usable, governor {}",
                    found.cpu_model,
                    found.cpus,
                    known(&found.cpu_governor)
                ),
            ),
            (
                "memory",
                format!(
                    "{} GiB",
                    format_number(found.memory_bytes as f64 / (1u64 << 30) as f64, 1)
                ),
            ),
            ("machine", known(&found.machine)),
            ("machine type", known(&found.machine_type)),
            ("fio", format!("{}, engine {}", known(&found.fio), known(&found.engine))),
            ("flagstone", found.flagstone.clone()),
        ],
    );
}

fn disks_of(found: &Environment) -> Table {
    let head = ["disk", "kind", "size", "device", "model", "mounted", "queue settings"];
    let mut table = Table::new("disks", &head);
    table.rows = found.disks.iter().map(|(name, disk)| disk_row(name, disk)).collect();
    table
}

fn disk_row(name: &str, disk: &DiskRecord) -> Vec<String> {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let size = disk.size_bytes.map(|bytes| bytes as f64 / 1e9);
    let size = size.map_or_else(|| "-".to_owned(), |gb| format!("{} GB", format_number(gb, 2)));
    let queue: Vec<String> =
        disk.queue.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    vec![
        name.to_owned(),
        disk.initiator.as_ref().map_or_else(
            || disk.kind.clone(),
            |initiator| format!("{}, driven by {initiator}", disk.kind),
        ),
        size,
        known(&disk.device),
        known(&disk.model),
        known(&disk.mount),
        queue.join("; "),
    ]
}
