//! Reads diskspd's command line: options of one token each, then targets.
//!
//! A flag that changes the workload and has no counterpart is refused by name; one that only
//! changes what is reported, or how Windows goes about it, is a warning by name. Only `-` begins a
//! flag here, as `/` begins a path.

use super::profile::{Access, Affinity, Cache, Content, Distribution, Format, Profile, Rate};
use crate::limits::{BLOCK_BYTES, DEPTH, TARGETS, THREADS};

/// A command line that was understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// What it asks for.
    pub profile: Profile,
    /// What of it has no counterpart but does not change the workload.
    pub warnings: Vec<String>,
}

/// Reads the words after `diskspd`.
///
/// # Errors
/// What is wrong or cannot be honoured, as a sentence that names the flag.
pub fn parse(words: &[String]) -> Result<Parsed, String> {
    let flags = words.iter().take_while(|word| word.starts_with('-')).count();
    let (flags, targets) = words.split_at(flags);
    let mut reader = Reader::default();
    reader.profile.command_line = command_line(words);
    // Sizes in blocks need the block's size, wherever it stands.
    for flag in flags.iter().filter_map(|flag| flag.strip_prefix("-b")) {
        reader.profile.block_bytes = reader.size("-b", flag)?;
    }
    if !(1..=BLOCK_BYTES).contains(&reader.profile.block_bytes) {
        return Err("-b: a block is from 1 byte to less than 4 GiB".to_owned());
    }
    for flag in flags {
        reader.flag(flag)?;
    }
    for target in targets {
        reader.target(target)?;
    }
    reader.finish()
}

fn command_line(words: &[String]) -> String {
    let mut out = "diskspd".to_owned();
    for word in words {
        let quoted = word.contains([' ', '\t']);
        out += &if quoted { format!(" \"{word}\"") } else { format!(" {word}") };
    }
    out
}

#[derive(Default)]
struct Reader {
    profile: Profile,
    warnings: Vec<String>,
    threads: Option<u32>,
    total_threads: Option<u32>,
    outstanding: Option<u32>,
    total_outstanding: Option<u32>,
    burst: Option<u32>,
    pause_ms: Option<u32>,
    explicit_affinity: bool,
    no_affinity: bool,
    random: Option<Option<u64>>,
    random_percent: Option<u8>,
    stride: Option<Option<u64>>,
    base_length: Option<u64>,
    highest: Option<u64>,
    cache_flags: String,
    flush: bool,
}

fn number(flag: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!("{flag}{text}: a whole number from {least} to {most} is needed")),
    }
}

/// Most seconds of a time: what fits in diskspd's own counters.
const SECONDS: u64 = u32::MAX as u64;

