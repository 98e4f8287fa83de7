//! Failure of a mirrored volume to open or to take a role.

/// Failure to open or start a mirrored volume.
pub(crate) struct MirrorFailure {
    /// The reason, with advice.
    pub(crate) problem: String,
    /// The failure is transient: a retry may succeed.
    pub(crate) may_pass: bool,
}

impl From<String> for MirrorFailure {
    fn from(problem: String) -> MirrorFailure {
        MirrorFailure { problem, may_pass: false }
    }
}
