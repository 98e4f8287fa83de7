//! Support archive: what a bug report needs, in one compressed tar file without secrets or data.
//!
//! Invariants: the archive is a new file that only its owner may read. Its texts pass
//! [`redact`], and of the configuration only parsed keys are included. What cannot be collected is
//! listed with the reason, and does not stop the rest.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use flagstone_config::redact;
use flagstone_host::doctor::DoctorReport;
use flagstone_host::root::Root;
use flagstone_runtime::time;
use flagstone_units::{exact_size, format_utc};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use crate::args::VERSION;
use crate::exit::{Exit, Failure};
use crate::output::json;
use crate::status::run_client;
use crate::status::server::ApiClient;

/// Places of the configuration, if none is given: of the package's unit, and of the guides.
const CONFIGURATIONS: [&str; 2] = ["/etc/flagstone/conf.d", "/etc/flagstone.toml"];

/// Command whose output is the recent log: at most 4 MiB.
const LOG: [&str; 7] = [
    "journalctl",
    "--unit=flagstone",
    "--lines=5000",
    "--no-pager",
    "--output=short-iso",
    "--utc",
    "--quiet",
];

/// Block of a tar archive, in bytes (POSIX.1-1988 "ustar").
const BLOCK_BYTES: usize = 512;

/// Options of the archive.
#[derive(Debug)]
pub(crate) struct SupportOptions<'a> {
    pub(crate) archive: Option<&'a PathBuf>,
    pub(crate) config: Option<&'a PathBuf>,
    pub(crate) api: Option<&'a PathBuf>,
}

/// The archive and its content, for the user.
#[derive(Debug, Serialize)]
struct SupportDocument {
    archive: String,
    bytes: u64,
    files: Vec<FileEntry>,
    missing: Vec<MissingEntry>,
}

#[derive(Debug, Serialize)]
struct FileEntry {
    name: String,
    what: &'static str,
    bytes: usize,
}

#[derive(Debug, Serialize)]
struct MissingEntry {
    name: String,
    why: String,
}

