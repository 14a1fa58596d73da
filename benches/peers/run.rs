//! Running a contestant in a process of its own, before everything else on the machine where that is allowed.

use std::path::Path;
use std::process::{Command, Stdio};

/// Linux shares processors between sessions first, so that a nice value alone acts within one's own: a session of its own
/// with a priority of its own. Where it may not, the program runs as any other.
const FIRST: &str = r#"{ echo -15 > /proc/self/autogroup; } 2>/dev/null; exec "$@""#;

/// The program, to be run with priority.
pub fn timed(program: &Path) -> Command {
    let mut probe = Command::new("setsid");
    probe.args(["-w", "bash", "-c", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !probe.status().is_ok_and(|status| status.success()) {
        return Command::new(program);
    }
    let mut command = Command::new("setsid");
    command.args(["-w", "bash", "-c", FIRST, "_"]).arg(program);
    command
}

/// Runs a command and returns what it printed on standard output; if it fails, what it said.
pub fn output(command: &mut Command) -> Result<String, String> {
    let words = || {
        let words = std::iter::once(command_program(command)).chain(command_words(command));
        words.collect::<Vec<_>>().join(" ")
    };
    let called = words();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{called}: {e}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{called}: {}\n{}", output.status, said.trim_end()));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("{called}: {e}"))
}

fn command_program(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

fn command_words(command: &Command) -> impl Iterator<Item = String> {
    command.get_args().map(|word| word.to_string_lossy().into_owned())
}
