//! `flagstone volume send` and `flagstone volume receive`: streams of snapshots on standard output
//! and input. Each frame is checked on both ways.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Read as _, Write as _};

use flagstone_pool::stream::frame::{FrameBody, HEADER_BYTES, PAYLOAD_BYTES_MAX, StreamFrame};
use flagstone_server::api::pool_document::ReceiveDocument;
use flagstone_server::http::encode;
use flagstone_server::limits::RECEIVE_RECORD_BYTES;
use flagstone_units::exact_size;
use indicatif::ProgressBar;

use super::args::{ReceiveArgs, SendArgs};
use super::key_place;
use crate::exit::{Exit, Failure};
use crate::output::{print, progress_bar};
use crate::status::server::read;

/// Bytes of frames after which they are sent to the server.
const BODY_BYTES: usize = 1 << 20;

const TEMPLATE: &str = "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec} {eta}";

/// Source of the frames of a stream.
pub(crate) trait FrameSource {
    /// Appends about 1 MiB of frames, or nothing at the end.
    fn more(&mut self, bytes: &mut Vec<u8>) -> Result<(), String>;

    /// The receiver has the first `at` bytes of the snapshot: frames of them may be missing.
    fn skip_to(&mut self, at: u64);

    /// How to continue a receive that was cut when the volume had `has` bytes.
    fn advice(&self, has: u64) -> String;
}

/// The stream that another program writes.
struct Input<'a>(io::StdinLock<'a>);

impl FrameSource for Input<'_> {
    fn more(&mut self, bytes: &mut Vec<u8>) -> Result<(), String> {
        let more = self.0.by_ref().take(BODY_BYTES as u64).read_to_end(bytes);
        more.map(drop).map_err(|error| format!("the stream cannot be read: {error}"))
    }

    fn skip_to(&mut self, _: u64) {}

    fn advice(&self, has: u64) -> String {
        format!(
            "run the same commands again, or leave out what it has: flagstone volume send --resume \
             {has}"
        )
    }
}

/// Follows the frames of a stream.
struct Watch {
    at: u64,
    /// Offset up to which the receiver has the snapshot. A stream that continues may leave it out.
    had: u64,
    ended: bool,
    bar: ProgressBar,
}

impl Watch {
    fn new(at: u64) -> Watch {
        Watch { at, had: 0, ended: false, bar: progress_bar(Some(0), TEMPLATE) }
    }

    /// True if the receiver needs the frame.
    fn see(&mut self, frame: &StreamFrame<'_>) -> Result<bool, Failure> {
        let is_next = frame.offset == self.at || (self.at..=self.had).contains(&frame.offset);
        if !is_next || self.ended {
            return Err(Failure::failed("the stream has a gap"));
        }
        match &frame.body {
            FrameBody::Begin(start) => self.bar.set_length(start.size_bytes),
            FrameBody::End => self.ended = true,
            _ => {}
        }
        self.at = frame.offset + frame.covered_bytes();
        self.bar.set_position(self.at);
        Ok(self.at > self.had || frame.covered_bytes() == 0)
    }
}

/// The first frame of `bytes` and its length, if it is whole.
fn first_frame(bytes: &[u8]) -> Result<Option<(StreamFrame<'_>, usize)>, Failure> {
    StreamFrame::decode(bytes).map_err(|error| Failure::failed(format!("the stream: {error}")))
}

/// Passes at most `most` whole frames at the beginning of `bytes` to `watch`, and the frames that
/// the receiver needs to `needed`; returns their length.
fn see_all(
    bytes: &[u8],
    watch: &mut Watch,
    most: usize,
    mut needed: impl FnMut(&[u8]),
) -> Result<usize, Failure> {
    let mut at = 0;
    for _ in 0..most {
        let Some((frame, len)) = first_frame(&bytes[at..])? else { break };
        if watch.see(&frame)? {
            needed(&bytes[at..at + len]);
        }
        at += len;
        if watch.ended {
            break;
        }
    }
    Ok(at)
}

pub(super) fn send(args: &SendArgs) -> Result<Exit, Failure> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        return Err(Failure::usage("a stream is no text: redirect it to a file or a pipe"));
    }
    let mut server = args.api.connect()?;
    let since = args.since.as_ref().map(|since| format!("&since={}", encode(since)));
    let since = since.unwrap_or_default();
    let name = encode(&args.name);
    let path = |at: u64| format!("/v1/snapshots/{name}/stream?offset_bytes={at}{since}");
    let unwritable = |error| Failure::failed(format!("the stream cannot be written: {error}"));
    let mut watch = Watch::new(args.resume.unwrap_or(args.offset));
    if args.resume.is_some_and(|at| at > 0) {
        // The receiver recognizes its stream by the first frame.
        let part = server.get_bytes(&path(0))?;
        let Some((StreamFrame { body: FrameBody::Begin(start), .. }, len)) = first_frame(&part)?
        else {
            return Err(Failure::failed("the server's answer does not begin with a first frame"));
        };
        watch.bar.set_length(start.size_bytes);
        out.write_all(&part[..len]).map_err(unwritable)?;
    }
    while !watch.ended {
        let part = server.get_bytes(&path(watch.at))?;
        if part.is_empty() || see_all(&part, &mut watch, usize::MAX, |_| ())? < part.len() {
            return Err(Failure::failed("the server's answer ends within a frame"));
        }
        out.write_all(&part).map_err(unwritable)?;
    }
    out.flush().map_err(Failure::failed)?;
    watch.bar.finish_and_clear();
    Ok(Exit::Success)
}

