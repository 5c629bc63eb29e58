//! `[mesh]`: the number of replicas along each axis.

use hlo::{Axis, Mesh, counted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

use super::error::{KeyErrors, require};
use super::key::{KeyInfo, OnResume};
use super::keys::{Reader, Section};
use super::sections::{AutoOr, MAX_REPLICAS};

/// `[mesh]`: the number of replicas along each axis.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, SmartDefault)]
#[serde(default)]
pub struct MeshConfig {
    /// Number of replicas that hold the same state; the batch is divided over them. `"auto"` uses
    /// all devices that the other axes leave.
    #[schemars(range(min = 1, max = MAX_REPLICAS), extend("unit" = "replicas"))]
    pub data: AutoOr<usize>,
    /// Number of replicas that parameters and optimizer state are sharded over; the batch is
    /// divided over them too. `"auto"` uses all devices that the other axes leave, or all if `data`
    /// is `"auto"` too. See [Parallelism](parallelism.md).
    #[schemars(range(min = 1, max = MAX_REPLICAS), extend("unit" = "replicas"))]
    #[default(AutoOr::Value(1))]
    pub fsdp: AutoOr<usize>,
    /// Number of replicas that the matrices of a layer are cut over, which have the same examples:
    /// tensor parallelism. It divides the number of heads. See
    /// [Parallelism](parallelism.md#tensor-parallelism).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_REPLICAS), extend("unit" = "replicas", "absent" = "1"))]
    pub tensor: Option<usize>,
    /// Number of stages that the layers of a model are cut into, one after the other, which work on
    /// different microbatches: pipeline parallelism. It divides the number of layers. See
    /// [Parallelism](parallelism.md#pipeline-parallelism).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = MAX_REPLICAS), extend("unit" = "replicas", "absent" = "1"))]
    pub pipeline: Option<usize>,
}

/// A mesh that does not fit the devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mesh.{auto} = \"auto\" cannot divide {} evenly by {}; set the latter so that it divides \
     {num_devices}, or mesh.{auto} to a number",
    counted(*num_devices, "device"), in_words(others)
)]
pub struct UnevenMesh {
    auto: &'static str,
    /// The axes with more than one replica.
    others: Vec<(&'static str, usize)>,
    num_devices: usize,
}

fn in_words(sizes: &[(&'static str, usize)]) -> String {
    let sizes: Vec<_> = sizes.iter().map(|(axis, size)| format!("mesh.{axis} = {size}")).collect();
    sizes.join(" and ")
}

impl MeshConfig {
    /// The axes that a step can be distributed over.
    pub const AXES: [Axis; 4] = [Axis::Data, Axis::Fsdp, Axis::Tensor, Axis::Pipeline];

    fn size(&self, axis: Axis) -> AutoOr<usize> {
        match axis {
            Axis::Data => self.data,
            Axis::Fsdp => self.fsdp,
            Axis::Tensor => AutoOr::Value(self.tensor.unwrap_or(1).max(1)),
            Axis::Pipeline => AutoOr::Value(self.pipeline.unwrap_or(1).max(1)),
        }
    }

    /// The axis that has as many replicas as the others leave. `data` is "auto" by default, `fsdp`
    /// only where it was asked for.
    fn auto(&self) -> Option<Axis> {
        [Axis::Fsdp, Axis::Data].into_iter().find(|axis| self.size(*axis) == AutoOr::Auto)
    }

    /// The mesh, if it does not depend on the number of devices.
    pub fn fixed(&self) -> Option<Mesh> {
        self.auto().is_none().then(|| self.smallest())
    }

    /// The mesh with one replica along each axis that is `"auto"`.
    fn smallest(&self) -> Mesh {
        Mesh::new(&Axis::ALL.map(|axis| (axis, self.size(axis).or(1))))
    }

    /// The mesh with one replica along `axis` and along each axis that is `"auto"`.
    pub fn smallest_along(&self, axis: Axis) -> Mesh {
        self.smallest().with(axis, 1)
    }

    /// The mesh on this many devices; `"auto"` uses all of them.
    ///
    /// # Errors
    /// Devices that do not divide over the other axes.
    pub fn on_devices(&self, num_devices: usize) -> Result<Mesh, UnevenMesh> {
        let rest = self.smallest();
        // More replicas than devices is another error, which names both numbers.
        if let Some(auto) = self.auto()
            && num_devices > rest.num_replicas()
            && !num_devices.is_multiple_of(rest.num_replicas())
        {
            let others = Axis::ALL.map(|axis| (axis.name(), rest.size(axis)));
            let others = others.into_iter().filter(|(_, size)| *size > 1).collect();
            return Err(UnevenMesh { auto: auto.name(), others, num_devices });
        }
        Ok(self.on_virtual_devices(num_devices))
    }

    /// The mesh on virtual devices. There are as many of these as are asked for, so `"auto"` is the
    /// largest size that keeps the replicas within `num_cores`, and at least 1.
    pub fn on_virtual_devices(&self, num_cores: usize) -> Mesh {
        let rest = self.smallest();
        match self.auto() {
            Some(axis) => rest.with(axis, (num_cores / rest.num_replicas()).max(1)),
            None => rest,
        }
    }
}

impl Section for MeshConfig {
    const NAME: &'static str = "mesh";
    const ABOUT: &str = "The number of replicas along each axis.";

    fn keys(_choice: &str) -> Vec<KeyInfo> {
        KeyInfo::shared::<Self>(OnResume::Same)
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mesh: Self = reader.keys()?;
        check(&mesh, &mut reader.errors);
        Some(mesh)
    }
}

fn check(mesh: &MeshConfig, errors: &mut KeyErrors) {
    let mut others = vec![];
    let mut most = MAX_REPLICAS;
    for axis in MeshConfig::AXES {
        let AutoOr::Value(size) = mesh.size(axis) else { continue };
        if !errors.none_of(&[axis.name()]) {
            return;
        }
        let allowed = format!("at most {most} where {}", in_words(&others));
        errors.check(require(size as i64 <= most, axis.name(), size, &allowed));
        most /= (size as i64).max(1);
        others.push((axis.name(), size));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(data: AutoOr<usize>, fsdp: AutoOr<usize>) -> MeshConfig {
        MeshConfig { data, fsdp, ..MeshConfig::default() }
    }

    #[test]
    fn auto_takes_the_devices_that_are_left() {
        use AutoOr::{Auto, Value};
        let sizes = |mesh: Mesh| (mesh.size(Axis::Data), mesh.size(Axis::Fsdp));
        let on_eight = |data, fsdp| mesh(data, fsdp).on_devices(8).map(sizes);
        assert_eq!(MeshConfig::default().on_devices(8).map(sizes), Ok((8, 1)));
        assert_eq!(on_eight(Auto, Value(4)), Ok((2, 4)));
        assert_eq!(on_eight(Value(2), Auto), Ok((2, 4)));
        assert_eq!(on_eight(Value(3), Value(5)), Ok((3, 5)));
        assert_eq!(on_eight(Auto, Auto), Ok((1, 8)));
        let error = on_eight(Auto, Value(3)).unwrap_err().to_string();
        assert!(error.contains("mesh.data = \"auto\" cannot divide 8 devices"), "{error}");
        assert!(on_eight(Value(3), Auto).unwrap_err().to_string().contains("mesh.data = 3"));
        // More replicas than devices: the error comes when the devices are opened.
        assert_eq!(on_eight(Auto, Value(16)), Ok((1, 16)));
        // Virtual devices need not be as many as the cores.
        assert_eq!(sizes(mesh(Auto, Value(4)).on_virtual_devices(6)), (1, 4));
        assert_eq!(sizes(mesh(Auto, Value(4)).on_virtual_devices(2)), (1, 4));
    }
}
