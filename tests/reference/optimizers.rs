//! Ten updates of each optimizer against values computed by optax, and norms that do not depend on
//! how a parameter is sharded. Everything runs in the interpreter, in f64.
//!
//! `reference/optimizers.py` computes the values and records the versions; its output is next to
//! it.

use std::path::Path;

use hlo::{
    Axis, DType, Graph, LeafSpec, Literal, Mesh, Sharding, TensorType, Tree, interpret, trace,
};
use lockstep::config::Config;
use lockstep::optim::{Context, Transformation, from_config};
use serde_json::Value;

const NAMES: [&str; 4] = ["linear.weight", "linear.bias", "head.weight", "still.weight"];

/// The name of a case and its keys of `[optimizer]`. All have `ema_decay = 0.8`.
const CASES: [(&str, &[&str]); 10] = [
    ("sgd", &["name=sgd", "weight_decay=0.05"]),
    ("sgd_nesterov", &["name=sgd", "weight_decay=0.05", "nesterov=true"]),
    ("sgd_uncorrected", &["name=sgd", "weight_decay=0.05", "momentum_correction=false"]),
    ("sgd_clipped", &["name=sgd", "clip_grad_norm=1.5"]),
    ("adam", &["name=adam", "weight_decay=0.05", "beta2=0.98"]),
    ("adamw", &["name=adamw", "weight_decay=0.05", "beta2=0.98"]),
    ("lars", &["name=lars", "trust_coefficient=0.01"]),
    ("lars_decay", &["name=lars", "trust_coefficient=0.01", "weight_decay=0.05"]),
    ("lamb", &["name=lamb", "weight_decay=0.05", "beta2=0.98"]),
    (
        "lamb_all",
        &[
            "name=lamb",
            "weight_decay=0.05",
            "beta2=0.98",
            "trust_exclude=[]",
            "weight_decay_exclude=[]",
        ],
    ),
];

/// A case with parameters that differ: those of `CASES` also run with other parameters.
const GROUPS: (&str, &[&str]) = (
    "groups",
    &[
        "name=adamw",
        "weight_decay=0.05",
        "beta2=0.98",
        "lr_factors={ 'head.*' = 4 }",
        "weight_decays={ 'head.*' = 0.5 }",
        "freeze=['still.*']",
    ],
);

fn optimizer(keys: &[&str]) -> Box<dyn Transformation> {
    let text = "model = { name = \"mlp\" }\n data = { source = \"synthetic\" }\n\
                train = { global_batch = 8, steps = 10 }\n optimizer = { name = \"sgd\" }\n\
                schedule = { name = \"constant\", peak = 0.1 }";
    let sets: Vec<_> = keys.iter().map(|key| format!("optimizer.{key}")).collect();
    from_config(&Config::parse(text, Path::new("a.toml"), &sets).unwrap().optimizer)
}

/// One update on `mesh`: params, state, gradients, number of updates, rate -> params, state, with
/// parameters sharded as `params` specifies.
fn update_graph(
    optimizer: &dyn Transformation,
    params: &Tree<LeafSpec>,
    mesh: Mesh,
) -> (Graph, Tree<TensorType>) {
    optimizer.check(params).unwrap();
    let mut leaves = params.clone().prefixed("params");
    leaves.extend(optimizer.init(params).prefixed("state"));
    let state_types = leaves.map(|_, leaf| leaf.local_type(&mesh).unwrap());
    let (specs, params) = (params, state_types.subtree("params"));
    let graph = trace(mesh, |t| {
        let inputs = state_types.map(|path, ty| t.input(path, ty.clone()));
        let gradients = params.map(|path, ty| {
            let gradient = t.input(format!("gradients.{path}"), ty.clone());
            optimizer.mask_gradient(path, &specs[path], gradient)
        });
        let context = Context {
            params: inputs.subtree("params"),
            specs: specs.clone(),
            num_updates: t.input("num_updates", TensorType::new(DType::U32, &[])),
            learning_rate: t.input("learning_rate", TensorType::new(DType::F32, &[])),
        };
        let mut state = inputs.subtree("state");
        let updates = optimizer.update(gradients, &mut state, &context);
        let next = context.params.map(|path, param| *param + updates[path]);
        let mut outputs = next.prefixed("params");
        outputs.extend(state.prefixed("state"));
        for (path, value) in outputs.iter() {
            t.output_varying(path, *value, value.varying());
        }
    });
    (graph.unwrap(), state_types)
}

