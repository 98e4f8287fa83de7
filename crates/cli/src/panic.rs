//! Panic hook: logs a panic with its backtrace and ends the process.
//!
//! A panic is a bug, and Flagstone survives a crash but not half a process: a server that lost one
//! of its cores would accept connections and never answer them. So a panic on any thread aborts the
//! process (SIGABRT, exit status 134 in a shell), in every build profile. Hosts then take another
//! path or reconnect to the restarted server.

use std::backtrace::Backtrace;
use std::panic::PanicHookInfo;
use std::thread;

/// Installs the hook for all threads of this process.
pub fn install_hook() {
    std::panic::set_hook(Box::new(|info| {
        report(info);
        std::process::abort();
    }));
}

/// Writes to the log, which goes to standard error, or directly there if logging is off.
fn report(info: &PanicHookInfo<'_>) {
    let payload = info.payload();
    let message = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)");
    let location = info.location().map(ToString::to_string).unwrap_or_default();
    let thread = thread::current().name().unwrap_or("unnamed").to_owned();
    let backtrace = Backtrace::force_capture();
    if tracing::enabled!(tracing::Level::ERROR) {
        tracing::error!(thread, location, %backtrace, "panic, the process ends: {message}");
    } else {
        eprintln!(
            "thread `{thread}` panicked at {location}, the process ends: {message}\n{backtrace}"
        );
    }
}
