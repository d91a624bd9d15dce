//! HTTPS and SVCB records (RFC 9460), less what would lead around the decision by name.
//!
//! `ech` would hide the name that is decided on, address hints are addresses that no guard has seen,
//! a target is another name than the one that is allowed, and a parameter that is not known here may
//! be anything. Without them the record says which protocols the host speaks, and on which port.

use hickory_resolver::proto::{
    op::Query,
    rr::{
        Name, RData,
        rdata::{
            HTTPS, SVCB,
            svcb::{SvcParamKey, SvcParamValue},
        },
    },
};

use crate::resolve::Records;

/// Of these records what the guest may be told.
pub(super) fn disclosed(records: Records, query: &Query) -> Records {
    let data = records.data.into_iter().filter_map(|data| {
        if let RData::HTTPS(HTTPS(record)) = data {
            strip(record, query.name()).map(HTTPS).map(RData::HTTPS)
        } else if let RData::SVCB(record) = data {
            strip(record, query.name()).map(RData::SVCB)
        } else {
            None
        }
    });
    Records {
        data: data.collect(),
        ttl: records.ttl,
    }
}

/// The record less what is not told; `None` if nothing is left that makes sense.
fn strip(record: SVCB, owner: &Name) -> Option<SVCB> {
    let is_own = record.target_name.is_root() || record.target_name == *owner;
    if record.svc_priority == ALIAS || !is_own {
        return None;
    }
    let told = |key: &SvcParamKey| TOLD.contains(key);
    let mandatory = record.svc_params.iter().find_map(|(_, value)| {
        if let SvcParamValue::Mandatory(keys) = value {
            Some(keys)
        } else {
            None
        }
    });
    // A client may not use a record of which it does not know a mandatory part (section 8).
    if mandatory.is_some_and(|keys| !keys.0.iter().all(told)) {
        return None;
    }
    let parameters = record.svc_params.into_iter();
    Some(SVCB::new(
        record.svc_priority,
        Name::root(),
        parameters.filter(|(key, _)| told(key)).collect(),
    ))
}

/// The priority of a record that only points to another name.
const ALIAS: u16 = 0;
const TOLD: [SvcParamKey; 4] = [
    SvcParamKey::Mandatory,
    SvcParamKey::Alpn,
    SvcParamKey::NoDefaultAlpn,
    SvcParamKey::Port,
];

#[cfg(test)]
mod tests {
    use hickory_resolver::proto::rr::{
        RecordType,
        rdata::{
            A,
            svcb::{Alpn, EchConfigList, IpHint, Mandatory, Unknown},
        },
    };

    use super::*;

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn told(record: SVCB) -> Vec<RData> {
        let query = Query::query(name("a.example."), RecordType::HTTPS);
        let data = vec![RData::HTTPS(HTTPS(record))];
        disclosed(Records { data, ttl: 30 }, &query).data
    }

    fn alpn() -> (SvcParamKey, SvcParamValue) {
        (
            SvcParamKey::Alpn,
            SvcParamValue::Alpn(Alpn(vec!["h2".to_owned()])),
        )
    }

    #[test]
    fn ech_and_hints_and_what_is_not_known_are_left_out() {
        let parameters = vec![
            alpn(),
            (SvcParamKey::Port, SvcParamValue::Port(8443)),
            (
                SvcParamKey::Ipv4Hint,
                SvcParamValue::Ipv4Hint(IpHint(vec![A::new(10, 0, 0, 1)])),
            ),
            (
                SvcParamKey::EchConfigList,
                SvcParamValue::EchConfigList(EchConfigList(vec![0, 1])),
            ),
            (
                SvcParamKey::Key(65280),
                SvcParamValue::Unknown(Unknown(vec![7])),
            ),
        ];
        let kept = vec![alpn(), (SvcParamKey::Port, SvcParamValue::Port(8443))];
        assert_eq!(
            told(SVCB::new(1, name("A.example."), parameters)),
            [RData::HTTPS(HTTPS(SVCB::new(1, Name::root(), kept)))]
        );
    }

    #[test]
    fn a_record_that_leads_elsewhere_is_not_told() {
        for (priority, target) in [(0, "."), (0, "b.example."), (1, "b.example.")] {
            let record = SVCB::new(priority, name(target), vec![alpn()]);
            assert_eq!(told(record), [], "{priority} {target}");
        }
    }

    #[test]
    fn a_record_that_cannot_do_without_what_is_left_out_is_not_told() {
        let needing = |key| {
            let mandatory = SvcParamValue::Mandatory(Mandatory(vec![key]));
            let parameters = vec![(SvcParamKey::Mandatory, mandatory), alpn()];
            told(SVCB::new(1, Name::root(), parameters)).len()
        };
        assert_eq!(needing(SvcParamKey::EchConfigList), 0);
        assert_eq!(needing(SvcParamKey::Alpn), 1);
    }
}