#[test]
fn ten_updates_match_optax() {
    let reference = reference();
    let cases = reference["cases"].as_object().unwrap();
    assert_eq!(cases.len(), CASES.len() + 1);
    let dims = |path: &str| -> Vec<usize> {
        numbers(&reference["dims"][path]).iter().map(|dim| *dim as usize).collect()
    };
    let leaf = |path: &&str| ((*path).to_owned(), LeafSpec::replicated(DType::F64, &dims(path)));
    let params: Tree<_> = NAMES.iter().map(leaf).collect();
    for (case, keys) in CASES.into_iter().chain([GROUPS]) {
        let keys = [keys, &["ema_decay=0.8"]].concat();
        let (graph, state_types) = update_graph(&*optimizer(&keys), &params, Mesh::SINGLE);
        let start = |path: &str, ty: &TensorType| match path.strip_prefix("params.") {
            Some(path) => {
                Literal::from_f64(DType::F64, &ty.dims, &numbers(&reference["params"][path]))
            }
            None => Literal::zeros(ty.dtype, &ty.dims),
        };
        let mut state: Vec<_> = state_types.map(start).into_iter().map(|leaf| leaf.1).collect();
        let steps = cases[case].as_array().unwrap();
        assert_eq!(steps.len(), 10);
        for (step, expected) in steps.iter().enumerate() {
            let gradient = |path: &&str| {
                let values = numbers(&reference["gradients"][step][path]);
                vec![Literal::from_f64(DType::F64, &dims(path), &values)]
            };
            let mut inputs: Vec<_> = state.into_iter().map(|leaf| vec![leaf]).collect();
            inputs.extend(NAMES.iter().map(gradient));
            inputs.push(vec![Literal::scalar(step as u32)]);
            inputs.push(vec![Literal::scalar(numbers(&reference["rates"])[step] as f32)]);
            let outputs = interpret(&graph, &inputs).unwrap();
            state = outputs.into_iter().map(|mut replicas| replicas.remove(0)).collect();
            for (path, leaf) in state_types.paths().zip(&state) {
                let (tree, name) = match path.strip_prefix("state.ema.") {
                    Some(name) => ("ema", name),
                    None => ("params", path.strip_prefix("params.").unwrap_or("")),
                };
                if name.is_empty() {
                    continue;
                }
                let expected = numbers(&expected[tree][name]);
                for (got, expected) in leaf.to_f64().iter().zip(&expected) {
                    let close = (got - expected).abs() <= 1e-9 * expected.abs().max(1e-3);
                    assert!(close, "{case}, step {step}, {tree}.{name}: {got}, not {expected}");
                }
            }
        }
    }
}

