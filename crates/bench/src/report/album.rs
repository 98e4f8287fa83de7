//! Several reports in one page: experiments that are not compared with each other, with a summary
//! of their most important numbers above all.

use super::html::Writer;
use super::{Extras, Place, Report, Run, Shown, page};
use crate::nature::Nature;

/// See the module.
#[derive(Debug)]
pub struct Album {
    summary: Shown,
    parts: Vec<Report>,
}

impl Album {
    /// Of runs, each of which is a part of its own, in order.
    pub fn new(summary: &Extras, runs: Vec<Run>) -> Album {
        let part = |(at, run): (usize, Run)| {
            let place = Place { prefix: format!("part-{}-", at + 1), depth: 1 };
            Report { place, ..Report::new(vec![run]) }
        };
        Album {
            summary: Shown::new(summary, "summary-"),
            parts: runs.into_iter().enumerate().map(part).collect(),
        }
    }

    /// As one HTML document, which promises what a [`Report`]'s does.
    pub fn html(&self) -> String {
        let Shown { title, plots, tables, doubts } = &self.summary;
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
        if !doubts.is_empty() {
            out.element("h3", page::DOUBTS);
            page::list(&mut out, doubts);
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

    /// Those of all parts, each once.
    fn doubtful(&self) -> Vec<(Nature, String)> {
        let mut all: Vec<(Nature, String)> = Vec::new();
        for one in self.parts.iter().flat_map(Report::doubtful) {
            if !all.contains(&one) {
                all.push(one);
            }
        }
        all
    }
}
