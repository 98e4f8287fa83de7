//! Combinations of diskspd's flags: joint meaning and contradictions.

use super::{Parsed, Reader};
use crate::diskspd::profile::{Affinity, Cache, DiskspdAccess};
use crate::limits::TARGETS;

impl Reader {
    pub(super) fn finish(mut self) -> Result<Parsed, String> {
        if self.profile.targets.is_empty() {
            return Err(
                "a target is missing: a file or a device, after the flags (--help explains \
                        the command)"
                    .to_owned(),
            );
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
            profile.total_outstanding = true;
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
            profile.access = DiskspdAccess::Random { align_bytes, percent };
        } else {
            let stride_bytes = self.stride.flatten();
            profile.access = DiskspdAccess::Sequential { stride_bytes };
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