/// A parameter sharded over eight replicas gets the same update as the whole one: norms, trust
/// ratios and the global norm are summed over the axes of its type.
#[test]
fn norms_and_trust_ratios_are_the_same_on_1_and_8_replicas() {
    const ROWS: usize = 8;
    let values = |seed: usize| -> Vec<f64> {
        (0..ROWS * 4).map(|index| ((index * 37 + seed * 11) % 23) as f64 / 7.0 - 1.5).collect()
    };
    for (case, keys) in CASES {
        let keys = [keys, &["clip_grad_norm=0.75"]].concat();
        let update = |num_replicas: usize| -> Vec<f64> {
            let rows = ROWS / num_replicas;
            let sharding = match num_replicas {
                1 => Sharding::replicated(2),
                _ => Sharding::leading(2, Axis::Data.into()),
            };
            let leaf = LeafSpec::new(DType::F64, &[ROWS, 4], sharding);
            let params = Tree::from_iter([("w".to_owned(), leaf)]);
            let (graph, state_types) =
                update_graph(&*optimizer(&keys), &params, Mesh::data(num_replicas));
            let cut = |values: Vec<f64>| -> Vec<Literal> {
                let pieces = values.chunks(rows * 4);
                pieces.map(|piece| Literal::from_f64(DType::F64, &[rows, 4], piece)).collect()
            };
            let mut inputs = vec![cut(values(1))];
            let zeros = vec![Literal::zeros(DType::F64, &[rows, 4]); num_replicas];
            inputs.extend(vec![zeros; state_types.len() - 1]);
            inputs.push(cut(values(2)));
            inputs.push(vec![Literal::scalar(0u32); num_replicas]);
            inputs.push(vec![Literal::scalar(0.25f32); num_replicas]);
            let outputs = interpret(&graph, &inputs).unwrap();
            outputs[0].iter().flat_map(Literal::to_f64).collect()
        };
        let whole = update(1);
        assert_ne!(whole, values(1), "{case} changes nothing");
        for (whole, cut) in whole.iter().zip(update(8)) {
            assert!((whole - cut).abs() <= 1e-12 * whole.abs().max(1.0), "{case}: {whole} {cut}");
        }
    }
}

/// The rows of a stacked leaf get the updates of parameters of their own: norms are taken and
/// patterns matched row by row.
#[test]
fn rows_of_a_stack_are_updated_like_parameters_of_their_own() {
    let values = |row: usize, seed: usize| -> Vec<f64> {
        let value =
            |i: usize| ((i * 37 + seed * 11 + row * 5) % 23) as f64 / 7.0 * (row + 1) as f64 - 1.5;
        (0..6).map(value).collect()
    };
    let one_row = "exclude=['blocks.1.*']";
    let (decay, trust) = (format!("weight_decay_{one_row}"), format!("trust_{one_row}"));
    let others = [
        ("lamb, a row not decayed", vec!["name=lamb", "weight_decay=0.05", &decay]),
        ("lamb, a row not adapted", vec!["name=lamb", "weight_decay=0.05", &trust]),
        ("lars, a row not decayed", vec!["name=lars", "weight_decay=0.05", &decay]),
        ("lars, a row not adapted", vec!["name=lars", "weight_decay=0.05", &trust]),
        ("sgd, a row not decayed", vec!["name=sgd", "weight_decay=0.05", &decay]),
        ("adamw, rates fall with the layer", vec!["name=adamw", "layer_decay=0.5"]),
        ("adamw, a row with its rate", vec!["name=adamw", "lr_factors={ 'blocks.1.*' = 3 }"]),
        ("lars, a row with its decay", vec!["name=lars", "weight_decays={ 'blocks.1.*' = 0.5 }"]),
        ("lamb, a frozen row", vec!["name=lamb", "weight_decay=0.05", "freeze=['blocks.1.*']"]),
    ];
    let cases = CASES.map(|(name, keys)| (name, keys.to_vec()));
    for (case, mut keys) in cases.into_iter().chain(others) {
        keys.extend(["clip_grad_norm=0.75", "ema_decay=0.8"]);
        // A matrix, and a vector: masks of matrices exclude the vector, although its stack is a
        // matrix.
        for dims in [&[2, 3][..], &[6]] {
            let leaf = LeafSpec::replicated(DType::F64, dims);
            let row = |i: usize| (format!("blocks.{i}.w"), leaf.clone());
            let apart: Tree<_> = (0..3).map(row).collect();
            let stack = Tree::from_iter([("blocks.*.w".to_owned(), leaf.clone().stacked(&[3]))]);
            let update = |params: &Tree<LeafSpec>| -> Vec<Vec<f64>> {
                let (graph, state) = update_graph(&*optimizer(&keys), params, Mesh::SINGLE);
                let literals = |seed: usize| {
                    let rows: Vec<_> = (0..3).map(|row| values(row, seed)).collect();
                    let all = if params.len() == 1 { vec![rows.concat()] } else { rows };
                    let dims = params.values().map(|spec| &spec.dims);
                    let literal = |(values, dims): (&Vec<f64>, &Vec<usize>)| {
                        vec![Literal::from_f64(DType::F64, dims, values)]
                    };
                    all.iter().zip(dims).map(literal).collect::<Vec<_>>()
                };
                let mut inputs = literals(1);
                let zeros = state.values().skip(params.len());
                inputs.extend(zeros.map(|ty| vec![Literal::zeros(ty.dtype, &ty.dims)]));
                inputs.extend(literals(2));
                inputs.push(vec![Literal::scalar(0u32)]);
                inputs.push(vec![Literal::scalar(0.25f32)]);
                let outputs = interpret(&graph, &inputs).unwrap();
                // A stack with a row that is not trained has state for it.
                let num_leaves = if case.contains("frozen") { 1 } else { usize::MAX };
                let leaves = outputs.chunks(params.len()).take(num_leaves);
                leaves.map(|leaf| leaf.iter().flat_map(|x| x[0].to_f64()).collect()).collect()
            };
            let (expected, got) = (update(&apart), update(&stack));
            assert_eq!(got.len(), expected.len(), "{case}");
            for (got, expected) in got.iter().flatten().zip(expected.iter().flatten()) {
                let close = (got - expected).abs() <= 1e-12 * expected.abs().max(1.0);
                assert!(close, "{case}, {dims:?}: {got}, not {expected}");
            }
        }
    }
}

