//! `flagstone volume send` and `flagstone volume receive`: streams of snapshots on standard output
//! and input. Each frame is checked on both ways.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use flagstone_pool::stream::frame::{Frame, FrameBody, HEADER_BYTES, PAYLOAD_BYTES_MAX};
use flagstone_server::api::pool_document::ReceiveDocument;
use flagstone_server::http::encode;
use indicatif::ProgressBar;

use super::args::{ReceiveArgs, SendArgs};
use crate::exit::{Exit, Failure};
use crate::output::{print, progress_bar};
use crate::status::server::read;

/// Bytes of frames after which they are sent to the server.
const BODY_BYTES: usize = 1 << 20;

const TEMPLATE: &str = "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec} {eta}";

/// Follows the frames of a stream.
struct Watch {
    at: u64,
    /// Offset up to which the receiver has the snapshot: a stream that continues may leave it out.
    had: u64,
    ended: bool,
    bar: ProgressBar,
}

impl Watch {
    fn new(at: u64) -> Watch {
        Watch { at, had: 0, ended: false, bar: progress_bar(Some(0), TEMPLATE) }
    }

    fn see(&mut self, frame: &Frame<'_>) -> Result<(), Failure> {
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
        Ok(())
    }
}

/// Passes the whole frames at the beginning of `bytes` to `watch`; returns their length.
fn see_all(bytes: &[u8], watch: &mut Watch) -> Result<usize, Failure> {
    let mut at = 0;
    loop {
        let Some((frame, len)) = first_frame(&bytes[at..])? else { return Ok(at) };
        watch.see(&frame)?;
        at += len;
        if watch.ended {
            return Ok(at);
        }
    }
}

/// The first frame at the beginning of `bytes`, with its length.
fn first_frame(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, Failure> {
    let decoded = Frame::decode(bytes);
    decoded.map_err(|error| Failure::failed(format!("the stream: {error}")))
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
    let mut watch = Watch::new(args.resume.unwrap_or(args.offset));
    let unwritable = |error| Failure::failed(format!("the stream cannot be written: {error}"));
    if args.resume.is_some_and(|at| at > 0) {
        // The first frame names the snapshot and the base, which the receiver compares.
        let part = server.get_bytes(&path(0))?;
        let begin =
            first_frame(&part)?.filter(|(frame, _)| matches!(frame.body, FrameBody::Begin(_)));
        let (_, len) =
            begin.ok_or_else(|| Failure::failed("the server's answer has no beginning"))?;
        out.write_all(&part[..len]).map_err(unwritable)?;
    }
    while !watch.ended {
        let part = server.get_bytes(&path(watch.at))?;
        if part.is_empty() || see_all(&part, &mut watch)? < part.len() {
            return Err(Failure::failed("the server's answer ends within a frame"));
        }
        out.write_all(&part).map_err(unwritable)?;
    }
    out.flush().map_err(Failure::failed)?;
    watch.bar.finish_and_clear();
    Ok(Exit::Success)
}

pub(super) fn receive(args: &ReceiveArgs) -> Result<Exit, Failure> {
    let mut input = io::stdin().lock();
    if input.is_terminal() {
        return Err(Failure::usage("the stream comes from standard input: … < stream"));
    }
    let mut server = args.api.connect()?;
    let pool = args.pool.as_ref().map(|pool| format!("&pool={}", encode(pool)));
    let name = encode(&args.name);
    let pool = pool.unwrap_or_default();
    let path = format!("/v1/volumes/{name}/receive?force={}{pool}", args.force.force);
    let mut watch = Watch::new(0);
    // The first frame, once it was sent.
    let mut begin: Option<Vec<u8>> = None;
    let mut bytes: Vec<u8> = Vec::with_capacity(BODY_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX);
    loop {
        let before = bytes.len();
        let more = input.by_ref().take(BODY_BYTES as u64).read_to_end(&mut bytes);
        more.map_err(|error| Failure::failed(format!("the stream cannot be read: {error}")))?;
        let whole = match (&begin, first_frame(&bytes)?) {
            (Some(_), _) => see_all(&bytes, &mut watch)?,
            // The answer to the first frame has what may be left out.
            (None, Some((frame, len))) => {
                watch.see(&frame)?;
                len
            }
            (None, None) => 0,
        };
        if whole == 0 && bytes.len() == before {
            // The first frame again makes the server record what it has.
            let text = begin.map(|begin| server.post_bytes(&path, &begin)).transpose()?;
            let answer = text.map(|text| read::<ReceiveDocument>(text.as_bytes())).transpose()?;
            let has = answer.map_or(0, |answer| answer.position_bytes);
            return Err(Failure::failed(format!(
                "the stream is cut: nothing is served, and the volume has {has} bytes of its \
                 snapshot; receive the stream again, or what is missing (flagstone volume send --resume \
                 {has})"
            )));
        }
        if whole > 0 {
            begin.get_or_insert_with(|| bytes[..whole].to_vec());
            let text = server.post_bytes(&path, &bytes[..whole])?;
            let answer: ReceiveDocument = read(text.as_bytes())?;
            if answer.complete {
                watch.bar.finish_and_clear();
                let text = if args.json { text } else { format!("{}\n", answer.outcome) };
                return Ok(print(&text, Exit::Success));
            }
            watch.had = watch.had.max(answer.position_bytes);
        }
        bytes.drain(..whole);
    }
}
