//! diskspd front end: executes diskspd 2.2 command lines with fio, and prints diskspd's text and
//! XML reports in the form that existing parsers read.
//!
//! [`mod@parse`] reads the command line, [`translate`] converts it into a fio job with warnings for
//! differences, [`report`] collects the results, [`text`] and [`xml`] print them.

mod distribution;
pub mod parse;
pub mod profile;
pub mod report;
pub mod text;
pub mod translate;
pub mod xml;

pub use parse::{Parsed, parse};
pub use profile::Profile;
pub use report::DiskspdReport;
