//! Archives that GnuPG has signed, verified by the machine's `gpgv`. The archive, the keys and the signature are fixed: GnuPG made
//! them once (`gpg --armor --detach-sign app.tar.gz`).

use super::server::{Answer, Server};
use super::*;

/// An archive with a Compose file, in base64.
const ARCHIVE: &str = "H4sIAAAAAAACA+3KMQoCMRCF4TlKTiATCRbeJoQUwi6RTFxYxLsbbRYs3Eoh8H/NG96bVOZrsXxY4zzJj2h3CuGd3Weq+rDdr94fNXhxKn9wsxarc1JLad/+9vZBWa7LJWU7u/tDAAAAAAAAAAAAAAAAAADDeAJDP+wRACgAAA==";
const SIGNATURE: &str = "\
-----BEGIN PGP SIGNATURE-----

iIoEABYIADIWIQTSH3EW4zbKjzsTFwitAtXUeqPwxgUCawpKyBQcdGVzdEBtdXN0
ZXIuZXhhbXBsZQAKCRCtAtXUeqPwxtFTAQCnYuSI/3rXj8gyCsnAcgae76RJHeq0
HFHkNxugU5DB6AD/Ro6N3YQ+Xs6fbaXEfbG3OG1lsnn2EN3CpPFxl/ThcAE=
=y3oC
-----END PGP SIGNATURE-----
";
/// The key of the signature.
const KEY: &str = "\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawpKSRYJKwYBBAHaRw8BAQdA+eZlz09bpe5fiEhAxV0wHVeMVVXisbj/0Io9
BJU5ojG0IU11c3RlciB0ZXN0IDx0ZXN0QG11c3Rlci5leGFtcGxlPoiQBBMWCAA4
FiEE0h9xFuM2yo87ExcIrQLV1Hqj8MYFAmsKSkkCGwMFCwkIBwIGFQoJCAsCBBYC
AwECHgECF4AACgkQrQLV1Hqj8MZ13AD/SU5kaY1PKxqJrykBbR8wz6kc7lyZkgMf
y0dqJIQfNmIBAKvyQTacmc8UIlsYX2u7OYDfm6Y+gYS8m4C/m7UfftAM
=x9DN
-----END PGP PUBLIC KEY BLOCK-----
";
/// A key that has signed nothing.
const OTHER_KEY: &str = "\
-----BEGIN PGP PUBLIC KEY BLOCK-----

mDMEawpKyBYJKwYBBAHaRw8BAQdAOcetg63y4ZlcGbvuu9LNIiGWxKN5iIkgx+9r
yTshgLq0FG90aGVyQG11c3Rlci5leGFtcGxliJAEExYIADgWIQQ8fdOQ3aojKQdF
e+0qwPzEDDrSTgUCawpKyAIbAwULCQgHAgYVCgkICwIEFgIDAQIeAQIXgAAKCRAq
wPzEDDrSTvYxAP4vgfF7Js+ygAdj8AU1WnVabWZVkAzQWSg3xeTA12XlpwD+Js36
tVktJA40MnO8jDXBx8qv1cAH30ZwMnAegCrxuQE=
=GX8w
-----END PGP PUBLIC KEY BLOCK-----
";

/// Places the archive with a component's key, from a server that gives these answers.
async fn placed(key: &str, answers: Vec<Answer>) -> (Result<(), String>, Vec<String>, Device) {
    let (device, bytes) = (Device::new(), STANDARD.decode(ARCHIVE).unwrap());
    let file = device.dir.path().join("key.asc");
    fs::write(&file, key).unwrap();
    let key = KeyLocation::parse(&format!("file://{}", file.display())).unwrap();
    let server = Server::start([vec![Answer::Whole(bytes)], answers].concat());
    let home = device.dir.path().join("unit");
    let placed = device.store.ensure_unpacked(&archive(&server, None), Some(&key), &home).await;
    (placed.map(drop).map_err(|error| chain(&error)), server.requests(), device)
}

#[tokio::test]
async fn an_archive_that_gnupg_signed_needs_the_components_key() {
    let signature = || Answer::Whole(SIGNATURE.as_bytes().to_vec());
    for (key, answer, words) in [
        (KEY, signature(), ""),
        (OTHER_KEY, signature(), "of another key or another content"),
        (
            KEY,
            Answer::Whole(SIGNATURE.replace("HFHk", "HFHl").into_bytes()),
            "of another key or another content",
        ),
        (KEY, Answer::Whole(b"no signature".to_vec()), "of another key or another content"),
        (KEY, Answer::Status(404), "it has no signature"),
    ] {
        let (placed, requests, device) = placed(key, vec![answer]).await;
        assert!(requests[1].starts_with("GET /p.tar.gz.asc "), "{requests:?}");
        match placed {
            Ok(()) => assert!(words.is_empty(), "{key}"),
            Err(said) => assert!(!words.is_empty() && said.contains(words), "{said}"),
        }
        let unit = device.dir.path().join("unit");
        assert_eq!(unit.join(FOLDER).exists(), words.is_empty());
        assert!(!unit.join("openpgp").exists(), "nothing of the verification is left");
    }
}

#[tokio::test]
async fn keys_of_both_formats_each_need_their_own_signature() {
    let (signer, bytes) = (Signer::new(), STANDARD.decode(ARCHIVE).unwrap());
    let device = signer.device();
    let file = device.dir.path().join("key.asc");
    fs::write(&file, KEY).unwrap();
    let key = KeyLocation::parse(&format!("file://{}", file.display())).unwrap();
    let (own, home) = (signer.sign(&bytes).into_bytes(), device.dir.path().join("unit"));
    for (openpgp, is_placed) in [(Answer::Status(404), false), (Answer::Whole(SIGNATURE.into()), true)] {
        let server = Server::start(vec![Answer::Whole(bytes.clone()), Answer::Whole(own.clone()), openpgp]);
        let placed = device.store.ensure_unpacked(&archive(&server, None), Some(&key), &home).await;
        assert_eq!(placed.is_ok(), is_placed, "{placed:?}");
    }
}
