//! TLS 1.3 between those who have the token of a job.
//!
//! From the token and the name of the job follows an Ed25519 key (by HKDF-SHA256), which all of the
//! job have. Each side of a connection shows the public key (raw, RFC 7250), accepts no other, and
//! proves by a signature of the handshake that it has the private one. So nobody gets further than
//! the handshake without the token, and a recorded handshake is worth nothing. There are no tickets
//! and no early data. The listening side then sends [`ACCEPTED`]: without it, one that connects
//! would learn only with its first answer that it was refused.

use std::fmt;
use std::io;
use std::sync::Arc;

use ring::hkdf;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{AlwaysResolvesClientRawPublicKeys, Resumption, WebPkiServerVerifier};
use rustls::crypto::ring::cipher_suite::{
    TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256,
};
use rustls::crypto::ring::{default_provider, sign};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{AlwaysResolvesServerRawPublicKeys, NoServerSessionStorage};
use rustls::sign::{CertifiedKey, SigningKey};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme, crypto,
};

use super::secret::Secret;

/// What the listening side sends first.
pub const ACCEPTED: u8 = 1;

const SALT: &[u8] = b"lockstep tls 1";
/// What precedes the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410, section 7).
const PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// What a process of a job needs to connect to others, and to be connected to.
#[derive(Clone)]
pub struct TokenTls {
    own: Arc<CertifiedKey>,
    only: Arc<OnlyKey>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for TokenTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenTls(..)")
    }
}

impl TokenTls {
    /// For the processes that have this secret and belong to the job of this name.
    ///
    /// # Errors
    /// None that is known: keys of all bits are valid.
    pub fn new(secret: &Secret, job: &str) -> io::Result<Self> {
        let key = signing_key(secret, job)?;
        let public = key.public_key().ok_or_else(|| io::Error::other("no public key"))?;
        let public = CertificateDer::from(public.as_ref().to_vec());
        let provider = CryptoProvider {
            cipher_suites: vec![TLS13_AES_128_GCM_SHA256, TLS13_CHACHA20_POLY1305_SHA256],
            ..default_provider()
        };
        let algorithms = provider.signature_verification_algorithms;
        let only = Arc::new(OnlyKey { public: public.clone(), algorithms });
        let own = Arc::new(CertifiedKey::new(vec![public], key));
        Ok(Self { own, only, provider: Arc::new(provider) })
    }

    /// For connections that this process accepts. With `identity`, a certificate chain and its key
    /// in PEM, it shows those instead of the key of the job.
    ///
    /// # Errors
    /// If the certificate or its key is none.
    pub fn server(&self, identity: Option<&(Vec<u8>, Vec<u8>)>) -> io::Result<Arc<ServerConfig>> {
        let builder = ServerConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(self.only.clone());
        let mut config = match identity {
            None => {
                let resolver = AlwaysResolvesServerRawPublicKeys::new(self.own.clone());
                builder.with_cert_resolver(Arc::new(resolver))
            }
            Some((chain, key)) => {
                let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(chain).collect();
                let key = PrivateKeyDer::from_pem_slice(key).map_err(io::Error::other)?;
                let chain = chain.map_err(io::Error::other)?;
                builder.with_single_cert(chain, key).map_err(io::Error::other)?
            }
        };
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    /// For connections that this process opens. With `authority`, a certificate in PEM, the other
    /// side must have a certificate of that instead of the key of the job.
    ///
    /// # Errors
    /// If the certificate is none.
    pub fn client(&self, authority: Option<&[u8]>) -> io::Result<Arc<ClientConfig>> {
        let verifier: Arc<dyn ServerCertVerifier> = match authority {
            None => self.only.clone(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate = certificate.map_err(io::Error::other)?;
                    roots.add(certificate).map_err(io::Error::other)?;
                }
                let provider = self.provider.clone();
                WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(io::Error::other)?
            }
        };
        let resolver = AlwaysResolvesClientRawPublicKeys::new(self.own.clone());
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_client_cert_resolver(Arc::new(resolver));
        config.resumption = Resumption::disabled();
        // Names are of certificates.
        config.enable_sni = authority.is_some();
        Ok(Arc::new(config))
    }
}

/// The name in which a raw key is expected; it is not looked at.
pub fn no_name() -> ServerName<'static> {
    ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into())
}

/// What the other side did wrong, to follow "it" or the name of a process.
pub fn describe(error: &io::Error) -> String {
    use CertificateError::{ApplicationVerificationFailure, BadSignature};
    match of_tls(error) {
        Some(
            Error::InvalidCertificate(ApplicationVerificationFailure | BadSignature)
            | Error::NoCertificatesPresented
            | Error::DecryptError,
        ) => "does not have the token of this job".to_owned(),
        Some(Error::InvalidCertificate(error)) => format!("shows a bad certificate: {error}"),
        Some(Error::AlertReceived(alert)) => {
            format!(
                "refuses the handshake ({alert:?}): it has another token, or belongs to another job"
            )
        }
        Some(error) => format!("is not a process of this program ({error})"),
        None => match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                "closed the connection".to_owned()
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "does not answer".to_owned(),
            _ => error.to_string(),
        },
    }
}

/// `true` if the handshake itself has failed, not the connection.
pub fn is_of_tls(error: &io::Error) -> bool {
    of_tls(error).is_some()
}

