//! Confirmation of data loss: a person on a terminal types yes, a script passes `--yes`.

use std::io::{self, IsTerminal as _};

use crate::output::complain;

/// Asks a person to confirm the data loss. Without a terminal the answer is no. `command` is what
/// to run with `--yes`.
pub(crate) fn is_agreed(command: &str, outcome: &str, data_loss: &str) -> bool {
    complain(&format!("{outcome}\ndata loss: {data_loss}\n"));
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        complain(&format!(
            "flagstone: error: nothing was done: confirm with `flagstone {command} --yes`\n"
        ));
        return false;
    }
    complain("continue? Type yes: ");
    let mut answer = String::new();
    let agreed = io::stdin().read_line(&mut answer).is_ok() && answer.trim() == "yes";
    if !agreed {
        complain("nothing was done\n");
    }
    agreed
}
