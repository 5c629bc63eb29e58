//! The table of models: what can stand under `[model] name = ".."`.
//!
//! To add a model, write its file with a configuration struct that implements [`Architecture`], and
//! add its row to the table at the end of this file. Configuration, command line and rules ask
//! [`ModelConfig`].
//!
//! ```
//! use models::ModelConfig;
//! use models::mlp::MlpConfig;
//!
//! let config = ModelConfig::Mlp(MlpConfig { hidden: vec![32], ..MlpConfig::default() });
//! assert_eq!(config.name(), "mlp");
//! let model = config.build(10);
//! assert!(model.check_example(hlo::DType::F32, &[64], 10).is_ok());
//! ```

use std::path::{Path, PathBuf};

use hlo::TensorType;
use schemars::{Schema, SchemaGenerator};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use crate::encoder::{BertConfig, DistilBertConfig};
use crate::gpt::GptConfig;
use crate::mlp::MlpConfig;
use crate::model_keys::{Architecture, InvalidValue};
use crate::resnet::ResNetConfig;
use crate::{Counterpart, Model, Objective};

/// Declares [`ModelConfig`] from the table below.
macro_rules! architectures {
    ($($(#[$doc:meta])* $name:literal => $Variant:ident($Config:ty),)*) => {
        /// `[model]`: the architecture, picked by `name`, and its keys.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[serde(tag = "name")]
        pub enum ModelConfig {
            $($(#[$doc])* #[serde(rename = $name)] $Variant($Config),)*
        }

        impl ModelConfig {
            /// The key that picks the architecture.
            pub const TAG: &'static str = "name";
            /// The name of each architecture.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// The architecture's name.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$Variant(_) => $name,)* }
            }

            /// Reads the keys of the architecture called `name`; `name` itself is not among them.
            ///
            /// # Errors
            /// An unknown name, and what the deserializer refuses.
            pub fn deserialize<'de, D: Deserializer<'de>>(
                name: &str,
                keys: D,
            ) -> Result<Self, D::Error> {
                match name {
                    $($name => <$Config>::deserialize(keys).map(Self::$Variant),)*
                    other => Err(D::Error::unknown_variant(other, Self::NAMES)),
                }
            }

            /// The JSON Schema of the keys of the architecture called `name`; `None` for an unknown
            /// name.
            ///
            /// Extensions: `values` and `unit` say in words what a key takes, `absent` or `depends`
            /// what holds if it is not set, and `resume` whether another value is still the `same`
            /// run, or a reason to `warn`, for a run that is continued.
            pub fn schema(name: &str, generator: SchemaGenerator) -> Option<Schema> {
                match name {
                    $($name => Some(generator.into_root_schema_for::<$Config>()),)*
                    _ => None,
                }
            }

            /// [`Architecture::build`].
            pub fn build(&self, objective: impl Into<Objective>) -> Box<dyn Model> {
                match self { $(Self::$Variant(config) => config.build(objective.into()),)* }
            }

            /// [`Architecture::example`].
            pub fn example(&self) -> Vec<(&'static str, TensorType)> {
                match self { $(Self::$Variant(config) => config.example(),)* }
            }

            /// [`Architecture::check`].
            pub fn check(&self) -> Vec<InvalidValue> {
                match self { $(Self::$Variant(config) => config.check(),)* }
            }

            /// [`Architecture::resolve`].
            pub fn resolve(&mut self) {
                match self { $(Self::$Variant(config) => config.resolve(),)* }
            }

            /// [`Architecture::remat`].
            pub fn remat(&self) -> Option<bool> {
                match self { $(Self::$Variant(config) => config.remat(),)* }
            }

            /// [`Architecture::check_tensor_replicas`].
            ///
            /// # Errors
            /// As there.
            pub fn check_tensor_replicas(&self, num_replicas: usize) -> Result<(), String> {
                match self {
                    $(Self::$Variant(config) => config.check_tensor_replicas(num_replicas),)*
                }
            }

            /// [`Architecture::num_blocks`].
            pub fn num_blocks(&self) -> Option<usize> {
                match self { $(Self::$Variant(config) => config.num_blocks(),)* }
            }

            /// [`Architecture::batch_norm_group`].
            pub fn batch_norm_group(&self) -> Option<usize> {
                match self { $(Self::$Variant(config) => config.batch_norm_group(),)* }
            }

            /// [`Architecture::counterpart`].
            pub fn counterpart(&self) -> Option<Counterpart> {
                match self { $(Self::$Variant(config) => config.counterpart(),)* }
            }

            /// [`Architecture::context`].
            pub fn context(&self) -> Option<usize> {
                match self { $(Self::$Variant(config) => config.context(),)* }
            }

            /// [`Architecture::vocabulary`].
            pub fn vocabulary(&self) -> Option<usize> {
                match self { $(Self::$Variant(config) => config.vocabulary(),)* }
            }

            /// [`Architecture::folder`].
            pub fn folder(&self) -> Option<&Path> {
                match self { $(Self::$Variant(config) => config.folder(),)* }
            }

            /// [`Architecture::folder_mut`].
            pub fn folder_mut(&mut self) -> Option<&mut PathBuf> {
                match self { $(Self::$Variant(config) => config.folder_mut(),)* }
            }

            /// [`Architecture::label_smoothing`].
            pub fn label_smoothing(&self) -> Option<f64> {
                match self { $(Self::$Variant(config) => config.label_smoothing(),)* }
            }
        }
    };
}

architectures! {
    /// Fully connected layers.
    "mlp" => Mlp(MlpConfig),
    /// Residual networks for images.
    "resnet" => ResNet(ResNetConfig),
    /// A decoder-only transformer.
    "gpt" => Gpt(GptConfig),
    /// An encoder-only transformer.
    "bert" => Bert(BertConfig),
    /// The same with half the layers.
    "distilbert" => DistilBert(DistilBertConfig),
}

impl ModelConfig {
    /// `true` if examples are images, `[channels, height, width]`.
    pub fn takes_images(&self) -> bool {
        self.example().first().is_some_and(|(_, x)| x.dims.len() == 3)
    }
}

#[cfg(test)]
mod tests {
    use hlo::{AxisSet, DType, Mesh, trace};
    use schemars::generate::SchemaSettings;
    use serde::de::value::{Error, MapDeserializer};

    use super::*;
    use crate::{Batch, MAX_LAYERS, Precision, Scope};

    #[test]
    fn every_architecture_builds_a_model_that_takes_its_own_example() {
        for name in ModelConfig::NAMES {
            let mut settings = SchemaSettings::default();
            settings.inline_subschemas = true;
            let schema = ModelConfig::schema(name, settings.into_generator());
            assert!(schema.is_some_and(|schema| schema.get("properties").is_some()));
            let keys = MapDeserializer::<_, Error>::new(std::iter::empty::<(&str, usize)>());
            let mut config = ModelConfig::deserialize(name, keys).unwrap();
            assert_eq!(config.name(), *name);
            assert_eq!(config.check(), []);
            let resolved = config.clone();
            config.resolve();
            let (model, example) = (config.build(10), config.example());
            let (_, x) = &example[0];
            assert_eq!(model.check_example(x.dtype, &x.dims, 10), Ok(()), "{name}");
            assert_eq!(resolved.example(), example, "{name}");
            let mut num_parameters = 0;
            let graph = trace(Mesh::SINGLE, |t| {
                let scope = Scope::declare(t, Precision::uniform(DType::F32), AxisSet::EMPTY);
                let fields = example.into_iter().map(|(field, ty)| {
                    let ty = TensorType::new(ty.dtype, &[&[2], &ty.dims[..]].concat());
                    (field.to_owned(), t.input(field, ty))
                });
                let fields = fields.collect();
                model.loss(&scope, &Batch { fields, weight: t.full(DType::F32, &[2], 1.0) });
                num_parameters = scope.parameters().len();
            });
            assert!(graph.is_ok(), "{name}: {:?}", graph.err());
            assert!(num_parameters > 0, "{name}");
        }
        let keys = MapDeserializer::<_, Error>::new(std::iter::empty::<(&str, usize)>());
        assert!(ModelConfig::deserialize("perceptron", keys).is_err());
    }

    #[test]
    fn values_that_no_range_can_refuse_are_refused() {
        let heads = ModelConfig::Gpt(GptConfig { num_heads: Some(3), ..GptConfig::default() });
        let hidden = vec![1; MAX_LAYERS + 1];
        let layers = ModelConfig::Mlp(MlpConfig { hidden, ..MlpConfig::default() });
        let cases = [(heads, "num_heads"), (layers, "hidden")];
        for (config, key) in cases {
            let keys: Vec<_> = config.check().iter().map(|invalid| invalid.key).collect();
            assert_eq!(keys, [key]);
        }
    }
}
