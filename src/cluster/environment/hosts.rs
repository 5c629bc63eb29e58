//! Lists of hosts, as Slurm and other launchers write them.

use super::error::EnvironmentError;
use super::probe::invalid;

type Result<T> = std::result::Result<T, EnvironmentError>;

/// Expanded lists are not longer than this; the largest Slurm clusters have a tenth as many nodes.
const MAX_HOSTS: usize = 1 << 17;

/// Expands Slurm's list of nodes: `login,node[1-2,007-009]-ib,rack[1-2]n[1-2]` are 9 nodes. A range
/// is padded with zeros to the width of its lower end. Several brackets in a name are combined, the
/// last one varying fastest.
///
/// # Errors
/// Brackets that do not match, ranges that are not numbers or run backwards, and lists that are too
/// long.
pub(super) fn expand(list: &str, variable: &str) -> Result<Vec<String>> {
    let wrong = || invalid(variable, list, "a list of nodes such as node[1-4],login");
    let mut hosts = vec![];
    for item in split(list) {
        hosts.extend(expand_item(item).ok_or_else(wrong)?);
        if hosts.len() > MAX_HOSTS {
            return Err(wrong());
        }
    }
    if hosts.is_empty() || hosts.iter().any(String::is_empty) {
        return Err(wrong());
    }
    Ok(hosts)
}

/// Splits at commas outside brackets.
fn split(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let is_end = |c: char| {
        match c {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    };
    list.trim().split(is_end).map(str::trim).collect()
}

fn expand_item(item: &str) -> Option<Vec<String>> {
    let Some((prefix, rest)) = item.split_once('[') else {
        return (!item.contains(']')).then(|| vec![item.to_owned()]);
    };
    let (ranges, rest) = rest.split_once(']')?;
    if prefix.contains(']') {
        return None;
    }
    let mut numbers = vec![];
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let (low, high): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if high < low || high - low >= MAX_HOSTS - numbers.len() {
            return None;
        }
        numbers.extend((low..=high).map(|number| format!("{number:0width$}", width = first.len())));
    }
    let suffixes = expand_item(rest)?;
    if numbers.len().checked_mul(suffixes.len())? > MAX_HOSTS {
        return None;
    }
    let with_suffixes = |number: &String| {
        let name = format!("{prefix}{number}");
        suffixes.iter().map(move |suffix| format!("{name}{suffix}")).collect::<Vec<_>>()
    };
    Some(numbers.iter().flat_map(with_suffixes).collect())
}

/// The number for node `position` in Slurm's list of tasks per node: `2(x3),1` are 2, 2, 2 and 1.
pub(super) fn tasks_of_node(list: &str, position: usize) -> Option<usize> {
    let mut first_after = 0usize;
    for item in list.split(',') {
        let (count, repeat) = match item.trim().split_once("(x") {
            Some((count, repeat)) => (count, repeat.strip_suffix(')')?.parse().ok()?),
            None => (item.trim(), 1),
        };
        first_after = first_after.checked_add(repeat)?;
        if position < first_after {
            return count.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_expanded() {
        let rows: [(&str, &[&str]); 8] = [
            ("node1", &["node1"]),
            ("a,b", &["a", "b"]),
            ("gnode[10,20,25,37]", &["gnode10", "gnode20", "gnode25", "gnode37"]),
            ("n[1-2,007-009]", &["n1", "n2", "n007", "n008", "n009"]),
            ("n[9-11]", &["n9", "n10", "n11"]),
            ("n[08-10]-ib,login", &["n08-ib", "n09-ib", "n10-ib", "login"]),
            ("rack[1-2]n[1-2]", &["rack1n1", "rack1n2", "rack2n1", "rack2n2"]),
            ("sh04-10n05", &["sh04-10n05"]),
        ];
        for (list, expected) in rows {
            assert_eq!(expand(list, "X").unwrap(), expected, "{list}");
        }
        let wrong =
            ["", ",", "a,,b", "n[1", "n1]", "n[2-1]", "n[a-b]", "n[]", "n[1-]", "n[1-99999999]"];
        for list in [&wrong[..], &["n[0-99999]m[0-99999]", "n[1-99999999999999999999]"]].concat() {
            let error = expand(list, "SLURM_STEP_NODELIST").unwrap_err().to_string();
            assert!(error.starts_with("SLURM_STEP_NODELIST is"), "{list}: {error}");
        }
    }

    #[test]
    fn tasks_per_node_are_found() {
        let all = |list| (0..5).map_while(|at| tasks_of_node(list, at)).collect::<Vec<_>>();
        assert_eq!(all("2(x3),1"), [2, 2, 2, 1]);
        assert_eq!(all("4"), [4]);
        assert_eq!(all("1,3(x2)"), [1, 3, 3]);
        assert_eq!(all("x"), [0; 0]);
        assert_eq!(all("2(x"), [0; 0]);
    }
}
