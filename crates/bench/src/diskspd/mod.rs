//! diskspd's command line, done with fio: diskspd 2.2's flags with their meaning and defaults, and
//! its text and XML reports in the form that existing parsers read.
//!
//! [`parse`] reads the command line, [`translate`] makes a job of it and says what is not the same,
//! [`report`] gathers what came of it, [`text`] and [`xml`] write it.

mod distribution;
pub mod parse;
pub mod profile;
pub mod report;
pub mod text;
pub mod translate;
pub mod xml;

pub use parse::{Parsed, parse};
pub use profile::Profile;
pub use report::Report;
