//! Confirmation of data loss: a person on a terminal types yes, a script passes `--yes`.

use std::io::{self, IsTerminal as _};

use crate::output::complain;

/// Asks a person to confirm the data loss. Without a terminal the answer is no.
pub(crate) fn is_agreed(outcome: &str, data_loss: &str) -> bool {
    complain(&format!("would be done: {outcome}\ndata loss: {data_loss}\n"));
    if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
        // No command is printed that could be pasted: it would be of another server or pool.
        complain(
            "flagstone: error: nothing was done: to confirm, repeat this command with --yes\n",
        );
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
