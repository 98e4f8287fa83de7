//! Single flags of diskspd.

use super::Reader;
use crate::diskspd::profile::{
    Affinity, Cache, DiskspdFormat, DiskspdRate, Distribution, WriteContent,
};
use crate::limits::{DEPTH, THREADS};

fn number(flag: &str, text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(value) if (least..=most).contains(&value) => Ok(value),
        _ => Err(format!("{flag}{text}: a whole number from {least} to {most} is needed")),
    }
}

/// Upper bound of a time in seconds: diskspd's own counters hold 32 bits.
const SECONDS: u64 = u32::MAX as u64;

impl Reader {
    pub(super) fn size(&self, flag: &str, text: &str) -> Result<u64, String> {
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

    pub(super) fn flag(&mut self, word: &str) -> Result<(), String> {
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
            'X' => return needs("one profile only"),
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
            Some(iops) => DiskspdRate::Iops(number("-g", iops, 1, most)?),
            None => DiskspdRate::BytesPerMs(number("-g", rest, 1, most)?),
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
        // The rest of the requests accesses the rest of the target.
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
            "text" => DiskspdFormat::Text,
            "xml" => DiskspdFormat::Xml,
            "" if form.is_some() => DiskspdFormat::Text,
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
            "" => WriteContent::Zero,
            "r" => WriteContent::Random,
            _ => {
                let (size, file) = rest.split_once(',').map_or((rest, None), |(s, f)| (s, Some(f)));
                let bytes = self.size("-Z", size)?;
                if bytes < self.profile.block_bytes {
                    return Err(format!("-Z{rest}: a buffer smaller than a block"));
                }
                if file.is_some_and(|file| file.contains(['\'', '\n']) || file.is_empty()) {
                    return Err(format!("-Z{rest}: fio takes no such name of a file"));
                }
                WriteContent::Buffer { bytes, file: file.map(str::to_owned) }
            }
        };
        Ok(())
    }

    pub(super) fn target(&mut self, word: &str) -> Result<(), String> {
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
}
