//! Combined report: several experiments in one page, without comparing them, with a summary first.

use maud::html;

use super::page::{CAVEATS, notice};
use super::{AdditionalSections, HtmlReport, PagePosition, Run, Shown, html};
use crate::provenance::Provenance;

/// Rows of the summary that open the page.
const HEADLINES: usize = 4;

#[derive(Debug)]
pub struct CombinedReport {
    summary: Shown,
    parts: Vec<HtmlReport>,
}

impl CombinedReport {
    /// A combined report with one section for each run, in order.
    pub fn new(summary: &AdditionalSections, runs: Vec<Run>) -> CombinedReport {
        let part = |(at, run): (usize, Run)| {
            let place = PagePosition { prefix: format!("part-{}-", at + 1), depth: 1 };
            HtmlReport { place, ..HtmlReport::new(vec![run]) }
        };
        CombinedReport {
            summary: Shown::new(summary, "summary-"),
            parts: runs.into_iter().enumerate().map(part).collect(),
        }
    }

    /// The HTML document, with the guarantees of [`HtmlReport::html`].
    pub fn html(&self) -> String {
        let Shown { title, plots, tables, caveats } = &self.summary;
        let parts: Vec<_> =
            (1..).zip(&self.parts).map(|(at, part)| (format!("part-{at}"), part)).collect();
        let header = html! {
            h1 { (title) }
            @for part in self.parts.iter().take(1) { (part.about()) }
            (html::headline(&self.headline()))
            (notice(&self.not_real()))
            (html::navigation(parts.iter().map(|(id, part)| (id.clone(), part.title.as_str()))))
        };
        let main = html! {
            section id="summary" {
                h2 { "Summary" }
                @if !plots.is_empty() { (html::plots("", plots)) }
                @for named in tables { (html::table(&named.id, &named.table)) }
                @if !caveats.is_empty() {
                    h3 { (CAVEATS) }
                    (html::list(caveats))
                }
            }
            @for (id, part) in &parts {
                section id=(id) {
                    h2 { (part.title) }
                    (part.about())
                    (part.body())
                }
            }
        };
        html::document(title, &header, &main, self.parts.iter().flat_map(|part| &part.runs))
    }

    /// The first rows of the summary: what, and how much.
    fn headline(&self) -> Vec<(String, String)> {
        let rows = self.summary.tables.iter().take(1).flat_map(|named| &named.table.rows);
        let figure = |row: &Vec<String>| Some((row.get(1)?.clone(), row.first()?.clone()));
        rows.take(HEADLINES).filter_map(figure).collect()
    }

    /// Targets of all reports that are not known to be real, without duplicates.
    fn not_real(&self) -> Vec<(Provenance, String)> {
        let mut all: Vec<(Provenance, String)> = Vec::new();
        for one in self.parts.iter().flat_map(HtmlReport::not_real) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        all
    }
}
