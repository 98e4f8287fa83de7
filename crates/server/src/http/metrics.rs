//! Metrics in the Prometheus text format 0.0.4, with the names and units of OpenMetrics.
//!
//! The samples of a family follow each other, so all volumes are asked before it is written. The
//! name of a counter ends with `_total`, of a size with `_bytes`, of a time with `_seconds`.

use std::fmt::Write as _;

/// Media type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Metrics in the Prometheus text format, in the making.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exposition {
    text: String,
    families: Vec<&'static str>,
}

/// A family whose samples are being written.
#[derive(Debug)]
pub struct Family<'a> {
    name: &'static str,
    text: &'a mut String,
}

/// Labels of a sample: names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

impl Exposition {
    /// Nothing yet.
    pub fn new() -> Exposition {
        Exposition::default()
    }

    /// Begins a family: a counter if its name ends with `_total`, else a gauge. `help` is one line.
    ///
    /// # Panics
    /// For a duplicate name, or one against the rules of the module: mistakes of the program.
    pub fn family(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.begin(name, if name.ends_with("_total") { "counter" } else { "gauge" }, help)
    }

    /// Begins a family of histograms.
    ///
    /// # Panics
    /// As [`Exposition::family`].
    pub fn histogram(&mut self, name: &'static str, help: &'static str) -> Family<'_> {
        self.begin(name, "histogram", help)
    }

    fn begin(&mut self, name: &'static str, kind: &str, help: &'static str) -> Family<'_> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(name.bytes().all(legal) && !name.starts_with(|c: char| c.is_ascii_digit()));
        assert!(!self.families.contains(&name), "{name} is a duplicate");
        assert!(!help.contains(['\n', '\\']), "{name}: the help is one plain line");
        self.families.push(name);
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family { name, text: &mut self.text }
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

    /// A histogram: for each bound, ascending, how many values were at most that; count and sum.
    pub fn histogram(
        &mut self,
        labels: Labels<'_>,
        bounds: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) -> &mut Self {
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
    fn metrics_text_has_counters_gauges_and_histograms() {
        let mut text = Exposition::new();
        text.family("a_reads_total", "Reads.")
            .count(&[("volume", "a \"b\"\\\n"), ("host", "h")], 7)
            .count(&[], u64::MAX);
        text.family("a_size_bytes", "Size.").value(&[], 0.5);
        let bounds = [(0.001, 1), (1.0, 3)];
        text.histogram("a_latency_seconds", "Latency.").histogram(
            &[("volume", "x")],
            bounds,
            4,
            2.25,
        );
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
    #[should_panic(expected = "is a duplicate")]
    fn duplicate_metric_families_are_a_mistake() {
        let mut text = Exposition::new();
        text.family("a_bytes", "A gauge.");
        text.family("a_bytes", "The same.");
    }
}