/// What happened to a receive whose server stopped answering, after it had confirmed `had` bytes,
/// and what to do.
fn lost(args: &ReceiveArgs, had: Option<u64>, error: &dyn Display) -> String {
    let name = &args.name;
    let state = match had {
        Some(had) => format!(
            "It had {had} bytes of the snapshot: volume {name} keeps them, except for at most the \
             last {} of data, and is not served until the receive is complete.",
            exact_size(RECEIVE_RECORD_BYTES)
        ),
        None => format!("Nothing was confirmed: volume {name} keeps what it has."),
    };
    format!(
        "the server stopped answering ({error}); it may be restarting. {state} Once it runs, run the \
         same commands again: the receive continues. flagstone pool status shows how much the \
         volume has, which flagstone volume send --resume BYTES leaves out."
    )
}

pub(super) fn receive(args: &ReceiveArgs) -> Result<Exit, Failure> {
    let input = io::stdin().lock();
    if input.is_terminal() {
        return Err(Failure::usage("the stream comes from standard input: … < stream"));
    }
    let (text, outcome) = receive_from(args, &mut Input(input))?;
    Ok(print(&if args.json { text } else { format!("{outcome}\n") }, Exit::Success))
}

/// Sends a stream to the server; returns its last answer, and the outcome in it.
pub(crate) fn receive_from(
    args: &ReceiveArgs,
    input: &mut impl FrameSource,
) -> Result<(String, String), Failure> {
    let mut server = args.api.connect()?;
    let pool = args.pool.as_ref().map(|pool| format!("&pool={}", encode(pool)));
    let name = encode(&args.name);
    let pool = pool.unwrap_or_default();
    let compression = args.compression.as_ref().map(|mode| format!("&compression={mode}"));
    let compression = compression.unwrap_or_default();
    let key = match &args.encryption_key_file {
        Some(file) => {
            format!("&encryption_key_file={}", encode(&key_place(file)?))
        }
        None => String::new(),
    };
    let force = args.force.force;
    let path = format!("/v1/volumes/{name}/receive?force={force}{pool}{compression}{key}");
    let mut watch = Watch::new(0);
    let mut has_begun = false;
    // The first frame, and the part of the body that the server needs.
    let (mut begin, mut body) = (Vec::new(), Vec::new());
    let mut bytes: Vec<u8> = Vec::with_capacity(BODY_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX);
    // Failure of the input, reported once the whole frames before it are sent.
    let mut cut = None;
    loop {
        let before = bytes.len();
        if cut.is_none() {
            cut = input.more(&mut bytes).err();
        }
        let has_more = cut.is_none() && bytes.len() > before;
        // The answer to the first frame says what the volume has.
        let most = if begin.is_empty() { 1 } else { usize::MAX };
        let whole = see_all(&bytes, &mut watch, most, |frame| body.extend_from_slice(frame))?;
        if whole == 0 && !has_more {
            let why = cut.unwrap_or_else(|| "the stream is cut".to_owned());
            if begin.is_empty() {
                return Err(Failure::failed(format!("{why}: nothing was received")));
            }
            // The first frame lets the server record what the volume has.
            let text = server.post_bytes(&path, &begin, |error| lost(args, None, error))?;
            let ReceiveDocument { position_bytes: has, .. } = read(text.as_bytes())?;
            return Err(Failure::failed(format!(
                "{why}: the volume has {has} bytes of its snapshot, and is not served; {}",
                input.advice(has)
            )));
        }
        if begin.is_empty() {
            begin.clone_from(&body);
        }
        if !body.is_empty() {
            let had = has_begun.then_some(watch.had);
            let text = server.post_bytes(&path, &body, |error| lost(args, had, error))?;
            has_begun = true;
            let answer: ReceiveDocument = read(text.as_bytes())?;
            if answer.complete {
                watch.bar.finish_and_clear();
                return match cut {
                    Some(why) => Err(Failure::failed(format!("{why}: the volume is complete"))),
                    None => Ok((text, answer.outcome)),
                };
            }
            watch.had = watch.had.max(answer.position_bytes);
            input.skip_to(watch.had);
        }
        body.clear();
        bytes.drain(..whole);
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// The message was "the server stopped answering: early eof".
    #[test]
    fn restarted_server_leaves_advice() {
        let line = "flagstone volume receive db --pool fast --compression zstd \
                    --encryption-key-file /keys/db";
        let cli = crate::args::Cli::try_parse_from(line.split(' ')).unwrap();
        let crate::args::Command::Volume(args) = cli.command else { panic!("{line}") };
        let crate::pool::args::VolumeCommand::Receive(args) = args.command else {
            panic!("{line}")
        };
        assert_eq!(args.compression.as_deref(), Some("zstd"));
        assert!(args.encryption_key_file.is_some());
        let text = lost(&args, Some(64 << 20), &"connection reset");
        for part in [
            "connection reset",
            "67108864 bytes",
            "volume db keeps them",
            "last 32 MiB",
            "not served",
            "run the same commands again",
            "send --resume",
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(lost(&args, None, &"end").contains("Nothing was confirmed"));
    }
}
