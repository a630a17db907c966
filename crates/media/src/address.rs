//! Tells global addresses from all others, by IANA's special-purpose registries.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The kind of an address that is not global; `None` for a global one. An IPv6 address that contains an IPv4 address
/// (mapped, NAT64, 6to4, Teredo) is never global: its target depends on the network.
pub fn non_global_kind(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => of_v4(address),
        IpAddr::V6(address) => of_v6(address),
    }
}

fn of_v4(address: Ipv4Addr) -> Option<&'static str> {
    match address.octets() {
        [0, ..] => Some("of this network"),
        [10, ..] | [172, 16..=31, ..] | [192, 168, ..] => Some("private"),
        [100, 64..=127, ..] => Some("shared by a carrier (CGNAT)"),
        [127, ..] => Some("loopback"),
        [169, 254, ..] => Some("link-local"),
        [192, 0, 0, _] => Some("reserved for protocols"),
        [192, 0, 2, _] | [198, 51, 100, _] | [203, 0, 113, _] => Some("reserved for documentation"),
        [192, 88, 99, _] => Some("a relay of 6to4"),
        [198, 18 | 19, ..] => Some("reserved for benchmarks"),
        [224..=239, ..] => Some("multicast"),
        [240..=255, ..] => Some("reserved"),
        _ => None,
    }
}

fn of_v6(address: Ipv6Addr) -> Option<&'static str> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        [0, 0, 0, 0, 0, 0xffff, ..] => Some("an IPv4 address in IPv6 (mapped)"),
        [0x64, 0xff9b, ..] => Some("an IPv4 address in IPv6 (NAT64)"),
        [0x2002, ..] => Some("an IPv4 address in IPv6 (6to4)"),
        // Teredo, benchmarks, ORCHID and other protocols: 2001::/23.
        [0x2001, 0..=0x1ff, ..] => Some("reserved for protocols"),
        [0x2001, 0xdb8, ..] | [0x3fff, 0..=0xfff, ..] => Some("reserved for documentation"),
        [0xfc00..=0xfdff, ..] => Some("private (unique local)"),
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("reserved"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(text: &str) -> Option<&'static str> {
        non_global_kind(text.parse().expect("an address"))
    }

    #[test]
    fn special_addresses_are_not_global() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.0.1",
            "169.254.169.254",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.9",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::7f00:1",
            "::ffff:127.0.0.1",
            "::ffff:8.8.8.8",
            "64:ff9b::a00:1",
            "64:ff9b:1::1",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd12::1",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ] {
            assert!(kind(text).is_some(), "{text} is not global");
        }
    }

    #[test]
    fn neighbours_of_special_addresses_are_global() {
        for text in [
            "1.1.1.1",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2001:200::1",
            "2606:4700::1111",
            "2a00::1",
        ] {
            assert_eq!(kind(text), None, "{text} is global");
        }
    }
}
