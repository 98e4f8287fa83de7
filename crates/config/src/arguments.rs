//! Command-line options that make or change a configuration.

use super::check::{RawBacking, RawConfig, RawVolume};
use super::diagnostic::{Located, Report, SourceLocation, shown};
use super::read::{io_engine, parse_state};
use super::reader::{count_in_range, size_from_text, time_from_text, word_from_text};
use super::schema;
use crate::api_spec::parse_metrics;
use crate::device_spec::DeviceSpec;
use crate::listen_spec::{ConfiguredListener, ListenSpecError};
use crate::names;

/// Options as text. They are checked together with the file, so that all mistakes are reported at
/// once.
#[derive(Debug, Clone, Default, PartialEq, Eq, clap::Args)]
pub struct Arguments {
    /// A volume, in addition to the file's (repeatable)
    #[arg(long = "volume", value_name = "NAME=DEVICE")]
    pub volumes: Vec<String>,
    /// An address to serve on, instead of the file's (repeatable)
    #[arg(long = "listen", value_name = "URL")]
    pub listen: Vec<String>,
    /// An address to serve on that anyone may use without a key, instead of the file's (repeatable)
    #[arg(long = "listen-insecure", value_name = "URL")]
    pub listen_insecure: Vec<String>,
    /// Executor threads
    #[arg(long, value_name = "N")]
    pub cores: Option<String>,
    /// Upper limit of pooled I/O buffers
    #[arg(long, value_name = "SIZE")]
    pub buffer_memory: Option<String>,
    /// I/O engine: auto, io_uring or threads
    #[arg(long, value_name = "ENGINE")]
    pub io_engine: Option<String>,
    /// Longest busy wait before an executor sleeps; 0 turns busy polling off
    #[arg(long, value_name = "DURATION")]
    pub busy_poll: Option<String>,
    /// Unix socket of the control API that flagstone status uses; none for no API
    #[arg(long, value_name = "PATH")]
    pub api: Option<String>,
    /// Directory of the server's own state: enables pools
    #[arg(long, value_name = "DIRECTORY")]
    pub state: Option<String>,
    /// TCP address of the Prometheus metrics; none for no metrics
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
}

impl Arguments {
    pub(crate) fn apply(&self, raw: &mut RawConfig, report: &Report) {
        let server = &mut raw.server;
        let given =
            [("--listen", &self.listen, false), ("--listen-insecure", &self.listen_insecure, true)];
        if given.iter().any(|(_, texts, _)| !texts.is_empty()) {
            let parsed = |(option, texts, insecure): (&'static str, &'_ Vec<String>, bool)| {
                let parse = move |text: &str| {
                    let spec = text.parse()?;
                    Ok::<_, ListenSpecError>(ConfiguredListener { spec, insecure })
                };
                let listener = |text: &String| convert(option, text, report, parse);
                texts.iter().filter_map(listener).collect::<Vec<_>>()
            };
            server.listen = Some(given.into_iter().flat_map(parsed).collect());
        }
        let kind = |name| &schema::SERVER.key(name).expect("a key of [server]").kind;
        let cores = |text: &str| count_in_range(text.parse().unwrap_or(-1), kind("cores"));
        if let Some(cores) = option("--cores", &self.cores, report, cores) {
            server.cores = Some(cores.value as u32);
        }
        let memory = |text: &str| size_from_text(text, kind("buffer_memory"));
        if let Some(memory) = option("--buffer-memory", &self.buffer_memory, report, memory) {
            server.buffer_memory = memory;
        }
        let word = |text: &str| word_from_text(text, kind("io_engine"));
        if let Some(word) = option("--io-engine", &self.io_engine, report, word) {
            server.io_engine = io_engine(&word.value);
        }
        let time = |text: &str| time_from_text(text, kind("busy_poll"));
        if let Some(time) = option("--busy-poll", &self.busy_poll, report, time) {
            server.busy_poll = time.value;
        }
        server.api = option("--api", &self.api, report, str::parse).or(server.api.take());
        let state = option("--state", &self.state, report, parse_state);
        server.state = state.or(server.state.take());
        let metrics = option("--metrics", &self.metrics, report, parse_metrics);
        server.metrics = metrics.or(server.metrics.take());
        raw.volumes_mistaken |= !self.volumes.is_empty();
        raw.volumes.extend(self.volumes.iter().filter_map(|text| read_volume(text, report)));
    }
}

fn place(option: &str, text: &str) -> SourceLocation {
    SourceLocation::Argument(format!("{option} {text}"))
}

fn option<T, E: std::fmt::Display>(
    name: &str,
    text: &Option<String>,
    report: &Report,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Option<Located<T>> {
    convert(name, text.as_deref()?, report, parse)
}

fn convert<T, E: std::fmt::Display>(
    option: &str,
    text: &str,
    report: &Report,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Option<Located<T>> {
    let place = place(option, text);
    match parse(text) {
        Ok(value) => Some(Located { value, place }),
        Err(error) => {
            report.error(&place, format!("bad value for {option}: {}", shown(text)), error);
            None
        }
    }
}

fn read_volume(text: &str, report: &Report) -> Option<RawVolume> {
    let place = place("--volume", text);
    let Some((name, device)) = text.split_once('=') else {
        let help = "write NAME=DEVICE, such as db=/dev/nvme0n1 or scratch=memory:1GiB";
        report.error(&place, format!("no `=` in {}", shown(text)), help);
        return None;
    };
    if let Err(error) = names::check_volume_name(name) {
        report.error(&place, format!("bad volume name: {}", shown(name)), error);
    }
    let device = match device.parse::<DeviceSpec>() {
        Ok(value) => Some(Located { value, place: place.clone() }),
        Err(error) => {
            report.error(&place, format!("bad device: {}", shown(device)), error);
            None
        }
    };
    Some(RawVolume {
        name: Located { value: name.to_owned(), place },
        layers: Vec::new(),
        backing: device.map(|device| RawBacking { chunk: None, devices: vec![device] }),
        block_size: None,
        read_only: false,
        nqn: None,
        uuid: None,
        serial: None,
        allow_hosts: None,
        nbd_export: None,
        nbd_clients: None,
    })
}
