//! StableHLO text of custom calls.

use std::fmt::Write as _;

use super::RegionContext;
use crate::{CustomCall, Layouts, Node, ValueId};

/// A call of a function of the process, with row-major operands and results of the types `results`,
/// without the `=` and what precedes it. `attributes` is an MLIR dictionary.
pub(super) fn host_call(
    context: &RegionContext<'_>,
    node: &Node,
    target: &str,
    attributes: &str,
    has_side_effect: bool,
    results: &str,
) -> String {
    let row_major = |value: ValueId| (0..context.graph.ty(value).rank()).rev().collect();
    // Without layouts a backend may choose others than row-major, and does not inform the handler.
    let layouts = Layouts {
        operands: node.operands.iter().map(|operand| row_major(*operand)).collect(),
        results: node.results().map(row_major).collect(),
    };
    let call = CustomCall {
        backend_config: attributes.to_owned(),
        api_version: 4,
        has_side_effect,
        layouts: Some(layouts),
        ..CustomCall::new(target, vec![])
    };
    write(context, node, &call, results)
}

/// A call, without the `=` and what precedes it.
pub(super) fn custom_call(context: &RegionContext<'_>, node: &Node, call: &CustomCall) -> String {
    write(context, node, call, &context.types(node.results()))
}

fn write(context: &RegionContext<'_>, node: &Node, call: &CustomCall, results: &str) -> String {
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
    let results =
        if node.results().len() == 1 { results.to_owned() } else { format!("({results})") };
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
