//! The figures of each class or label of an evaluation, and which classes are taken for others.

use serde_json::{Value, json};

use crate::observe::EvalCounts;

/// Most classes of a confusion matrix on the terminal; `--json` has all.
const MAX_SHOWN: usize = 20;
/// Most columns of the terminal for names above it.
const MAX_MATRIX_WIDTH: usize = 60;
/// Most characters of a name in it.
const NAME_WIDTH: usize = 16;

/// Figures of all classes or labels.
pub struct ClassTable {
    /// One for each.
    pub rows: Vec<ClassRow>,
    /// Examples of each class (rows) that are predicted as each class (columns); `None` for labels.
    pub confusion: Option<Vec<Vec<u64>>>,
}

/// Figures of a class or a label, as scikit-learn's `classification_report` has them.
pub struct ClassRow {
    name: String,
    precision: f64,
    recall: f64,
    f1: f64,
    num_examples: u64,
}

impl ClassTable {
    /// What an evaluation has counted; `None` if these are no classes. Classes without a name are
    /// called by their numbers.
    pub fn of(counts: &EvalCounts, names: &[String]) -> Option<Self> {
        let name = |index: usize| names.get(index).cloned().unwrap_or_else(|| index.to_string());
        match counts {
            EvalCounts::None => None,
            EvalCounts::Labels(labels) => {
                let rows = labels.iter().enumerate();
                let rows = rows.map(|(index, counts)| ClassRow::new(name(index), *counts));
                Some(Self { rows: rows.collect(), confusion: None })
            }
            EvalCounts::Classes(confusion) => {
                let row = |class: usize| {
                    let predicted = confusion.iter().map(|row| row[class]).sum();
                    let there = confusion[class].iter().sum();
                    ClassRow::new(name(class), [confusion[class][class], predicted, there])
                };
                let whole = |row: &Vec<f64>| row.iter().map(|count| *count as u64).collect();
                Some(Self {
                    rows: (0..confusion.len()).map(row).collect(),
                    confusion: Some(confusion.iter().map(whole).collect()),
                })
            }
        }
    }

    /// Both as text.
    pub fn lines(&self) -> Vec<String> {
        if self.rows.len() > MAX_SHOWN {
            return vec![format!("(--json has the figures of all {} classes)", self.rows.len())];
        }
        let width = self.rows.iter().map(|row| shown(&row.name).chars().count()).max();
        let width = width.unwrap_or(0).max("actual".len());
        let mut lines = vec![format!(
            "\n{:width$}  precision  recall      f1  examples",
            if self.confusion.is_some() { "class" } else { "label" }
        )];
        lines.extend(self.rows.iter().map(|row| {
            let ClassRow { precision, recall, f1, num_examples, .. } = row;
            let name = shown(&row.name);
            format!("{name:width$}  {precision:>9.4}  {recall:>6.4}  {f1:>6.4}  {num_examples:>8}")
        }));
        let Some(confusion) = &self.confusion else { return lines };
        let most = confusion.iter().flatten().max().map_or(0, |count| count.to_string().len());
        let names = || self.rows.iter().map(|row| shown(&row.name));
        let longest = names().map(|name| name.chars().count()).max().unwrap_or(0);
        // With long names or many classes, columns have numbers.
        let by_name = self.rows.len() * (longest.max(most) + 2) <= MAX_MATRIX_WIDTH;
        let heads: Vec<_> = match by_name {
            true => names().collect(),
            false => (1..=confusion.len()).map(|column| column.to_string()).collect(),
        };
        let cell = heads.iter().map(|head| head.chars().count()).max().unwrap_or(0).max(most) + 1;
        let row_head = |index: usize, name: &str| match by_name {
            true => format!("{name:width$}"),
            false => format!("{name:width$} {:>3}", index + 1),
        };
        let head: String = heads.iter().map(|head| format!(" {head:>cell$}")).collect();
        let blank = " ".repeat(row_head(0, "").chars().count());
        lines.push(format!("\n{blank} predicted"));
        lines.push(format!("{:<1$}{head}", "actual", blank.len()));
        for (index, (name, counts)) in names().zip(confusion).enumerate() {
            let cells: String = counts.iter().map(|count| format!(" {count:>cell$}")).collect();
            lines.push(format!("{}{cells}", row_head(index, &name)));
        }
        lines
    }
}

impl ClassRow {
    /// From how often it is predicted correctly, is predicted, and is there. Without a divisor, a
    /// figure is 0.
    fn new(name: String, [correct, predicted, there]: [f64; 3]) -> Self {
        let share = |of: f64, by: f64| if by == 0.0 { 0.0 } else { of / by };
        Self {
            name,
            precision: share(correct, predicted),
            recall: share(correct, there),
            f1: share(2.0 * correct, predicted + there),
            num_examples: there as u64,
        }
    }

    /// The same as JSON.
    pub fn json(&self) -> Value {
        let Self { name, precision, recall, f1, num_examples } = self;
        json!({ "name": name, "precision": precision, "recall": recall, "f1": f1,
            "num_examples": num_examples })
    }
}

fn shown(name: &str) -> String {
    match name.chars().count() > NAME_WIDTH {
        true => name.chars().take(NAME_WIDTH - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of scikit-learn 1.9.1's `classification_report`.
    #[test]
    fn figures_and_matrix() {
        let counts = EvalCounts::Classes(vec![vec![2.0, 1.0], vec![2.0, 3.0]]);
        let table = ClassTable::of(&counts, &["no".to_owned(), "yes".to_owned()]).unwrap();
        let expected = "\nclass   precision  recall      f1  examples
no         0.5000  0.6667  0.5714         3
yes        0.7500  0.6000  0.6667         5

       predicted
actual   no  yes
no        2    1
yes       2    3";
        assert_eq!(table.lines().join("\n"), expected);
        assert_eq!(table.rows[1].json()["recall"], 0.6);
        assert!(ClassTable::of(&EvalCounts::None, &[]).is_none());
        let labels = ClassTable::of(&EvalCounts::Labels(vec![[1.0, 2.0, 4.0]]), &[]).unwrap();
        assert_eq!((labels.rows[0].precision, labels.rows[0].recall), (0.5, 0.25));
    }
}
