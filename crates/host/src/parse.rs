//! Parsers of kernel and `ethtool` output. Unknown text, as of newer kernels, is skipped.

use std::collections::BTreeSet;

use serde::Serialize;

/// One line of `/proc/self/mountinfo` (proc(5)).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mount {
    /// Device number, `major:minor`; anonymous (`0:N`) for btrfs and others.
    pub dev: String,
    pub at: String,
    pub fs: String,
    /// Mounted source, as named.
    pub source: String,
    pub options: Vec<String>,
}

impl Mount {
    pub(crate) fn has(&self, option: &str) -> bool {
        self.options.iter().any(|set| set == option)
    }
}

pub fn mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let dev = left.next()?.to_owned();
    let at = unescape(left.nth(1)?);
    let options = left.next()?;
    let mut right = right.split(' ');
    let (fs, source) = (right.next()?.to_owned(), unescape(right.next()?));
    let more = right.next().unwrap_or("");
    let mut seen = BTreeSet::new();
    let options = options.split(',').chain(more.split(','));
    let options = options.filter(|option| !option.is_empty() && seen.insert(*option));
    let options = options.map(str::to_owned).collect();
    Some(Mount { dev, at, fs, source, options })
}

/// Decodes the kernel's escapes: a backslash and three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|d| d.iter().all(|d| (b'0'..b'8').contains(d)));
        let code = digits.map(|d| d.iter().fold(0_u16, |n, d| n * 8 + u16::from(d - b'0')));
        match (first, code.and_then(|code| u8::try_from(code).ok())) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

pub(crate) fn swaps(text: &str) -> Vec<String> {
    let lines = text.lines().skip(1);
    lines.filter_map(|line| line.split_whitespace().next()).map(unescape).collect()
}

/// A CPU list such as `0-3,8`; `None` if malformed. At most 65,536 numbers.
pub(crate) fn cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last >= 65_536 || cpus.len() > 65_536 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// A row of `/proc/interrupts` that belongs to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InterruptRow {
    pub(crate) number: u32,
    pub(crate) count: u64,
    /// The device's name of the interrupt: `nvme0q1`, `virtio3-input.0`.
    pub(crate) name: String,
}

pub(crate) fn interrupts(text: &str) -> Vec<InterruptRow> {
    let cpus = text.lines().next().unwrap_or("").split_whitespace().count();
    text.lines().skip(1).filter_map(|line| interrupt(line, cpus)).collect()
}

fn interrupt(line: &str, cpus: usize) -> Option<InterruptRow> {
    let (number, rest) = line.split_once(':')?;
    let number = number.trim().parse().ok()?;
    let counts = rest.split_whitespace().take(cpus).map_while(|word| word.parse::<u64>().ok());
    let count = counts.fold(0, u64::saturating_add);
    let name = rest.split_whitespace().last()?.to_owned();
    Some(InterruptRow { number, count, name })
}

/// The word in brackets of `mq-deadline [none]`, or a single word.
pub(crate) fn chosen(text: &str) -> Option<&str> {
    if let Some((_, rest)) = text.split_once('[') {
        return rest.split_once(']').map(|(word, _)| word).filter(|word| !word.is_empty());
    }
    let mut words = text.split_whitespace();
    words.next().filter(|_| words.next().is_none())
}

/// All words of `mq-deadline [none]`.
pub(crate) fn choices(text: &str) -> Vec<String> {
    let bracket = |c: char| c == '[' || c == ']';
    text.split_whitespace().map(|word| word.trim_matches(bracket).to_owned()).collect()
}

/// Major and minor version of a kernel release such as `6.1.0-18-cloud-amd64`.
pub(crate) fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.trim().split(['.', '-', '+']);
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// Features of `ethtool -k`: name, on, fixed.
pub(crate) fn features(text: &str) -> Vec<(String, bool, bool)> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(": "));
    lines
        .filter_map(|(name, state)| {
            let on = match state.split_whitespace().next()? {
                "on" => true,
                "off" => false,
                _ => return None,
            };
            Some((name.to_owned(), on, state.contains("[fixed]")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn mountinfo_parses() {
        let text = "36 35 8:17 / /mnt/my\\040data rw,noatime shared:1 master:2 - ext4 /dev/sdb1 \
                    rw,discard\nnonsense\n";
        let [mount] = &mounts(text)[..] else { panic!("one") };
        assert_eq!((mount.dev.as_str(), mount.at.as_str()), ("8:17", "/mnt/my data"));
        assert_eq!((mount.fs.as_str(), mount.source.as_str()), ("ext4", "/dev/sdb1"));
        assert!(mount.has("discard") && mount.has("noatime") && !mount.has("noa"));
    }

    #[test]
    fn kernel_files_parse() {
        assert_eq!(swaps("Filename Type\n/dev/sda2 partition 1 0 -2\n"), ["/dev/sda2"]);
        assert_eq!(cpu_list("0-2,5\n"), Some(vec![0, 1, 2, 5]));
        assert_eq!(cpu_list(""), Some(vec![]));
        assert_eq!(cpu_list("3-1"), None);
        assert_eq!(cpu_list("0-4294967295"), None);
        assert_eq!(chosen("mq-deadline kyber [none]\n"), Some("none"));
        assert_eq!(chosen("none\n"), Some("none"));
        assert_eq!(chosen("a b"), None);
        assert_eq!(choices("[none] bfq"), ["none", "bfq"]);
        assert_eq!(kernel_version("6.1.0-18-cloud"), Some((6, 1)));
        assert_eq!(kernel_version("4.19-rc1"), Some((4, 19)));
        assert_eq!(kernel_version("x"), None);
        let text = "  CPU0 CPU1\n 24: 7 5 PCI-MSIX-0000:00:04.0 1-edge nvme0q1\nNMI: 0 0 x\n";
        let expected = InterruptRow { number: 24, count: 12, name: "nvme0q1".to_owned() };
        assert_eq!(interrupts(text), [expected]);
        let text = "Features for eth0:\ntcp-segmentation-offload: off\n\ttx-x: on [fixed]\n";
        let expected = [
            ("tcp-segmentation-offload".to_owned(), false, false),
            ("tx-x".to_owned(), true, true),
        ];
        assert_eq!(features(text), expected);
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC*|[0-9a-z:,\\[\\] \\\\\n-]{0,400}") {
            let _ = (mounts(&text), swaps(&text), cpu_list(&text), interrupts(&text));
            let _ = (chosen(&text), choices(&text), kernel_version(&text), features(&text));
        }

        #[test]
        fn cpu_lists_round_trip(cpus in prop::collection::btree_set(0_u32..65_536, 0..50)) {
            let text = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(cpu_list(&text), Some(cpus.into_iter().collect()));
        }
    }
}
