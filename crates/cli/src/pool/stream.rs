//! `flagstone volume send` and `flagstone volume receive`: streams of snapshots on standard output
//! and input. Each frame is checked on both ways.

use std::io::{self, IsTerminal as _, Read as _, Write as _};

use flagstone_pool::stream::frame::{FrameBody, HEADER_BYTES, PAYLOAD_BYTES_MAX, StreamFrame};
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
    ended: bool,
    bar: ProgressBar,
}

impl Watch {
    fn new(at: u64) -> Watch {
        Watch { at, ended: false, bar: progress_bar(Some(0), TEMPLATE) }
    }

    fn see(&mut self, frame: &StreamFrame<'_>) -> Result<(), Failure> {
        if frame.offset != self.at || self.ended {
            return Err(Failure::failed("the stream has a gap"));
        }
        match &frame.body {
            FrameBody::Begin(start) => self.bar.set_length(start.size_bytes),
            FrameBody::End => self.ended = true,
            _ => {}
        }
        self.at += frame.covered_bytes();
        self.bar.set_position(self.at);
        Ok(())
    }
}

/// Passes the whole frames at the beginning of `bytes` to `watch`; returns their length.
fn see_all(bytes: &[u8], watch: &mut Watch) -> Result<usize, Failure> {
    let mut at = 0;
    loop {
        let decoded = StreamFrame::decode(&bytes[at..]);
        let decoded = decoded.map_err(|error| Failure::failed(format!("the stream: {error}")))?;
        let Some((frame, len)) = decoded else { return Ok(at) };
        watch.see(&frame)?;
        at += len;
        if watch.ended {
            return Ok(at);
        }
    }
}

pub(super) fn send(args: &SendArgs) -> Result<Exit, Failure> {
    let mut out = io::stdout().lock();
    if out.is_terminal() {
        return Err(Failure::usage("a stream is no text: redirect it to a file or a pipe"));
    }
    let mut server = args.api.connect()?;
    let since = args.since.as_ref().map(|since| format!("&since={}", encode(since)));
    let since = since.unwrap_or_default();
    let mut watch = Watch::new(args.offset);
    while !watch.ended {
        let name = encode(&args.name);
        let path = format!("/v1/snapshots/{name}/stream?offset_bytes={}{since}", watch.at);
        let part = server.get_bytes(&path)?;
        if part.is_empty() || see_all(&part, &mut watch)? < part.len() {
            return Err(Failure::failed("the server's answer ends within a frame"));
        }
        let written = out.write_all(&part);
        written
            .map_err(|error| Failure::failed(format!("the stream cannot be written: {error}")))?;
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
    let mut bytes: Vec<u8> = Vec::with_capacity(BODY_BYTES + HEADER_BYTES + PAYLOAD_BYTES_MAX);
    loop {
        let before = bytes.len();
        let more = input.by_ref().take(BODY_BYTES as u64).read_to_end(&mut bytes);
        more.map_err(|error| Failure::failed(format!("the stream cannot be read: {error}")))?;
        let whole = see_all(&bytes, &mut watch)?;
        if whole == 0 && bytes.len() == before {
            return Err(Failure::failed(format!(
                "the stream is cut at {} bytes of the volume: nothing is served; receive it again \
                 from its beginning",
                watch.at
            )));
        }
        if whole > 0 {
            let text = server.post_bytes(&path, &bytes[..whole])?;
            let answer: ReceiveDocument = read(text.as_bytes())?;
            if answer.complete {
                watch.bar.finish_and_clear();
                let text = if args.json { text } else { format!("{}\n", answer.outcome) };
                return Ok(print(&text, Exit::Success));
            }
        }
        bytes.drain(..whole);
    }
}
