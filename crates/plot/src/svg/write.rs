//! SVG writer that escapes and rounds its input, so that the document is always well-formed.

use crate::figure::Hue;
use crate::svg::hue_class;
use crate::theme::{DASHES, HUES};

const TEXT_CHARACTERS_MAX: usize = 400;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

#[derive(Debug, Default)]
pub(crate) struct Writer(String);

impl Writer {
    pub(crate) fn finish(self) -> String {
        self.0
    }

    pub(crate) fn raw(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    pub(crate) fn element(&mut self, name: &str, text: &str) {
        self.raw(&format!("<{name}>"));
        self.escaped(text);
        self.raw(&format!("</{name}>"));
    }

    pub(crate) fn text(&mut self, x: f64, y: f64, size: f64, class: &str, at: Anchor, text: &str) {
        let anchor = match at {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        self.raw(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size:.0}\" class=\"{class}\" \
             text-anchor=\"{anchor}\">"
        ));
        self.escaped(text);
        self.raw("</text>");
    }

    pub(crate) fn upright(&mut self, x: f64, y: f64, size: f64, class: &str, text: &str) {
        self.raw(&format!(
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\" font-size=\"{size:.0}\" \
             class=\"{class}\" text-anchor=\"middle\">"
        ));
        self.escaped(text);
        self.raw("</text>");
    }

    pub(crate) fn straight(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.raw(&format!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    pub(crate) fn polyline(&mut self, hue: Hue, points: &[(f64, f64)]) {
        let class = format!("line l{}", hue_class(hue));
        self.dashed(&class, DASHES[(hue.0 + hue.0 / HUES) % DASHES.len()], points);
    }

    pub(crate) fn dashed(&mut self, class: &str, dash: &str, points: &[(f64, f64)]) {
        self.raw(&format!("<polyline class=\"{class}\""));
        if !dash.is_empty() {
            self.raw(&format!(" stroke-dasharray=\"{dash}\""));
        }
        self.raw(" points=\"");
        for (x, y) in points {
            self.raw(&format!("{x:.1},{y:.1} "));
        }
        self.raw("\"/>");
    }

    pub(crate) fn dot(&mut self, hue: Hue, x: f64, y: f64) {
        let class = hue_class(hue);
        self.raw(&format!("<circle class=\"f{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"));
    }

    /// A dot with a rim in the background color, so that it stands out from its line.
    pub(crate) fn ring(&mut self, hue: Hue, x: f64, y: f64) {
        let class = hue_class(hue);
        self.raw(&format!(
            "<circle class=\"ring f{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>"
        ));
    }

    pub(crate) fn bar(&mut self, hue: Hue, x: f64, y: f64, width: f64, height: f64) {
        let class = hue_class(hue);
        self.raw(&format!(
            "<rect class=\"f{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\"/>"
        ));
    }

    /// Escapes text and drops characters that XML does not allow.
    /// A translucent area; nothing without points.
    pub(crate) fn area(&mut self, hue: Hue, points: &[(f64, f64)]) {
        if points.is_empty() {
            return;
        }
        self.raw(&format!("<polygon class=\"band f{}\" points=\"", hue_class(hue)));
        points.iter().for_each(|(x, y)| self.raw(&format!("{x:.1},{y:.1} ")));
        self.raw("\"/>");
    }

    fn escaped(&mut self, text: &str) {
        for character in text.chars().take(TEXT_CHARACTERS_MAX) {
            match character {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\t' | '\n' | '\r' => self.0.push(' '),
                '\u{fffe}' | '\u{ffff}' => {}
                _ if character.is_control() => {}
                _ => self.0.push(character),
            }
        }
    }
}
