//! StableHLO text of ops with regions.

use std::fmt::Write as _;
use std::sync::Arc;

use super::{RegionContext, Writer};
use crate::{DType, Node, Op, Region};

impl Writer {
    /// A `while` with its two regions, without the `=` and what precedes it.
    pub(super) fn while_body(&mut self, context: &RegionContext<'_>, node: &Node) -> String {
        let Op::While { regions, .. } = &node.op else { return String::new() };
        let carried: Vec<_> = node.operands.iter().map(|_| self.fresh()).collect();
        let starts = carried
            .iter()
            .zip(&node.operands)
            .map(|(name, value)| format!("{name} = {}", context.name(*value)))
            .collect::<Vec<_>>();
        // Written to a separate buffer, since the result's name precedes it.
        let before = std::mem::take(&mut self.text);
        let pad = context.pad();
        let types = context.types(node.operands.iter().copied());
        let _ = writeln!(self.text, "stablehlo.while({}) : {types}", starts.join(", "));
        for (word, region) in [("cond", &regions.cond), ("} do", &regions.body)] {
            let _ = writeln!(self.text, "{pad}{word} {{");
            let mut names = vec![String::new(); region.num_values()];
            for (input, name) in region.inputs().iter().zip(&carried) {
                names[input.value.index()].clone_from(name);
            }
            self.region(region, names, context.indent + 2, "stablehlo.return");
        }
        let _ = write!(self.text, "{pad}}}");
        std::mem::replace(&mut self.text, before)
    }

    /// A `case` with its regions, which use the outer names of the operands.
    pub(super) fn case_body(
        &mut self,
        context: &RegionContext<'_>,
        node: &Node,
        branches: &[Arc<Region>],
    ) -> String {
        let (index_value, x) = (node.operands[0], &node.operands[1..]);
        let mut index = context.name(index_value).to_owned();
        if context.graph.ty(index_value).dtype == DType::U32 {
            // StableHLO requires i32. Large values become negative, which is out of range too.
            let signed = self.fresh();
            let code = format!(
                "{signed} = stablehlo.bitcast_convert {index} : (tensor<ui32>) -> tensor<i32>"
            );
            self.line(context, node, &code);
            index = signed;
        }
        let before = std::mem::take(&mut self.text);
        let pad = context.pad();
        let _ = write!(self.text, "\"stablehlo.case\"({index}) (");
        for (i, branch) in branches.iter().enumerate() {
            let _ = writeln!(self.text, "{}{{", if i > 0 { ", " } else { "" });
            let mut names = vec![String::new(); branch.graph.num_values()];
            for (input, value) in branch.graph.inputs().iter().zip(x) {
                context.name(*value).clone_into(&mut names[input.value.index()]);
            }
            self.region(&branch.graph, names, context.indent + 2, "stablehlo.return");
            let _ = write!(self.text, "{pad}}}");
        }
        let results = context.types(node.results());
        let results = if node.results().len() == 1 { results } else { format!("({results})") };
        let _ = write!(self.text, ") : (tensor<i32>) -> {results}");
        std::mem::replace(&mut self.text, before)
    }
}
