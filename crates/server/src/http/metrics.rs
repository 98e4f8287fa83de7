//! Metrics as Prometheus reads them: text format 0.0.4, names and units as OpenMetrics asks for.
//!
//! A family is a name, a kind and a help text, and its samples follow each other: so what is asked
//! of one volume after the other is gathered first. A counter's name ends with `_total`, a size's
//! with `_bytes`, a time's with `_seconds`.

use std::fmt::Write as _;

/// Media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a family's samples are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until the process ends.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How often values were at most so large.
    Histogram,
}

/// A text of metrics that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposition {
    text: String,
    families: Vec<&'static str>,
}

/// A family whose samples are being written.
#[derive(Debug)]
pub struct Family<'a> {
    name: &'static str,
    kind: Kind,
    text: &'a mut String,
}

/// Labels of a sample: names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    /// Nothing yet.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Begins a family. `help` is one line.
    ///
    /// # Panics
    /// For a name that is there already, or against the rules of the module: mistakes of the
    /// program.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> Family<'_> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(name.bytes().all(legal) && !name.starts_with(|c: char| c.is_ascii_digit()));
        assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name} is a {kind:?}");
        assert!(!self.families.contains(&name), "{name} is there already");
        assert!(!help.contains(['\n', '\\']), "{name}: the help is one plain line");
        self.families.push(name);
        let kind_name = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind_name}\n");
        Family { name, kind, text: &mut self.text }
    }

    /// The names of the families, in their order.
    pub fn families(&self) -> &[&'static str] {
        &self.families
    }

    /// The whole text.
    pub fn finish(self) -> String {
        self.text
    }
}

impl Family<'_> {
    /// A sample that is a whole number.
    pub fn count(&mut self, labels: Labels<'_>, value: u64) -> &mut Self {
        self.line("", labels, None, &value)
    }

    /// A sample that is any number.
    pub fn value(&mut self, labels: Labels<'_>, value: f64) -> &mut Self {
        self.line("", labels, None, &value)
    }

    /// The samples of a histogram: for each bound, ascending, how many values were at most that;
    /// then how many there were, and their sum.
    pub fn histogram(
        &mut self,
        labels: Labels<'_>,
        bounds: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) -> &mut Self {
        assert_eq!(self.kind, Kind::Histogram, "{} is no histogram", self.name);
        for (bound, at_most) in bounds {
            self.line("_bucket", labels, Some(&bound.to_string()), &at_most);
        }
        self.line("_bucket", labels, Some("+Inf"), &count);
        self.line("_sum", labels, None, &sum);
        self.line("_count", labels, None, &count)
    }

    fn line(
        &mut self,
        suffix: &str,
        labels: Labels<'_>,
        bound: Option<&str>,
        value: &dyn std::fmt::Display,
    ) -> &mut Self {
        let _ = write!(self.text, "{}{suffix}", self.name);
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(bound.map(|bound| ("le", bound))) {
            let _ = write!(self.text, "{before}{name}=\"");
            escape(value, self.text);
            self.text.push('"');
            before = ',';
        }
        if before == ',' {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
        self
    }
}

/// Values of labels may be any text; three characters are escaped.
fn escape(value: &str, into: &mut String) {
    for character in value.chars() {
        match character {
            '\\' => into.push_str("\\\\"),
            '"' => into.push_str("\\\""),
            '\n' => into.push_str("\\n"),
            other => into.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_all_kinds() {
        let mut text = Exposition::new();
        text.family("a_reads_total", Kind::Counter, "Reads.")
            .count(&[("volume", "a \"b\"\\\n"), ("host", "h")], 7)
            .count(&[], u64::MAX);
        text.family("a_size_bytes", Kind::Gauge, "Size.").value(&[], 0.5);
        let bounds = [(0.001, 1), (1.0, 3)];
        text.family("a_latency_seconds", Kind::Histogram, "Latency.").histogram(
            &[("volume", "x")],
            bounds,
            4,
            2.25,
        );
        assert_eq!(text.families(), ["a_reads_total", "a_size_bytes", "a_latency_seconds"]);
        let expected = r#"# HELP a_reads_total Reads.
# TYPE a_reads_total counter
a_reads_total{volume="a \"b\"\\\n",host="h"} 7
a_reads_total 18446744073709551615
# HELP a_size_bytes Size.
# TYPE a_size_bytes gauge
a_size_bytes 0.5
# HELP a_latency_seconds Latency.
# TYPE a_latency_seconds histogram
a_latency_seconds_bucket{volume="x",le="0.001"} 1
a_latency_seconds_bucket{volume="x",le="1"} 3
a_latency_seconds_bucket{volume="x",le="+Inf"} 4
a_latency_seconds_sum{volume="x"} 2.25
a_latency_seconds_count{volume="x"} 4
"#;
        assert_eq!(text.finish(), expected);
    }

    #[test]
    #[should_panic(expected = "is a Gauge")]
    fn counters_end_with_total() {
        Exposition::new().family("a_total", Kind::Gauge, "A gauge.");
    }
}
