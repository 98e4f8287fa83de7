//! fio: what it is asked, how it is run, and what it says.

pub mod arguments;
pub mod options;
pub mod output;
pub mod phases;
pub mod program;
pub mod series;

pub use program::Fio;
