//! Addresses that functions may reach.

use ipnet::IpNet;

use crate::config::list;

/// What an admin allows a namespace beyond public addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) cidr: IpNet,
    /// All, if it is missing.
    pub(crate) port: Option<u16>,
}

/// All that is on the internet, and what is to be left out of it: own, private, link-local (cloud metadata), carriers', test and multicast ranges
/// (<https://www.iana.org/assignments/iana-ipv4-special-registry>). Of IPv6 the one block that is given out; the ranges in it that stand for IPv4 are left out.
pub(crate) fn public() -> [(String, Vec<String>); 2] {
    const LEFT_OUT: [&str; 12] = [
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    ];
    let left_out = |ranges: &[&str]| ranges.iter().map(|range| (*range).to_owned()).collect();
    [
        ("0.0.0.0/0".to_owned(), left_out(&LEFT_OUT)),
        ("2000::/3".to_owned(), left_out(&["2001::/32", "2002::/16"])),
    ]
}

/// Reads `CIDR` and `CIDR:PORT` (IPv6 with a port in brackets), with commas between.
///
/// # Errors
/// Which part is not as it has to be.
pub(crate) fn parse(text: &str) -> Result<Vec<Allowed>, String> {
    list(text)
        .iter()
        .map(|part| {
            let rule = || format!("{part:?} is not CIDR or CIDR:PORT, as in 10.1.2.0/24 or 10.1.2.3/32:5432");
            if let Ok(cidr) = part.parse() {
                return Ok(Allowed { cidr, port: None });
            }
            let (cidr, port) = part.rsplit_once(':').ok_or_else(rule)?;
            let cidr = cidr.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| rule())?;
            let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(rule)?;
            Ok(Allowed { cidr, port: Some(port) })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_ports_or_none() {
        let read = |text| {
            parse(text).map(|all| all.iter().map(|a| (a.cidr.to_string(), a.port)).collect::<Vec<_>>())
        };
        assert_eq!(read("").unwrap(), []);
        assert_eq!(
            read("10.0.0.0/8, 10.1.2.3/32:5432,fd00::/8,[fd00::/8]:53").unwrap(),
            [
                ("10.0.0.0/8".into(), None),
                ("10.1.2.3/32".into(), Some(5432)),
                ("fd00::/8".into(), None),
                ("fd00::/8".into(), Some(53))
            ]
        );
        for bad in ["10.0.0.1", "10.0.0.0/8:0", "10.0.0.0/8:x", "any", "10.0.0.0/33"] {
            assert!(read(bad).unwrap_err().contains(bad), "{bad}");
        }
    }

    #[test]
    fn what_is_left_out_lies_within() {
        for (cidr, except) in public() {
            let whole: IpNet = cidr.parse().unwrap();
            for range in except {
                assert!(whole.contains(&range.parse::<IpNet>().unwrap()), "{range}");
            }
        }
    }
}