#[test]
fn a_pattern_that_matches_no_parameter_is_rejected() {
    let leaf = LeafSpec::replicated(DType::F32, &[2, 2]);
    let params = Tree::from_iter([("head.weight".to_owned(), leaf)]);
    for keys in [
        ["name=sgd", "weight_decay_exclude=['*.wieght']"],
        ["name=adamw", "weight_decay_exclude=['*.wieght']"],
        ["name=lars", "trust_exclude=['*.wieght']"],
        ["name=lamb", "trust_exclude=['*.wieght']"],
    ] {
        let error = optimizer(&keys).check(&params).unwrap_err().to_string();
        let key = keys[1].split('=').next().unwrap();
        assert!(error.contains(&format!("optimizer.{key}: the pattern \"*.wieght\"")), "{error}");
        assert!(error.contains("nearest are `head.weight`"), "{error}");
    }
}

/// The errors of `lr_factors`, `weight_decays` and `freeze` that fit no model.
#[test]
fn patterns_that_contradict_each_other_are_rejected() {
    let leaf = |path: &str| (path.to_owned(), LeafSpec::replicated(DType::F32, &[2, 2]));
    let params = Tree::from_iter(["head.weight", "head.bias"].map(leaf));
    for (keys, expected) in [
        ("lr_factors={ 'haed.*' = 2 }", "lr_factors: the pattern \"haed.*\" matches no parameter"),
        ("weight_decays={ '*.biass' = 0 }", "weight_decays: the pattern \"*.biass\" matches no"),
        ("freeze=['embed.*']", "freeze: the pattern \"embed.*\" matches no parameter"),
        ("freeze=['*']", "freeze: its patterns match every parameter"),
        (
            "lr_factors={ '*.bias' = 2, 'head.*' = 3 }",
            "lr_factors: `head.bias` matches \"*.bias\" and \"head.*\", which have different \
             numbers",
        ),
    ] {
        let error = optimizer(&["name=sgd", keys]).check(&params).unwrap_err().to_string();
        assert!(error.contains(&format!("optimizer.{expected}")), "{error}");
    }
    let same = optimizer(&["name=sgd", "lr_factors={ '*.bias' = 2, 'head.b*' = 2 }"]);
    same.check(&params).unwrap();
}

fn reference() -> Value {
    serde_json::from_str(include_str!("optimizers.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    value.as_array().unwrap_or_else(|| panic!("{value} is no list")).iter().map(number).collect()
}
