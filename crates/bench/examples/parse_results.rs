//! Cost of reading, comparing and reporting many results, from one file of fio's json+.
//!
//! `cargo run --release -p flagstone-bench --example parse_results -- FIO.json 1000 report.html`

use std::path::Path;

use flagstone_bench::compare::{ComparedMetric, Comparison};
use flagstone_bench::fio::output;
use flagstone_bench::job::BenchJob;
use flagstone_bench::measurement::Measurement;
use flagstone_bench::os::{Stopwatch, read_text};
use flagstone_bench::report::{HtmlReport, Run};
use flagstone_bench::results::ResultRecord;
use flagstone_bench::table::Form;
use flagstone_bench::target::BenchTarget;

fn main() {
    let mut words = std::env::args().skip(1);
    let path = words.next().expect("a file of fio's json+");
    let count: usize = words.next().map_or(1000, |word| word.parse().expect("a number"));
    let page = words.next();
    let text = read_text(Path::new(&path), 64 << 20).expect("it can be read");
    let watch = Stopwatch::start();
    let mut records = Vec::new();
    for at in 0..count {
        let parsed = output::parse(&text).expect("it is fio's");
        let measured = Measurement::of_output(&parsed);
        let target: BenchTarget = ["a=/a", "b=/b"][at % 2].parse().expect("a target");
        let job = BenchJob { name: format!("job{}", at / 10), ..BenchJob::default() };
        records.push(ResultRecord::new("parse", &job, &target, measured));
    }
    let parsed_s = watch.seconds();
    if let Some(page) = &page {
        let run = Run {
            name: "parse".to_owned(),
            rounds: records.clone(),
            records: records.clone(),
            plan: None,
            environments: Vec::new(),
            additional_sections: None,
        };
        let html = HtmlReport::new(vec![run]).html();
        println!("{} bytes of report at {:.2} s", html.len(), watch.seconds());
        std::fs::write(page, html).expect("it can be written");
    }
    let comparison = Comparison::of_targets(records);
    let mut tables = comparison.summary().write(Form::Text).len();
    for figure in ComparedMetric::ALL {
        tables += comparison.figure(figure).write(Form::Text).len();
    }
    let status = read_text(Path::new("/proc/self/status"), 1 << 20).unwrap_or_default();
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM: unknown");
    println!(
        "{count} results of {} bytes: {parsed_s:.2} s to read, {:.2} s in all, {tables} bytes of tables, {peak}",
        text.len(),
        watch.seconds()
    );
}
