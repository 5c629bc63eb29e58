//! StableHLO text of custom calls.

use std::fmt::Write as _;

use super::RegionContext;
use crate::{CustomCall, Node};

/// A call, without the `=` and what precedes it.
pub(super) fn custom_call(context: &RegionContext<'_>, node: &Node, call: &CustomCall) -> String {
    let CustomCall { target, backend_config, api_version, has_side_effect, layouts, .. } = call;
    let mut attributes = format!("api_version = {api_version} : i32");
    match (backend_config.is_empty(), api_version) {
        (true, _) => {}
        (false, 4) => {
            let _ = write!(attributes, ", backend_config = {backend_config}");
        }
        (false, _) => {
            let _ = write!(attributes, ", backend_config = {}", quoted(backend_config));
        }
    }
    if *has_side_effect {
        attributes.push_str(", has_side_effect = true");
    }
    if let Some(layouts) = layouts {
        let (operands, results) = (list(&layouts.operands), list(&layouts.results));
        let _ =
            write!(attributes, ", operand_layouts = [{operands}], result_layouts = [{results}]");
    }
    let results = context.types(node.results());
    let results = if node.results().len() == 1 { results } else { format!("({results})") };
    format!(
        "stablehlo.custom_call @{}({}) {{{attributes}}} : ({}) -> {results}",
        symbol(target),
        context.list(&node.operands),
        context.types(node.operands.iter().copied()),
    )
}

fn list(layouts: &[Vec<usize>]) -> String {
    let layout = |dims: &Vec<usize>| match dims.is_empty() {
        true => "dense<> : tensor<0xindex>".to_owned(),
        false => format!("dense<{dims:?}> : tensor<{}xindex>", dims.len()),
    };
    layouts.iter().map(layout).collect::<Vec<_>>().join(", ")
}

/// A symbol name after `@`, quoted unless MLIR parses it as a bare identifier.
fn symbol(name: &str) -> String {
    let is_word = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || "_$.".contains(c));
    if is_word { name.to_owned() } else { quoted(name) }
}

/// An MLIR string literal; escapes are two hexadecimal digits per byte.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if !b"\"\\".contains(&byte) => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\{byte:02X}");
            }
        }
    }
    out.push('"');
    out
}