impl Reader {
    fn size(&self, flag: &str, text: &str) -> Result<u64, String> {
        let wrong = || format!("{flag}{text}: a size is needed, such as 64K, 1G or 8b (blocks)");
        let unit = text.chars().last().ok_or_else(wrong)?;
        let factor = match unit.to_ascii_uppercase() {
            'K' => 1 << 10,
            'M' => 1 << 20,
            'G' => 1 << 30,
            'T' => 1 << 40,
            'B' => self.profile.block_bytes,
            '0'..='9' => 1,
            _ => return Err(wrong()),
        };
        let digits = if unit.is_ascii_digit() { text } else { &text[..text.len() - 1] };
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(wrong());
        }
        let count: u64 = digits.parse().map_err(|_| wrong())?;
        count.checked_mul(factor).ok_or_else(wrong)
    }

    fn optional_size(&self, flag: &str, text: &str) -> Result<Option<u64>, String> {
        if text.is_empty() { Ok(None) } else { self.size(flag, text).map(Some) }
    }

    fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }

    fn flag(&mut self, word: &str) -> Result<(), String> {
        let mut letters = word[1..].chars();
        let letter = letters.next().ok_or("-: a flag is missing after it")?;
        let rest = letters.as_str();
        let needs = |what: &str| Err(format!("-{letter}: {what}"));
        match letter {
            'a' => self.affinity(rest)?,
            'b' => {}
            'B' => self.base(rest)?,
            'c' => self.profile.create_bytes = Some(self.size("-c", rest)?),
            'C' => {
                self.profile.cool_down_s = number("-C", rest, 0, SECONDS)?;
                if self.profile.cool_down_s > 0 {
                    self.warn("-C: fio has no cool-down; the load ends with the measurement");
                }
            }
            'd' => self.profile.duration_s = number("-d", rest, 1, SECONDS)?,
            'D' => {
                let ms = if rest.is_empty() { 1000 } else { number("-D", rest, 1, SECONDS)? };
                self.profile.interval_ms = Some(ms);
            }
            'e' => self.warn("-e: there is no Event Tracing for Windows here; left out"),
            'f' => self.file_hints(rest)?,
            'F' => self.total_threads = Some(number("-F", rest, 1, THREADS.into())? as u32),
            'g' => self.rate(rest)?,
            'h' if rest.is_empty() => self.cache("uw")?,
            'i' => self.burst = Some(number("-i", rest, 1, u32::MAX.into())? as u32),
            'I' => self.profile.priority = number("-I", rest, 1, 3)? as u8,
            'j' => self.pause_ms = Some(number("-j", rest, 1, u32::MAX.into())? as u32),
            'l' if rest.is_empty() => self.profile.large_pages = true,
            'L' if rest.is_empty() => self.profile.latency = true,
            'n' if rest.is_empty() => self.no_affinity = true,
            'N' => match rest {
                "v" => self.flush = true,
                "n" | "i" => {
                    return needs("flushes of non-volatile memory have no counterpart in fio");
                }
                _ => return needs("v, n or i is needed after it"),
            },
            'o' => self.outstanding = Some(number("-o", rest, 1, DEPTH.into())? as u32),
            'O' => self.total_outstanding = Some(number("-O", rest, 1, DEPTH.into())? as u32),
            'p' => return needs("all requests at the same place cannot be done with fio"),
            'P' => self.warn("-P: progress is shown in another way"),
            'r' => self.random_access(rest)?,
            'R' => self.format(rest)?,
            's' => self.sequential(rest)?,
            'S' => self.cache(if rest.is_empty() { "u" } else { rest })?,
            't' => self.threads = Some(number("-t", rest, 1, THREADS.into())? as u32),
            'T' => self.profile.thread_stride_bytes = self.size("-T", rest)?,
            'v' => self.verbose(rest)?,
            'w' => self.profile.write_percent = number("-w", rest, 0, 100)? as u8,
            'W' => self.profile.warm_up_s = number("-W", rest, 0, SECONDS)?,
            'x' if rest.is_empty() => {
                self.warn("-x: there are no completion routines here; fio's engine is used");
            }
            'X' => return needs("a profile in XML is not read: write its flags"),
            'y' => return needs("Windows events have no counterpart"),
            'z' => {
                let seeded = !rest.is_empty();
                self.profile.seed =
                    if seeded { Some(number("-z", rest, 0, u64::from(u32::MAX))?) } else { None };
            }
            'Z' => self.content(rest)?,
            ':' => self.warn("-:: experiments of diskspd's own are left out"),
            _ => return Err(format!("{word}: diskspd has no such flag")),
        }
        Ok(())
    }

    fn affinity(&mut self, rest: &str) -> Result<(), String> {
        self.explicit_affinity = true;
        if rest == "g" {
            return Ok(());
        }
        let mut cpus = Vec::new();
        for part in rest.split(',') {
            match part.strip_prefix('g') {
                Some("0") => {}
                Some(_) => return Err(format!("-a{rest}: there are no processor groups here")),
                None => cpus.push(number("-a", part, 0, 65_535)? as u32),
            }
        }
        if cpus.is_empty() {
            return Err(format!("-a{rest}: it names no CPU"));
        }
        self.profile.affinity = Affinity::Cpus(cpus);
        Ok(())
    }

    fn base(&mut self, rest: &str) -> Result<(), String> {
        let (base, length) = rest.split_once(':').map_or((rest, None), |(b, l)| (b, Some(l)));
        self.profile.base_bytes = self.size("-B", base)?;
        self.base_length = length.map(|length| self.size("-B", length)).transpose()?;
        if self.base_length == Some(0) {
            return Err(format!("-B{rest}: its length is 0"));
        }
        Ok(())
    }

    fn file_hints(&mut self, rest: &str) -> Result<(), String> {
        if rest.starts_with(|c: char| c.is_ascii_digit()) {
            self.highest = Some(self.size("-f", rest)?);
            return Ok(());
        }
        if rest.is_empty() {
            return Err("-f: a size, or r, s or t, is needed after it".to_owned());
        }
        for hint in rest.chars() {
            match hint {
                'r' => self.profile.random_hint = true,
                's' => self.profile.sequential_hint = true,
                't' => self.warn("-ft: there is no hint of temporary files here; left out"),
                _ => return Err(format!("-f{rest}: hints are r, s and t")),
            }
        }
        Ok(())
    }

    fn rate(&mut self, rest: &str) -> Result<(), String> {
        let most = u64::from(u32::MAX);
        self.profile.rate = Some(match rest.strip_suffix('i') {
            Some(iops) => Rate::Iops(number("-g", iops, 1, most)?),
            None => Rate::BytesPerMs(number("-g", rest, 1, most)?),
        });
        Ok(())
    }

    fn random_access(&mut self, rest: &str) -> Result<(), String> {
        if let Some(percent) = rest.strip_prefix("s") {
            self.random_percent = Some(number("-rs", percent, 1, 100)? as u8);
        } else if let Some(ranges) = rest.strip_prefix("dpct") {
            self.random.get_or_insert(None);
            self.profile.distribution =
                Some(Distribution::Percent(self.ranges("-rdpct", ranges, true)?));
        } else if let Some(ranges) = rest.strip_prefix("dabs") {
            self.random.get_or_insert(None);
            self.profile.distribution =
                Some(Distribution::Absolute(self.ranges("-rdabs", ranges, false)?));
        } else {
            let align = self.optional_size("-r", rest)?;
            if align == Some(0) {
                return Err("-r: an alignment of 0".to_owned());
            }
            self.random = Some(align);
        }
        Ok(())
    }

    fn ranges(&self, flag: &str, text: &str, percent: bool) -> Result<Vec<(u64, u64)>, String> {
        let mut out = Vec::new();
        let (mut ios, mut share) = (0, 0);
        for part in text.split(':') {
            let (io, target) = part
                .split_once('/')
                .ok_or(format!("{flag}{text}: ranges are written IO%/TARGET"))?;
            let io = number(flag, io, 0, 100)?;
            let target =
                if percent { number(flag, target, 1, 100)? } else { self.size(flag, target)? };
            if target == 0 {
                return Err(format!("{flag}{text}: a range of 0"));
            }
            ios += io;
            share += if percent { target } else { 0 };
            out.push((io, target));
        }
        if ios > 100 || share > 100 {
            return Err(format!("{flag}{text}: it sums to more than 100 %"));
        }
        // What is left of the requests goes to what is left of the target.
        if percent && share < 100 {
            out.push((100 - ios, 100 - share));
        } else if ios < 100 && percent {
            return Err(format!("{flag}{text}: {} % of the requests have no place", 100 - ios));
        }
        Ok(out)
    }

    fn format(&mut self, rest: &str) -> Result<(), String> {
        let form = rest.strip_prefix('p');
        self.profile.profile_only = form.is_some();
        self.profile.format = match form.unwrap_or(rest) {
            "text" => Format::Text,
            "xml" => Format::Xml,
            "" if form.is_some() => Format::Text,
            _ => return Err(format!("-R{rest}: text or xml is needed after it")),
        };
        Ok(())
    }

    fn sequential(&mut self, rest: &str) -> Result<(), String> {
        if rest.starts_with('i') {
            return Err("-si: threads that share one sequence cannot be done with fio".to_owned());
        }
        let stride = self.optional_size("-s", rest)?;
        if stride == Some(0) {
            return Err("-s: a stride of 0".to_owned());
        }
        self.stride = Some(stride);
        Ok(())
    }

    fn cache(&mut self, modes: &str) -> Result<(), String> {
        for mode in modes.chars() {
            match mode {
                'h' => self.cache_flags += "uw",
                'b' | 'm' | 'u' | 'w' => self.cache_flags.push(mode),
                'r' => {
                    return Err(
                        "-Sr: a cache of the remote side alone has no counterpart".to_owned()
                    );
                }
                _ => return Err(format!("-S{modes}: modes are b, h, m, r, u and w")),
            }
        }
        let has = |mode| self.cache_flags.contains(mode);
        if has('b') && has('u') {
            return Err(format!("-S{modes}: cached and not cached"));
        }
        if has('m') && has('u') {
            return Err(format!("-S{modes}: memory mapped I/O is cached"));
        }
        self.profile.write_through = has('w');
        self.profile.cache = match (has('u'), has('m')) {
            (true, _) => Cache::Unbuffered,
            (_, true) => Cache::Mapped,
            _ => Cache::Cached,
        };
        Ok(())
    }

    fn verbose(&mut self, rest: &str) -> Result<(), String> {
        match rest {
            "" => self.profile.verbose = true,
            "s" => self.warn("-vs: fio keeps no wait statistics; left out"),
            _ => return Err(format!("-v{rest}: only s may follow")),
        }
        Ok(())
    }

    fn content(&mut self, rest: &str) -> Result<(), String> {
        self.profile.content = match rest {
            "" => Content::Zero,
            "r" => Content::Random,
            _ => {
                let (size, file) = rest.split_once(',').map_or((rest, None), |(s, f)| (s, Some(f)));
                let bytes = self.size("-Z", size)?;
                if bytes < self.profile.block_bytes {
                    return Err(format!("-Z{rest}: a buffer smaller than a block"));
                }
                if file.is_some_and(|file| file.contains(['\'', '\n']) || file.is_empty()) {
                    return Err(format!("-Z{rest}: fio takes no such name of a file"));
                }
                Content::Buffer { bytes, file: file.map(str::to_owned) }
            }
        };
        Ok(())
    }

    fn target(&mut self, word: &str) -> Result<(), String> {
        let bytes = word.as_bytes();
        if word.starts_with('-') {
            return Err(format!("{word}: flags stand before the targets"));
        }
        if word.starts_with('#') || word.starts_with('*') {
            return Err(format!(
                "{word}: there are no such drives here: write the device, such as /dev/sdb"
            ));
        }
        if bytes.len() >= 2 && bytes[0].is_ascii_alphabetic() && bytes[1] == b':' {
            return Err(format!(
                "{word}: there are no drive letters here: write the path of the file"
            ));
        }
        if word.is_empty() || word.contains(['\n', '\r', '\0']) {
            return Err("a target is no path".to_owned());
        }
        if word.contains("://") {
            return Err(format!("{word}: diskspd takes paths alone"));
        }
        self.profile.targets.push(word.to_owned());
        Ok(())
    }

    fn finish(mut self) -> Result<Parsed, String> {
        if self.profile.targets.is_empty() {
            return Err("a target is missing: a file or a device, after the flags".to_owned());
        }
        if self.profile.targets.len() > TARGETS {
            return Err(format!("more than {TARGETS} targets"));
        }
        self.threads_and_depth()?;
        self.access()?;
        let profile = &mut self.profile;
        if self.no_affinity {
            if self.explicit_affinity {
                return Err("-n and -a: bound to CPUs, and not".to_owned());
            }
            profile.affinity = Affinity::None;
        }
        profile.burst = match (self.burst, self.pause_ms) {
            (Some(_), None) => return Err("-i: the pause, -j, is missing".to_owned()),
            (None, Some(_)) => return Err("-j: the burst, -i, is missing".to_owned()),
            (Some(burst), Some(pause)) => Some((burst, pause)),
            (None, None) => None,
        };
        if profile.burst.is_some() && profile.rate.is_some() {
            profile.burst = None;
            self.warnings
                .push("-i and -j: left out, as with diskspd, where -g is given".to_owned());
        }
        if self.flush && profile.cache != Cache::Mapped {
            return Err("-Nv: it needs -Sm".to_owned());
        }
        profile.flush_views = self.flush;
        let end = match self.base_length {
            Some(length) => {
                Some(profile.base_bytes.checked_add(length).ok_or("-B: it ends beyond 2^64")?)
            }
            None => None,
        };
        profile.end_bytes = match (end, self.highest) {
            (Some(end), Some(highest)) => Some(end.min(highest)),
            (one, other) => one.or(other),
        };
        if profile.end_bytes.is_some_and(|end| end <= profile.base_bytes) {
            return Err("-f: it ends before -B begins".to_owned());
        }
        Ok(Parsed { profile: self.profile, warnings: self.warnings })
    }

    fn threads_and_depth(&mut self) -> Result<(), String> {
        let profile = &mut self.profile;
        profile.outstanding = self.outstanding.unwrap_or(profile.outstanding);
        profile.threads = self.threads.unwrap_or(profile.threads);
        if let Some(total) = self.total_threads {
            if self.threads.is_some_and(|threads| threads > 1) {
                return Err("-F and -t: threads of all targets, and of each".to_owned());
            }
            if profile.targets.len() > 1 {
                return Err(
                    "-F: threads that share several targets are not done here: write -t".to_owned()
                );
            }
            profile.threads = total;
            profile.total_threads = true;
        }
        if let Some(total) = self.total_outstanding {
            if self.total_threads.is_none() {
                return Err("-O: it needs -F".to_owned());
            }
            if profile.rate.is_some() || self.pause_ms.is_some() {
                return Err("-O: not with -g or -j".to_owned());
            }
            profile.outstanding = total;
        }
        Ok(())
    }

    fn access(&mut self) -> Result<(), String> {
        let profile = &mut self.profile;
        let percent = self.random_percent.unwrap_or(100);
        if self.random.is_some() || self.random_percent.is_some() {
            if self.stride.is_some() {
                return Err("-r and -s: random and sequential; a share of both is -rs".to_owned());
            }
            if profile.thread_stride_bytes > 0 {
                return Err("-T: it is for sequential access, not with -r".to_owned());
            }
            let align_bytes = self.random.flatten();
            profile.access = Access::Random { align_bytes, percent };
        } else {
            let stride_bytes = self.stride.flatten();
            profile.access = Access::Sequential { stride_bytes };
            if profile.threads > 1 && profile.thread_stride_bytes == 0 {
                self.warnings.push(
                    "several threads begin at the same place: altogether the access is not sequential \
                     (-T moves them apart)"
                        .to_owned(),
                );
            }
        }
        if profile.thread_stride_bytes > 0 && profile.threads == 1 {
            return Err("-T: it needs more than one thread".to_owned());
        }
        if profile.distribution.is_some() && percent < 100 {
            return Err("-rd and -rs: not together".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split_whitespace().map(str::to_owned).collect()
    }

    fn profile(line: &str) -> Profile {
        parse(&words(&format!("{line} f")))
            .unwrap_or_else(|error| panic!("{line}: {error}"))
            .profile
    }

    #[test]
    fn the_published_command() {
        let found = profile("-c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L");
        let expected = Profile {
            command_line: "diskspd -c96G -d10 -r -w100 -t8 -o3 -b64K -Sh -L f".to_owned(),
            targets: vec!["f".to_owned()],
            create_bytes: Some(96 << 30),
            threads: 8,
            outstanding: 3,
            latency: true,
            access: Access::Random { align_bytes: None, percent: 100 },
            cache: Cache::Unbuffered,
            write_through: true,
            write_percent: 100,
            ..Profile::default()
        };
        assert_eq!(found, expected);
        assert_eq!((found.warm_up_s, found.duration_s, found.seed), (5, 10, Some(0)));
    }

    /// Each flag by itself: what it changes from the defaults.
    #[test]
    fn each_flag() {
        type Change = fn(&mut Profile);
        let cases: &[(&str, Change)] = &[
            ("-ag", |_| {}),
            ("-a0,2", |p| p.affinity = Affinity::Cpus(vec![0, 2])),
            ("-ag0,1,3", |p| p.affinity = Affinity::Cpus(vec![1, 3])),
            ("-n", |p| p.affinity = Affinity::None),
            ("-b4K", |p| p.block_bytes = 4096),
            ("-B1M", |p| p.base_bytes = 1 << 20),
            ("-B2b", |p| p.base_bytes = 128 << 10),
            ("-B1M:2M", |p| (p.base_bytes, p.end_bytes) = (1 << 20, Some(3 << 20))),
            ("-f1G", |p| p.end_bytes = Some(1 << 30)),
            ("-fr", |p| p.random_hint = true),
            ("-fs", |p| p.sequential_hint = true),
            ("-ft", |_| {}),
            ("-c1T", |p| p.create_bytes = Some(1 << 40)),
            ("-C3", |p| p.cool_down_s = 3),
            ("-d60", |p| p.duration_s = 60),
            ("-W0", |p| p.warm_up_s = 0),
            ("-D", |p| p.interval_ms = Some(1000)),
            ("-D250", |p| p.interval_ms = Some(250)),
            ("-F4", |p| (p.threads, p.total_threads) = (4, true)),
            ("-F4 -O9", |p| (p.threads, p.total_threads, p.outstanding) = (4, true, 9)),
            ("-t1", |_| {}),
            ("-o32", |p| p.outstanding = 32),
            ("-g100", |p| p.rate = Some(Rate::BytesPerMs(100))),
            ("-g100i", |p| p.rate = Some(Rate::Iops(100))),
            ("-i8 -j5", |p| p.burst = Some((8, 5))),
            ("-i8 -j5 -g7", |p| p.rate = Some(Rate::BytesPerMs(7))),
            ("-I1", |p| p.priority = 1),
            ("-l", |p| p.large_pages = true),
            ("-L", |p| p.latency = true),
            ("-Sm -Nv", |p| (p.cache, p.flush_views) = (Cache::Mapped, true)),
            ("-P100", |_| {}),
            ("-r", |p| p.access = Access::Random { align_bytes: None, percent: 100 }),
            ("-r4K", |p| p.access = Access::Random { align_bytes: Some(4096), percent: 100 }),
            ("-rs30", |p| p.access = Access::Random { align_bytes: None, percent: 30 }),
            ("-rs30 -r8K", |p| p.access = Access::Random { align_bytes: Some(8192), percent: 30 }),
            ("-Rtext", |_| {}),
            ("-Rxml", |p| p.format = Format::Xml),
            ("-Rp", |p| p.profile_only = true),
            ("-Rpxml", |p| (p.format, p.profile_only) = (Format::Xml, true)),
            ("-s", |_| {}),
            ("-s128K", |p| p.access = Access::Sequential { stride_bytes: Some(128 << 10) }),
            ("-t2 -T1M", |p| (p.threads, p.thread_stride_bytes) = (2, 1 << 20)),
            ("-S", |p| p.cache = Cache::Unbuffered),
            ("-Su", |p| p.cache = Cache::Unbuffered),
            ("-Sw", |p| p.write_through = true),
            ("-Suw", |p| (p.cache, p.write_through) = (Cache::Unbuffered, true)),
            ("-Su -Sw", |p| (p.cache, p.write_through) = (Cache::Unbuffered, true)),
            ("-h", |p| (p.cache, p.write_through) = (Cache::Unbuffered, true)),
            ("-Sb", |_| {}),
            ("-Sbw", |p| p.write_through = true),
            ("-v", |p| p.verbose = true),
            ("-vs", |_| {}),
            ("-e", |_| {}),
            ("-x", |_| {}),
            ("-:1", |_| {}),
            ("-w30", |p| p.write_percent = 30),
            ("-w0", |_| {}),
            ("-z", |p| p.seed = None),
            ("-z7", |p| p.seed = Some(7)),
            ("-Z", |p| p.content = Content::Zero),
            ("-Zr", |p| p.content = Content::Random),
            ("-Z1M", |p| p.content = Content::Buffer { bytes: 1 << 20, file: None }),
            ("-Z1M,data", |p| {
                p.content = Content::Buffer { bytes: 1 << 20, file: Some("data".to_owned()) };
            }),
        ];
        for (line, change) in cases {
            let mut expected = Profile {
                command_line: format!("diskspd {line} f"),
                targets: vec!["f".to_owned()],
                ..Profile::default()
            };
            change(&mut expected);
            assert_eq!(profile(line), expected, "{line}");
        }
    }

    #[test]
    fn distributions() {
        let of = |line| profile(line).distribution;
        assert_eq!(of("-rdpct90/10:10/90"), Some(Distribution::Percent(vec![(90, 10), (10, 90)])));
        assert_eq!(
            of("-rdpct90/10"),
            Some(Distribution::Percent(vec![(90, 10), (10, 90)])),
            "the rest"
        );
        assert_eq!(of("-rdpct90/10:0/10:10/80").map(|_| ()), Some(()), "a hole");
        assert_eq!(of("-rdabs90/1G"), Some(Distribution::Absolute(vec![(90, 1 << 30)])));
        assert!(profile("-rdpct100/10").is_random());
    }

    #[test]
    fn refusals_name_the_flag() {
        for (line, part) in [
            ("-r -p", "-p: all requests at the same place"),
            ("-si", "-si: threads that share"),
            ("-Sr", "-Sr: a cache of the remote side"),
            ("-Sm -Nn", "-N: flushes of non-volatile"),
            ("-Nv", "-Nv: it needs -Sm"),
            ("-Xp.xml", "-X: a profile"),
            ("-ysGo", "-y: Windows events"),
            ("-ag1,0", "processor groups"),
            ("-r -T1M -t2", "-T: it is for sequential"),
            ("-T1M", "-T: it needs more than one thread"),
            ("-n -a1", "-n and -a"),
            ("-F2 -t3", "-F and -t"),
            ("-O3", "-O: it needs -F"),
            ("-F2 -O3 -g5", "-O: not with"),
            ("-i3", "-i: the pause, -j"),
            ("-j3", "-j: the burst, -i"),
            ("-Sum", "memory mapped"),
            ("-Sbu", "cached and not cached"),
            ("-r -s", "-r and -s"),
            ("-w", "-w: a whole number"),
            ("-w101", "-w101: a whole number from 0 to 100"),
            ("-b", "-b: a size"),
            ("-b0", "a block is from 1"),
            ("-b4G", "less than 4 GiB"),
            ("-c99999999999T", "-c99999999999T: a size"),
            ("-o0", "-o0"),
            ("-d0", "-d0"),
            ("-Rjson", "-Rjson: text or xml"),
            ("-Z1K", "smaller than a block"),
            ("-q", "-q: diskspd has no such flag"),
            ("-f1M -B2M", "ends before"),
            ("-rdpct90/10:20/80", "more than 100 %"),
            ("-rdpct50/100", "have no place"),
            ("-", "a flag is missing"),
            ("-Lx", "no such flag"),
        ] {
            let error = parse(&words(&format!("{line} f"))).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
        for (line, part) in [
            ("-r", "a target is missing"),
            ("-r #1", "there are no such drives"),
            ("-r D:data.dat", "no drive letters"),
            ("-r X:", "no drive letters"),
            ("-r f -L", "flags stand before"),
            ("-F2 a b", "-F: threads that share several targets"),
        ] {
            let error = parse(&words(line)).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn warnings_name_the_flag() {
        for (line, part) in [
            ("-C3", "-C:"),
            ("-e", "-e:"),
            ("-ft", "-ft:"),
            ("-P", "-P:"),
            ("-vs", "-vs:"),
            ("-x", "-x:"),
            ("-:1", "-:"),
            ("-t2", "several threads begin"),
            ("-i1 -j1 -g1", "-i and -j"),
        ] {
            let found = parse(&words(&format!("{line} f"))).unwrap().warnings;
            assert!(found.len() == 1 && found[0].contains(part), "{line}: {found:?}");
        }
        assert!(parse(&words("-r -t8 f")).unwrap().warnings.is_empty());
    }

    proptest! {
        #[test]
        fn any_words_are_understood_or_refused(
            words in proptest::collection::vec("-?[a-zA-Z:#/]{0,2}[0-9a-zKMGi,/:é]{0,6}", 0..6)
        ) {
            if let Ok(parsed) = parse(&words) {
                prop_assert!(!parsed.profile.targets.is_empty() && parsed.profile.threads > 0);
            }
        }
    }
}