#[derive(Debug, Default)]
struct Collection {
    files: Vec<(String, &'static str, String)>,
    missing: Vec<MissingEntry>,
}

impl Collection {
    fn add<E: ToString>(&mut self, name: &str, what: &'static str, text: Result<String, E>) {
        match text {
            Ok(text) => self.files.push((name.to_owned(), what, redact::text(&text))),
            Err(error) => {
                self.missing.push(MissingEntry { name: name.to_owned(), why: error.to_string() });
            }
        }
    }
}

/// Writes the archive, and returns the text or JSON that lists its content. A failure if a source
/// that the options name is missing.
pub(crate) fn write(
    root: &Root,
    report: &DoctorReport,
    options: &SupportOptions<'_>,
    as_json: bool,
) -> Result<(String, Exit), Failure> {
    let mut now = 0.0;
    let mut all = Collection::default();
    run_client(async || {
        now = time::wall_clock().as_secs_f64();
        collect_server(&mut all, options.api);
        Ok(Exit::Success)
    })?;
    all.add(
        "host.json",
        "host settings, as flagstone doctor --json reports them",
        Ok::<_, String>(json(report)),
    );
    collect_configuration(&mut all, root, options.config);
    let log = root.command(&LOG).map_err(|error| error.to_string());
    let log = match log {
        Ok(text) if text.trim().is_empty() => {
            Err("no line of the service is visible to this user: run it as root".to_owned())
        }
        other => other,
    };
    all.add("log.txt", "recent log of the service flagstone", log);
    let name = format!("flagstone-support-{}", format_utc(now));
    let versions = format!(
        "flagstone {VERSION}\nkernel {}\narchitecture {}\n{}\n",
        report.host.kernel.as_deref().unwrap_or("unknown"),
        std::env::consts::ARCH,
        root.read("/etc/os-release").unwrap_or_default(),
    );
    all.add(
        "versions.txt",
        "versions of the program, the kernel and the system",
        Ok::<_, String>(versions),
    );
    let contents = contents(&all);
    all.files.insert(0, ("contents.txt".to_owned(), "this list", contents));
    let archive = options.archive.cloned().unwrap_or_else(|| format!("{name}.tar.gz").into());
    let bytes = pack(&archive, &name, now as u64, &all.files).map_err(|error| {
        let message = format!("{}: {error}", archive.display());
        match error.kind() {
            io::ErrorKind::AlreadyExists => Failure::usage(message + ": give another --archive"),
            _ => Failure::failed(message),
        }
    })?;
    let archive = archive.display().to_string();
    let listed =
        all.files.into_iter().map(|(name, what, text)| FileEntry { name, what, bytes: text.len() });
    let document =
        SupportDocument { archive, bytes, files: listed.collect(), missing: all.missing };
    let named = [(options.config.is_some(), "config"), (options.api.is_some(), "server/")];
    let is_named = |entry: &MissingEntry| {
        named.iter().any(|(is_given, prefix)| *is_given && entry.name.starts_with(prefix))
    };
    let exit = match document.missing.iter().any(is_named) {
        true => Exit::Failed,
        false => Exit::Success,
    };
    Ok((if as_json { json(&document) } else { shown(&document) }, exit))
}

/// Documents and metrics of the running server.
fn collect_server(all: &mut Collection, socket: Option<&PathBuf>) {
    let mut client = match ApiClient::find(socket) {
        Ok(client) => client,
        Err(failure) => return all.add("server/", "", Err(failure.1)),
    };
    for (name, path, what) in [
        ("server/server.json", "/v1/", "the running server"),
        ("server/volumes.json", "/v1/volumes", "volumes, mirrors, hosts and traffic"),
        ("server/metrics.txt", "/metrics", "metrics"),
    ] {
        all.add(name, what, client.get_text(path).map_err(|failure| failure.1));
    }
}

fn collect_configuration(all: &mut Collection, root: &Root, config: Option<&PathBuf>) {
    let found: Vec<PathBuf> = match config {
        Some(path) => vec![path.clone()],
        None => {
            let there = CONFIGURATIONS.iter().filter(|path| root.exists(path));
            there.map(|path| root.locate(path)).collect()
        }
    };
    let what = "configuration without secrets and comments";
    if found.is_empty() {
        let why = format!("none of {} is here: give --config FILE", CONFIGURATIONS.join(", "));
        all.add("config.toml", what, Err(why));
    }
    for (number, path) in found.iter().enumerate() {
        let name = if number == 0 { "config.toml" } else { "config-2.toml" };
        let text = redact::configuration(path);
        let text = text.map_err(|why| format!("{}: {why}", path.display()));
        all.add(name, what, text);
    }
}

fn contents(all: &Collection) -> String {
    let mut text =
        "For a bug report about Flagstone. No secrets and no data of volumes are inside; names, \
                    addresses\nand paths are. Read it before you send it.\n\n"
            .to_owned();
    for (name, what, _) in &all.files {
        text += &format!("{name}: {what}\n");
    }
    for MissingEntry { name, why } in &all.missing {
        text += &format!("{name}: not included: {why}\n");
    }
    text
}

fn shown(document: &SupportDocument) -> String {
    let mut text = format!("{}: {}\n", document.archive, exact_size(document.bytes));
    let width = document.files.iter().map(|file| file.name.len()).max().unwrap_or(0);
    for FileEntry { name, what, bytes } in &document.files {
        text += &format!("  {name:<width$}  {:>9}  {what}\n", exact_size(*bytes as u64));
    }
    for MissingEntry { name, why } in &document.missing {
        text += &format!(
            "  {name:<width$}  not included: {}\n",
            why.lines().next().unwrap_or_default()
        );
    }
    text + "Nothing is sent. Names, addresses and paths are inside: read it before you share it.\n"
}

/// Writes a new archive, and returns its size in bytes.
fn pack(
    path: &Path,
    folder: &str,
    time_seconds: u64,
    files: &[(String, &'static str, String)],
) -> io::Result<u64> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let mut out = GzEncoder::new(file, Compression::default());
    for (name, _, text) in files {
        let header = tar_header(&format!("{folder}/{name}"), text.len() as u64, time_seconds)?;
        out.write_all(&header)?;
        out.write_all(text.as_bytes())?;
        out.write_all(&[0; BLOCK_BYTES][..text.len().next_multiple_of(BLOCK_BYTES) - text.len()])?;
    }
    out.write_all(&[0; 2 * BLOCK_BYTES])?;
    let file = out.finish()?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}

/// Header of a regular file in a tar archive of the format ustar.
fn tar_header(name: &str, bytes: u64, time_seconds: u64) -> io::Result<[u8; BLOCK_BYTES]> {
    const CHECKSUM: std::ops::Range<usize> = 148..156;
    let mut header = [0; BLOCK_BYTES];
    if name.len() > 100 {
        return Err(io::Error::other(format!("{name}: the name is too long for an archive")));
    }
    header[..name.len()].copy_from_slice(name.as_bytes());
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", bytes.min(0o77_777_777_777)));
    put(136, &format!("{:011o}\0", time_seconds.min(0o77_777_777_777)));
    put(CHECKSUM.start, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(header)
}
