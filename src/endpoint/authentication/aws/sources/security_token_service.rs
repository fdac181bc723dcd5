//! Chooses the endpoint of Amazon's Security Token Service.
//!
//! The specification names the global endpoint. The SDKs use the region's endpoint, which is nearer and keeps working
//! when another region fails. Private networks and other partitions (such as China) cannot reach any other endpoint.

use super::{Unavailable, text};
use crate::endpoint::options::CloudEnvironment;

const GLOBAL: &str = "https://sts.amazonaws.com";

/// The maximum length of a region's name, which is the maximum length of a DNS label.
const MAX_REGION: usize = 63;

/// The regions for which `AWS_STS_REGIONAL_ENDPOINTS=legacy` selects the global endpoint.
const LEGACY_REGIONS: [&str; 16] = [
    "ap-northeast-1",
    "ap-south-1",
    "ap-southeast-1",
    "ap-southeast-2",
    "aws-global",
    "ca-central-1",
    "eu-central-1",
    "eu-north-1",
    "eu-west-1",
    "eu-west-2",
    "eu-west-3",
    "sa-east-1",
    "us-east-1",
    "us-east-2",
    "us-west-1",
    "us-west-2",
];

/// The partitions outside `amazonaws.com`. Each entry gives the prefix of the partition's regions, and its domain.
const PARTITIONS: [(&str, &str); 6] = [
    ("cn-", "amazonaws.com.cn"),
    ("eusc-", "amazonaws.eu"),
    ("us-iso-", "c2s.ic.gov"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("us-isof-", "csp.hci.ic.gov"),
];

/// Returns the service's URL: the URL that the application has set, or the URL for the region in the environment.
pub(super) fn url(cloud: &CloudEnvironment) -> Result<String, Unavailable> {
    if let Some(url) = &cloud.aws_sts {
        return Ok(url.clone());
    }
    let is_legacy = is_legacy(cloud)?;
    Ok(match region(cloud)? {
        None => GLOBAL.to_owned(),
        Some(region) if region == "aws-global" || is_legacy && LEGACY_REGIONS.contains(&&*region) => GLOBAL.to_owned(),
        Some(region) => {
            let partition = PARTITIONS.iter().find(|(start, _)| region.starts_with(start));
            let domain = partition.map_or("amazonaws.com", |(_, domain)| domain);
            format!("https://sts.{region}.{domain}")
        }
    })
}

fn is_legacy(cloud: &CloudEnvironment) -> Result<bool, Unavailable> {
    const NAME: &str = "AWS_STS_REGIONAL_ENDPOINTS";
    match text(cloud, NAME)? {
        None => Ok(false),
        Some(value) if value.eq_ignore_ascii_case("regional") => Ok(false),
        Some(value) if value.eq_ignore_ascii_case("legacy") => Ok(true),
        Some(value) => Err(Unavailable::Text { name: NAME, value, allowed: "regional or legacy" }),
    }
}

/// Returns the region. Its name becomes part of a host name, so only the characters of a DNS label are allowed.
fn region(cloud: &CloudEnvironment) -> Result<Option<String>, Unavailable> {
    for name in ["AWS_REGION", "AWS_DEFAULT_REGION"] {
        let Some(value) = text(cloud, name)? else { continue };
        let is_label = value.len() <= MAX_REGION
            && value.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if is_label && !value.starts_with('-') && !value.ends_with('-') {
            return Ok(Some(value));
        }
        let allowed = "a region's name, such as eu-central-1";
        return Err(Unavailable::Text { name, value, allowed });
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url_of(variables: &'static [(&str, &str)]) -> Result<String, String> {
        let lookup = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        url(&CloudEnvironment::default().variables(lookup)).map_err(|error| error.to_string())
    }

    #[test]
    fn endpoint_of_the_region_is_used() {
        const MODE: &str = "AWS_STS_REGIONAL_ENDPOINTS";
        let cases: [(&'static [(&str, &str)], &str); 14] = [
            (&[], GLOBAL),
            (&[(MODE, "regional")], GLOBAL),
            (&[("AWS_REGION", "eu-central-1")], "https://sts.eu-central-1.amazonaws.com"),
            (&[("AWS_DEFAULT_REGION", "eu-central-1")], "https://sts.eu-central-1.amazonaws.com"),
            (
                &[("AWS_DEFAULT_REGION", "us-east-1"), ("AWS_REGION", "us-west-2")],
                "https://sts.us-west-2.amazonaws.com",
            ),
            (&[("AWS_REGION", "us-east-1"), (MODE, "Regional")], "https://sts.us-east-1.amazonaws.com"),
            (&[("AWS_REGION", "us-east-1"), (MODE, "legacy")], GLOBAL),
            // The global endpoint does not serve this region.
            (&[("AWS_REGION", "af-south-1"), (MODE, "legacy")], "https://sts.af-south-1.amazonaws.com"),
            (&[("AWS_REGION", "aws-global")], GLOBAL),
            (&[("AWS_REGION", "cn-north-1")], "https://sts.cn-north-1.amazonaws.com.cn"),
            (&[("AWS_REGION", "cn-north-1"), (MODE, "legacy")], "https://sts.cn-north-1.amazonaws.com.cn"),
            (&[("AWS_REGION", "us-gov-west-1")], "https://sts.us-gov-west-1.amazonaws.com"),
            (&[("AWS_REGION", "us-isob-east-1")], "https://sts.us-isob-east-1.sc2s.sgov.gov"),
            (&[("AWS_REGION", "eusc-de-east-1")], "https://sts.eusc-de-east-1.amazonaws.eu"),
        ];
        for (variables, expected) in cases {
            assert_eq!(url_of(variables).as_deref(), Ok(expected), "{variables:?}");
        }
        let own = CloudEnvironment::default().variables(|_| Some("no region".into())).aws_sts("http://127.0.0.1:9");
        assert_eq!(url(&own).unwrap(), "http://127.0.0.1:9");
    }

    #[test]
    fn invalid_region_does_not_reach_another_host() {
        let cases: [&'static [(&str, &str)]; 6] = [
            &[("AWS_REGION", "evil.example/#")],
            &[("AWS_REGION", "a.b")],
            &[("AWS_REGION", "EU-CENTRAL-1")],
            &[("AWS_REGION", "-eu")],
            &[("AWS_DEFAULT_REGION", "x@y")],
            &[("AWS_STS_REGIONAL_ENDPOINTS", "global")],
        ];
        for variables in cases {
            let (name, value) = variables[0];
            let error = url_of(variables).unwrap_err();
            assert!(error.contains(&format!("{name} must be ")), "{error}");
            assert!(error.ends_with(&format!(", got {value:?}")), "{error}");
        }
    }
}
