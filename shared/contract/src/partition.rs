//! The partition of a device, computed as the server computes it.

use crate::ids::{DeviceId, DeviceKey, SiteId};
use crate::limits::PARTITIONS;

/// The partition of UPLINK and PRESENCE in which the server stores a device's messages: FNV-1a (32 bits) over
/// site and device without a separator, modulo [`PARTITIONS`].
pub fn partition_of(key: &DeviceKey) -> u16 {
    of(&key.site, &key.device)
}

/// The same of a site and a device that are not held together.
pub fn of(site: &SiteId, device: &DeviceId) -> u16 {
    let bytes = site.as_str().bytes().chain(device.as_str().bytes());
    let hash = bytes.fold(FNV_OFFSET, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(FNV_PRIME));
    (hash % u32::from(PARTITIONS)) as u16
}

const FNV_OFFSET: u32 = 2_166_136_261;
const FNV_PRIME: u32 = 16_777_619;

#[cfg(test)]
mod tests {
    use super::*;

    /// That the server agrees, also about the missing separator, is tested on a real one.
    #[test]
    fn the_hash_is_fnv_1a_over_both_names() {
        for (site, device, partition) in [("dev-0000", "01", 8), ("d", "ev-2", 3), ("de", "v-2", 3)] {
            let key = DeviceKey { site: site.parse().unwrap(), device: device.parse().unwrap() };
            assert_eq!(partition_of(&key), partition, "{key}");
        }
    }
}
