//! Options whose value is one word of several: tables of the words, and their parser.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use flagstone_bench::attach::InitiatorChoice;
use flagstone_bench::table::Form;
use flagstone_host::checks::TuningGoal;
use flagstone_lab::failover::Death;
use flagstone_load::AccessPattern;
use flagstone_load::job::Crash;
use flagstone_runtime::IoEngine;
use flagstone_server::api::mirror_document::ResolveKeep;

/// Words, their values and their help. A word without help is an alias, which help does not list.
pub(crate) type Words<T> = [(&'static str, T, &'static str)];

pub(crate) fn one_of<T>(words: &'static Words<T>) -> impl TypedValueParser<Value = T>
where
    T: Copy + Send + Sync + 'static,
{
    let known = |(word, _, help): &(&'static str, T, &'static str)| {
        PossibleValue::new(*word).help(*help).hide(help.is_empty())
    };
    PossibleValuesParser::new(words.iter().map(known))
        .map(|word| find(words, &word).expect("the parser knows only these words"))
}

pub(crate) fn find<T: Copy>(words: &Words<T>, word: &str) -> Option<T> {
    words.iter().find(|(known, ..)| *known == word).map(|(_, value, _)| *value)
}

/// Order and kind of requests, by fio's names.
pub(crate) const PATTERNS: &Words<AccessPattern> = &[
    ("read", AccessPattern::Read, "Sequential reads"),
    ("write", AccessPattern::Write, "Sequential writes"),
    ("randread", AccessPattern::RandRead, "Random reads"),
    ("randwrite", AccessPattern::RandWrite, "Random writes"),
    ("readwrite", AccessPattern::Rw, "Sequential reads and writes"),
    ("rw", AccessPattern::Rw, ""),
    ("randrw", AccessPattern::RandRw, "Random reads and writes"),
    ("trim", AccessPattern::Trim, "Sequential discards"),
    ("randtrim", AccessPattern::RandTrim, "Random discards"),
];

pub(crate) const IO_ENGINES: &Words<IoEngine> = &[
    ("auto", IoEngine::Auto, "io_uring, or threads where io_uring is not permitted"),
    ("io_uring", IoEngine::IoUring, "io_uring, or fail"),
    ("threads", IoEngine::Threads, "Blocking calls on threads"),
];

pub(crate) const CRASHES: &Words<Crash> = &[
    ("client", Crash::ClientOnly, "The generator: no acknowledged write may be lost"),
    ("server", Crash::Server, "The server or its power: unflushed writes may be lost"),
];

pub(crate) const TUNING_GOALS: &Words<TuningGoal> = &[
    ("iops", TuningGoal::Iops, "Small random I/O"),
    ("throughput", TuningGoal::Throughput, "Large sequential I/O"),
];

pub(crate) const INITIATORS: &Words<InitiatorChoice> = &[
    (
        "auto",
        InitiatorChoice::Auto,
        "The kernel and fio if possible, else the built-in generator; the choice and its reason are printed",
    ),
    (
        "kernel",
        InitiatorChoice::Kernel,
        "The kernel and fio; needs root, nvme-cli and the module nvme-tcp",
    ),
    ("flagstone", InitiatorChoice::Flagstone, "The built-in generator, flagstone load"),
];

pub(crate) const TABLE_FORMS: &Words<Form> = &[
    ("text", Form::Text, "Aligned columns"),
    ("markdown", Form::Markdown, "GitHub Markdown tables"),
    ("csv", Form::Csv, "Comma-separated values"),
];

pub(crate) const DEATHS: &Words<Death> = &[
    ("silent", Death::Silent, "The node stops answering and closes nothing"),
    ("kill", Death::Kill, "The node's connections close at once"),
];

pub(crate) const KEPT_SIDES: &Words<ResolveKeep> = &[
    ("mine", ResolveKeep::Mine, "Keep this node's data; the peer discards its own"),
    ("peer", ResolveKeep::Peer, "Keep the peer's data; this node discards its own"),
];

pub(crate) const YES_NO: &Words<bool> = &[("yes", true, "Yes"), ("no", false, "No")];

pub(crate) const ON_OFF: &Words<bool> = &[("on", true, "On"), ("off", false, "Off")];
