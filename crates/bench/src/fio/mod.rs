//! fio: job options, execution, output.

pub mod arguments;
pub(crate) mod job_file;
pub mod options;
pub mod output;
pub mod phases;
pub mod program;
pub mod series;

pub use program::Fio;
