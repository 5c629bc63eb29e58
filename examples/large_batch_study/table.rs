//! The results as a table.

use super::{BASE_BATCH, Cell, FACTORS, SEEDS};

/// A Markdown table per task, with a row per arm and a column per batch: test error in percent with
/// its standard deviation over seeds, and the last training loss.
pub fn markdown(cells: &[Cell]) -> String {
    let mut text = String::new();
    let mut task = "";
    let mut arm = "";
    for cell in cells {
        if cell.task != task {
            let batches: Vec<_> =
                FACTORS.iter().map(|factor| format!("batch {}", BASE_BATCH * factor)).collect();
            text += &format!("{}**{}**: ", if task.is_empty() { "" } else { "\n\n" }, cell.task);
            text += &format!("test error in %, mean and deviation of {} seeds ", SEEDS.len());
            text += &format!("(last training loss)\n\n| | {} |\n", batches.join(" | "));
            text += &format!("|---|{}", "---|".repeat(FACTORS.len()));
            (task, arm) = (cell.task, "");
        }
        if cell.arm != arm {
            text += &format!("\n| {} |", cell.arm);
            arm = cell.arm;
        }
        let (mean, deviation) = cell.error();
        let loss = cell.loss();
        text += &format!(" {:.1} ± {:.1} ({loss:.3}) |", 100.0 * mean, 100.0 * deviation);
    }
    text + "\n"
}
