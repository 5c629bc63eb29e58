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
    /// all devices that `fsdp` leaves.
    #[schemars(range(min = 1, max = MAX_REPLICAS), extend("unit" = "replicas"))]
    pub data: AutoOr<usize>,
    /// Number of replicas that parameters and optimizer state are sharded over; the batch is
    /// divided over them too. `"auto"` uses all devices that `data` leaves, or all if `data` is
    /// `"auto"` too. See [Parallelism](parallelism.md).
    #[schemars(range(min = 1, max = MAX_REPLICAS), extend("unit" = "replicas"))]
    #[default(AutoOr::Value(1))]
    pub fsdp: AutoOr<usize>,
}

/// A mesh that does not fit the devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "mesh.{auto} = \"auto\" cannot divide {} evenly by mesh.{other} = {size}; \
     set mesh.{other} to a divisor of {num_devices}, or mesh.{auto} to a number",
    counted(*num_devices, "device")
)]
pub struct UnevenMesh {
    auto: &'static str,
    other: &'static str,
    size: usize,
    num_devices: usize,
}

impl MeshConfig {
    /// The axes that can be set; on the others every mesh has one replica.
    pub const AXES: [Axis; 2] = [Axis::Data, Axis::Fsdp];

    /// The mesh, if it does not depend on the number of devices.
    pub fn fixed(&self) -> Option<Mesh> {
        match (self.data, self.fsdp) {
            (AutoOr::Value(data), AutoOr::Value(fsdp)) => {
                Some(Mesh::new(&[(Axis::Data, data), (Axis::Fsdp, fsdp)]))
            }
            _ => None,
        }
    }

    /// The mesh on this many devices; `"auto"` uses all of them.
    ///
    /// # Errors
    /// Devices that do not divide over the other axis.
    pub fn on_devices(&self, num_devices: usize) -> Result<Mesh, UnevenMesh> {
        let (auto, other, size) = match (self.data, self.fsdp) {
            (AutoOr::Auto, AutoOr::Value(fsdp)) => ("data", "fsdp", fsdp),
            (AutoOr::Value(data), AutoOr::Auto) => ("fsdp", "data", data),
            _ => return Ok(self.on_virtual_devices(num_devices)),
        };
        // More replicas than devices is another error, which names both numbers.
        if num_devices > size && !num_devices.is_multiple_of(size) {
            return Err(UnevenMesh { auto, other, size, num_devices });
        }
        Ok(self.on_virtual_devices(num_devices))
    }

    /// The mesh on virtual devices. There are as many of these as are asked for, so `"auto"` is the
    /// largest size that keeps the replicas within `num_cores`, and at least 1.
    pub fn on_virtual_devices(&self, num_cores: usize) -> Mesh {
        let rest = |size: usize| (num_cores / size.max(1)).max(1);
        let (data, fsdp) = match (self.data, self.fsdp) {
            (AutoOr::Value(data), AutoOr::Value(fsdp)) => (data, fsdp),
            (AutoOr::Value(data), AutoOr::Auto) => (data, rest(data)),
            (AutoOr::Auto, AutoOr::Value(fsdp)) => (rest(fsdp), fsdp),
            // `data` is "auto" by default, `fsdp` only where it was asked for.
            (AutoOr::Auto, AutoOr::Auto) => (1, num_cores.max(1)),
        };
        Mesh::new(&[(Axis::Data, data), (Axis::Fsdp, fsdp)])
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
    if let (AutoOr::Value(data), AutoOr::Value(fsdp)) = (mesh.data, mesh.fsdp)
        && errors.none_of(&["data", "fsdp"])
    {
        let most = MAX_REPLICAS / (data as i64).max(1);
        let allowed = format!("at most {most} where mesh.data = {data}");
        errors.check(require(fsdp as i64 <= most, "fsdp", fsdp, &allowed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(data: AutoOr<usize>, fsdp: AutoOr<usize>) -> MeshConfig {
        MeshConfig { data, fsdp }
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
