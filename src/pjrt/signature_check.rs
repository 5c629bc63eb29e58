//! Checks that a program's text has the declared signature.
//!
//! A launch of several replicas that the plugin rejects leaves its client hanging forever, and an
//! argument that only the text donates would be freed while its owner still uses it. So arguments
//! are checked against the declared signature before every launch, and the signature against the
//! text once.

use hlo::{DType, Program};

use super::{Error, Result};

/// Compares the arguments of `@main`, their donation, and the replica count with the declaration.
/// (Results are compared with what the compiled executable reports.)
pub(super) fn check_inputs(program: &Program) -> Result<()> {
    let differ = |what, reason: String| Err(Error::SignatureMismatch { what, reason });
    let text = &without_comments(&program.text);
    check_mode(text)?;
    if let Some(found) = number_after(text, "mhlo.num_replicas =")
        && found != program.replicas_per_process()
    {
        return differ(
            "replicas",
            format!("the text says {found}, the declaration {}", program.replicas_per_process()),
        );
    }
    let Some(arguments) = main_arguments(text) else {
        return differ("inputs", "the text has no func.func @main".into());
    };
    if arguments.len() != program.inputs.len() {
        return differ(
            "inputs",
            format!(
                "@main takes {}, the declaration has {}",
                arguments.len(),
                program.inputs.len()
            ),
        );
    }
    for (argument, input) in arguments.iter().zip(&program.inputs) {
        let Some((dtype, dims)) = tensor_type(argument) else {
            return differ("inputs", format!("{} has an unknown type: {argument}", input.name));
        };
        if dtype != input.ty.dtype || dims != input.ty.dims {
            return differ(
                "inputs",
                format!(
                    "{} is {dtype}{dims:?} in the text and {} in the declaration",
                    input.name, input.ty
                ),
            );
        }
        let donated =
            argument.contains("tf.aliasing_output") || argument.contains("jax.buffer_donor");
        if donated != input.donated {
            let is = |donated| if donated { "donated" } else { "kept" };
            return differ(
                "inputs",
                format!(
                    "{} is {} in the text and {} in the declaration",
                    input.name,
                    is(donated),
                    is(input.donated)
                ),
            );
        }
    }
    Ok(())
}

/// Programs run as replicas with one partition. In this mode XLA's CPU compiler aborts the process
/// on a collective with a device channel, and `stablehlo.rng` draws different numbers on every
/// replica.
fn check_mode(text: &str) -> Result<()> {
    let forbidden = |reason: &str| Err(Error::ForbiddenProgram { reason: reason.into() });
    if number_after(text, "mhlo.num_partitions =").is_some_and(|partitions| partitions != 1) {
        return forbidden("it has more than one partition; use replicas instead");
    }
    if text.contains("#stablehlo.channel_handle") {
        return forbidden("it has a collective with a channel handle; replica groups need none");
    }
    if text.contains("stablehlo.rng ") || text.contains("\"stablehlo.rng\"") {
        return forbidden(
            "stablehlo.rng draws different numbers on every replica; use a counter-based generator",
        );
    }
    Ok(())
}

/// Comments hold leaf names, which may be anything.
fn without_comments(text: &str) -> String {
    let code = text.lines().map(|line| line.split_once(" //").map_or(line, |(code, _)| code));
    code.collect::<Vec<_>>().join("\n")
}

/// The arguments of `@main`, each with its name, type and attributes.
fn main_arguments(text: &str) -> Option<Vec<&str>> {
    let start = text.find("@main(")? + "@main(".len();
    let mut arguments = Vec::new();
    let (mut depth, mut from, mut quoted) = (0usize, start, false);
    for (at, byte) in text.bytes().enumerate().skip(start) {
        match byte {
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'(' | b'{' | b'[' | b'<' => depth += 1,
            b')' if depth == 0 => {
                if !text[from..at].trim().is_empty() {
                    arguments.push(text[from..at].trim());
                }
                return Some(arguments);
            }
            b')' | b'}' | b']' | b'>' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                arguments.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    None
}

/// `tensor<8x4xf32>` inside `argument`.
fn tensor_type(argument: &str) -> Option<(DType, Vec<usize>)> {
    let inside = argument.split_once("tensor<")?.1.split_once('>')?.0;
    let mut parts: Vec<&str> = inside.split('x').collect();
    let element = parts.pop()?;
    let dtype = DType::ALL.into_iter().find(|dtype| dtype.mlir() == element)?;
    let dims = parts.into_iter().map(|dim| dim.parse().ok()).collect::<Option<_>>()?;
    Some((dtype, dims))
}

fn number_after(text: &str, key: &str) -> Option<usize> {
    let rest = text.split_once(key)?.1.trim_start();
    rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_at_commas_of_the_outermost_level() {
        let text = r#"module { func.func public @main(%arg0: tensor<8x4xf32> {a = "x, )", tf.aliasing_output = 0 : i32} loc("f.rs":1:2), %arg1: tensor<ui8>) -> (tensor<f32>) { } }"#;
        let arguments = main_arguments(text).unwrap();
        assert_eq!(arguments.len(), 2);
        assert_eq!(tensor_type(arguments[0]), Some((DType::F32, vec![8, 4])));
        assert_eq!(tensor_type(arguments[1]), Some((DType::U8, vec![])));
        assert_eq!(main_arguments("func.func @main() {").unwrap().len(), 0);
        assert_eq!(main_arguments("func.func @other() {"), None);
    }

    #[test]
    fn leaf_names_in_comments_are_not_code() {
        let text = "func.func @main(\n  %arg0: tensor<f32>, // x, of (many\n  %arg1: tensor<ui8> \
                    // y\n) {";
        let code = without_comments(text);
        assert_eq!(main_arguments(&code).unwrap(), ["%arg0: tensor<f32>", "%arg1: tensor<ui8>"]);
    }
}