/// `true` if the other side belongs to another job, or says so of this one: another attempt is
/// useless.
pub fn is_stranger(error: &io::Error) -> bool {
    matches!(of_tls(error), Some(Error::InvalidCertificate(_) | Error::AlertReceived(_)))
}

fn of_tls(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// The private key of a job.
fn signing_key(secret: &Secret, job: &str) -> io::Result<Arc<dyn SigningKey>> {
    let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, SALT).extract(secret.bytes());
    let mut pkcs8 = [0; 48];
    let (prefix, seed) = pkcs8.split_at_mut(PKCS8.len());
    prefix.copy_from_slice(&PKCS8);
    let info = [job.as_bytes()];
    let filled = secret.expand(&info, hkdf::HKDF_SHA256).and_then(|okm| okm.fill(seed));
    filled.map_err(|_| io::Error::other("no key follows from the token"))?;
    sign::any_eddsa_type(&PrivatePkcs8KeyDer::from(&pkcs8[..])).map_err(io::Error::other)
}

/// Accepts one public key.
#[derive(Debug)]
struct OnlyKey {
    public: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl OnlyKey {
    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), Error> {
        match *shown == self.public {
            true => Ok(()),
            false => Err(CertificateError::ApplicationVerificationFailure.into()),
        }
    }

    fn verify(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let public = SubjectPublicKeyInfoDer::from(shown.as_ref());
        crypto::verify_tls13_signature_with_raw_key(message, &public, signed, &self.algorithms)
    }
}

/// TLS 1.2 is not offered.
fn too_old() -> Result<HandshakeSignatureValid, Error> {
    Err(Error::General("TLS 1.2 is not spoken".to_owned()))
}

impl ServerCertVerifier for OnlyKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for OnlyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        too_old()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verify(message, shown, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use rustls::{ClientConnection, Connection, ServerConnection};

    use super::*;

    fn tls(secret: u8, job: &str) -> TokenTls {
        TokenTls::new(&Secret::new(vec![secret; 32]), job).unwrap()
    }

    fn client(tls: &TokenTls) -> ClientConnection {
        ClientConnection::new(tls.client(None).unwrap(), no_name()).unwrap()
    }

    fn server(tls: &TokenTls) -> ServerConnection {
        ServerConnection::new(tls.server(None).unwrap()).unwrap()
    }

    /// Takes what has come, and says what it sends.
    fn answer(own: &mut Connection, bytes: &[u8]) -> Result<Vec<u8>, Error> {
        let (mut bytes, mut sent) = (bytes, vec![]);
        while !bytes.is_empty() {
            own.read_tls(&mut bytes).unwrap();
            own.process_new_packets()?;
        }
        while own.wants_write() {
            own.write_tls(&mut sent).unwrap();
        }
        Ok(sent)
    }

    /// Shakes hands: what the client has said, or the first error of a side.
    fn shake(client: ClientConnection, server: ServerConnection) -> Result<Vec<Vec<u8>>, Error> {
        let (mut client, mut server) = (Connection::from(client), Connection::from(server));
        let (mut said, mut to_client) = (vec![], vec![]);
        while client.is_handshaking() || server.is_handshaking() {
            let to_server = answer(&mut client, &to_client)?;
            to_client = answer(&mut server, &to_server)?;
            said.push(to_server);
        }
        answer(&mut client, &to_client)?;
        Ok(said)
    }

    #[test]
    fn those_with_the_token_shake_hands_and_nobody_else_does() {
        let own = tls(7, "job");
        assert!(shake(client(&own), server(&own)).is_ok());
        let stranger = Error::from(CertificateError::ApplicationVerificationFailure);
        for other in [tls(8, "job"), tls(7, "other")] {
            assert_eq!(shake(client(&other), server(&own)).unwrap_err(), stranger);
            assert_eq!(shake(client(&own), server(&other)).unwrap_err(), stranger);
            // It does not mind with whom it talks.
            let careless = TokenTls { only: own.only.clone(), ..other };
            assert_eq!(shake(client(&careless), server(&own)).unwrap_err(), stranger);
        }
        // A stranger shows the public key of the job, and signs with its own.
        let (public, key) = (own.own.cert.clone(), tls(8, "job").own.key.clone());
        let thief = TokenTls { own: Arc::new(CertifiedKey::new(public, key)), ..own.clone() };
        let forged = Error::from(CertificateError::BadSignature);
        assert_eq!(shake(client(&thief), server(&own)).unwrap_err(), forged);
        assert_eq!(shake(client(&own), server(&thief)).unwrap_err(), forged);
    }

    #[test]
    fn a_recorded_handshake_is_worth_nothing() {
        let own = tls(7, "job");
        let said = shake(client(&own), server(&own)).unwrap();
        let mut again = Connection::from(server(&own));
        assert!(answer(&mut again, &said[0]).is_ok(), "anybody may begin");
        assert_eq!(answer(&mut again, &said[1]).unwrap_err(), Error::DecryptError);
        assert!(again.is_handshaking());
    }

    #[test]
    fn a_client_without_a_key_is_refused() {
        let own = tls(7, "job");
        let config = ClientConfig::builder_with_provider(own.provider.clone())
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(own.only.clone())
            .with_no_client_auth();
        let anonymous = ClientConnection::new(Arc::new(config), no_name()).unwrap();
        assert!(shake(anonymous, server(&own)).is_err());
    }
}
