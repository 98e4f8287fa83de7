//! Combined report: several experiments in one page, without comparing them, with a summary first.

use super::html::Writer;
use super::{AdditionalSections, HtmlReport, PagePosition, Run, Shown, page};
use crate::provenance::Provenance;

/// A summary and the reports of several runs.
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
        let mut out = Writer::default();
        page::begin(&mut out, title);
        out.raw("<header>\n");
        out.element("h1", title);
        page::notice(&mut out, &self.doubtful());
        let id = |at: usize| format!("part-{}", at + 1);
        let parts = self.parts.iter().enumerate().map(|(at, part)| (id(at), part.title.as_str()));
        page::navigation(&mut out, parts);
        out.raw("</header>\n<main>\n<section id=\"summary\">\n");
        out.element("h2", "Summary");
        if !plots.is_empty() {
            page::plots(&mut out, "", plots);
        }
        tables.iter().for_each(|named| out.table(&named.id, &named.table));
        if !caveats.is_empty() {
            out.element("h3", page::CAVEATS);
            page::list(&mut out, caveats);
        }
        out.raw("</section>\n");
        for (at, part) in self.parts.iter().enumerate() {
            out.raw(&format!("<section id=\"{}\">\n", id(at)));
            out.element("h2", &part.title);
            part.about(&mut out);
            part.body(&mut out);
            out.raw("</section>\n");
        }
        page::data_section(&mut out, self.parts.iter().flat_map(|part| &part.runs));
        out.raw("</main>\n");
        page::end(&mut out);
        out.finish()
    }

    /// Targets of all reports that are not known to be real, without duplicates.
    fn doubtful(&self) -> Vec<(Provenance, String)> {
        let mut all: Vec<(Provenance, String)> = Vec::new();
        for one in self.parts.iter().flat_map(HtmlReport::doubtful) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        all
    }
}
