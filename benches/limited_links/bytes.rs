//! Bytes that processes send in a step, by the counters of their links.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::links::{LimitedLinks, Outcome};
use crate::{Speed, run, steps};

/// Fast enough for the counters to be read soon.
const SPEED: Speed = Speed { megabits: 200.0, delay_ms: 0.0 };
/// What is sent in so many steps more is that of the steps alone.
const NUM_STEPS: [usize; 2] = [5, 25];

/// A table of the ways to send gradients.
pub fn table(program: &Path, num_processes: usize) -> Outcome<String> {
    let links = LimitedLinks::new(num_processes, SPEED.link())?;
    let mut text = format!(
        "| {num_processes} processes | sent by each in a step | of f32 |\n|---|---:|---:|\n"
    );
    let mut in_f32 = None;
    for (name, sets) in steps::ways_to_send(num_processes) {
        let mut sent = [0.0; 2];
        for (sent, steps) in sent.iter_mut().zip(NUM_STEPS) {
            let before = sent_bytes(&links, num_processes)?;
            run(program, &links, num_processes, &steps::bench(&sets, &steps.to_string()))?;
            *sent = sent_bytes(&links, num_processes)? - before;
        }
        let all = (sent[1] - sent[0]) / (NUM_STEPS[1] - NUM_STEPS[0]) as f64;
        let own = all / num_processes as f64;
        let share = 100.0 * own / *in_f32.get_or_insert(own);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "| {name} | {:.0} KiB | {share:.1} % |", own / 1024.0);
        eprintln!("{}", text.lines().last().unwrap_or_default());
    }
    Ok(text)
}

/// Of all processes, with the headers of packets.
fn sent_bytes(links: &LimitedLinks, num_processes: usize) -> Outcome<f64> {
    let mut sum = 0.0;
    for process in 0..num_processes {
        let on = links.on(process);
        let mut command = Command::new(&on[0]);
        command.args(&on[1..]).args(["cat", "/sys/class/net/port/statistics/tx_bytes"]);
        let output = command.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        sum += String::from_utf8(output.stdout)?.trim().parse::<f64>()?;
    }
    Ok(sum)
}
