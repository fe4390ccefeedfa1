package io.sluice.client.tls;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.connection.ConnectionWaits;
import io.sluice.client.connection.FrameSocket;
import io.sluice.client.support.TestCertificates;
import io.sluice.client.wire.ChunkPool;
import io.sluice.client.wire.Endpoint;
import java.io.IOException;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import javax.net.ssl.SSLServerSocket;
import javax.net.ssl.SSLSocket;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Key stores, PEM files, and what is said of those that cannot be used. */
@Timeout(60)
class TlsFilesTest {
    private static final TestCertificates CERTIFICATES = TestCertificates.get();

    /** As openssl pkcs8 writes it, with {@link TestCertificates#PASSWORD}. */
    private static final String KEY_OF_OPENSSL =
            """
            -----BEGIN ENCRYPTED PRIVATE KEY-----
            MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhMF5EY/7NjoAICCAAw
            DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEFxsNLicpX7nPXTmbJa58GEEgZC1
            0Q3J1C/8CK6n5T06Oq/mAl1lf81gT2XQZyk7TEpR4gKzipXq3zKrWsAIhaIAYo1q
            9YIpPeovlsxGBTQr9XYLW35uVLeobC8GaoKkBWRoqOhkJ3S34vatQpT1ZMMBR5Wo
            +TdWMjmJHPWljzXZcRFpyz8f1EOUN/KMe5BdKF5w8jJqOYBR7X5GUtjgfb4s4N0=
            -----END ENCRYPTED PRIVATE KEY-----
            """;

    /** The same key encrypted by Triple DES, as openssl req writes it. */
    private static final String KEY_IN_TRIPLE_DES =
            """
            -----BEGIN ENCRYPTED PRIVATE KEY-----
            MIHjME4GCSqGSIb3DQEFDTBBMCkGCSqGSIb3DQEFDDAcBAjdVjsYZyfIiQICCAAw
            DAYIKoZIhvcNAgkFADAUBggqhkiG9w0DBwQIyMqwiroLpF8EgZBfVNHB72NJx4sx
            hhXauSJqr565of8t4Umj2hRSLLREI/OYVgHog+kfoUo1HhMiNhljLNj2qWsAHpM0
            4HpFQo4j1IceMi/Cox0NYn5jtJZEKWOpvqI7a3gxa1MB4YnUhWlBAkC7RA9qMti7
            daRTJ53fw0JpXROMSe6GXGiUuJXQMjdczTklcSKD9ug836JRk5s=
            -----END ENCRYPTED PRIVATE KEY-----
            """;

    private static final String CERTIFICATE_OF_OPENSSL =
            """
            -----BEGIN CERTIFICATE-----
            MIIBezCCASGgAwIBAgIUI+GtdAWqyoT0Qi8FPeF6BFZLp6AwCgYIKoZIzj0EAwIw
            EjEQMA4GA1UEAwwHZml4dHVyZTAgFw0yNjExMjMxMjMxNThaGA8yMTI2MTAzMDEy
            MzE1OFowEjEQMA4GA1UEAwwHZml4dHVyZTBZMBMGByqGSM49AgEGCCqGSM49AwEH
            A0IABEJe3r74LWAzQbnG5SpOv8cC2EEV3vPKlai9swzpifi2xWEi977OPNhsmoYQ
            Paas1SMlac6fzMDTkQiIpQem66ajUzBRMB0GA1UdDgQWBBQ6yODjyMxkYEmnbVOW
            t5a2dnbyGzAfBgNVHSMEGDAWgBQ6yODjyMxkYEmnbVOWt5a2dnbyGzAPBgNVHRMB
            Af8EBTADAQH/MAoGCCqGSM49BAMCA0gAMEUCIQD6PC5VkHIU1Vy4tL320E6g3hpb
            SQsshOiMtNxq6b6TkgIgXkHxczeSy8QdQNNgNsGAGFN/5jLq9yKwqwT1K/g8huk=
            -----END CERTIFICATE-----
            """;

    @TempDir Path directory;

    private Path file(String name) {
        return directory.resolve(name);
    }

    private Path ca() throws Exception {
        return CERTIFICATES.certificatePem(file("ca.pem"), TestCertificates.CA);
    }

    private TlsSettings pem(Path chain, Path key, String password) throws Exception {
        return new TlsSettings(
                null,
                new TlsSettings.PemKey(chain, key, password),
                null,
                ca(),
                TlsSettings.TLS_1_3,
                true);
    }

    private TlsSettings client(String alias) throws Exception {
        return pem(
                CERTIFICATES.certificatePem(file("client.pem"), alias),
                CERTIFICATES.keyPem(file("client.key"), alias),
                null);
    }

    private static TlsSettings stores(TlsSettings.Store keys, TlsSettings.Store trusted) {
        return new TlsSettings(keys, null, trusted, null, TlsSettings.TLS_1_3, true);
    }

    /** Connects to a server that requires a certificate; returns the name that it was shown. */
    private static String shown(Tls tls) throws Exception {
        try (SSLServerSocket server =
                (SSLServerSocket)
                        CERTIFICATES
                                .server(TestCertificates.SERVER)
                                .getServerSocketFactory()
                                .createServerSocket(0, 5, InetAddress.getLoopbackAddress())) {
            server.setNeedClientAuth(true);
            CompletableFuture<String> name = new CompletableFuture<>();
            Thread thread =
                    new Thread(
                            () -> {
                                try (SSLSocket socket = (SSLSocket) server.accept()) {
                                    name.complete(socket.getSession().getPeerPrincipal() + "");
                                } catch (IOException e) {
                                    name.completeExceptionally(e);
                                }
                            });
            thread.start();
            ClientOptions options =
                    new ClientOptions("app", "test", 5_000, 5_000, new ChunkPool(1), tls, null);
            Endpoint endpoint = Endpoint.tcp("127.0.0.1", server.getLocalPort());
            try (FrameSocket socket = FrameSocket.open(endpoint, options, null)) {
                new ConnectionWaits(socket, options).connect();
                return name.get(20, TimeUnit.SECONDS);
            }
        }
    }

    @Test
    void aCertificateMustHaveTheNameOfAResolvedEndpoint() throws Exception {
        Tls tls = Tls.of(new TlsSettings(null, null, null, ca(), TlsSettings.TLS_1_3, true), false);
        Endpoint endpoint = Endpoint.tcp("127.0.0.1", 7337);
        assertEquals("127.0.0.1", tls.engine(endpoint).getPeerHost());
        assertEquals(
                "sluice.test", tls.withNames(e -> "sluice.test").engine(endpoint).getPeerHost());
    }

    private static String problem(TlsSettings settings) {
        IllegalArgumentException failure =
                assertThrows(IllegalArgumentException.class, () -> Tls.of(settings, false));
        StringWriter all = new StringWriter();
        failure.printStackTrace(new PrintWriter(all));
        assertFalse(all.toString().contains(TestCertificates.PASSWORD), all.toString());
        return failure.getMessage();
    }

    @ParameterizedTest
    @ValueSource(strings = {"PKCS12", "JKS"})
    void storesAreRead(String type) throws Exception {
        String password = TestCertificates.PASSWORD;
        TlsSettings settings =
                stores(
                        new TlsSettings.Store(
                                CERTIFICATES.keyStore(file("keys"), type, TestCertificates.CLIENT),
                                type,
                                password,
                                null),
                        new TlsSettings.Store(
                                CERTIFICATES.trustStore(file("trusted"), type, TestCertificates.CA),
                                type,
                                password,
                                null));
        assertEquals("CN=client", shown(Tls.of(settings, false)));
        assertFalse(settings.toString().contains(password), settings.toString());
    }

    @Test
    void anEncryptedKeyIsRead() throws Exception {
        Path chain = Files.writeString(file("c.pem"), CERTIFICATE_OF_OPENSSL);
        Path key = Files.writeString(file("encrypted.key"), KEY_OF_OPENSSL);
        TlsSettings settings = pem(chain, key, TestCertificates.PASSWORD);
        assertTrue(Tls.of(settings, false).isOn());
        assertFalse(settings.toString().contains(TestCertificates.PASSWORD), settings.toString());

        Path old = Files.writeString(file("old.key"), KEY_IN_TRIPLE_DES);
        String unreadable = problem(pem(chain, old, TestCertificates.PASSWORD));
        assertTrue(unreadable.contains("openssl pkcs8 -topk8 -v2 aes-256-cbc"), unreadable);

        String missing = problem(pem(chain, key, null));
        assertTrue(missing.contains("spark.sluice.ssl.privateKeyPassword"), missing);
        String wrong = problem(pem(chain, key, "wrong-9876"));
        assertTrue(wrong.contains("correct spark.sluice.ssl.privateKeyPassword"), wrong);
        assertFalse(wrong.contains("wrong-9876"), wrong);
    }

    @Test
    void changedFilesAreUsedByNewConnections() throws Exception {
        Tls tls = Tls.of(client(TestCertificates.CLIENT), false);
        assertEquals("CN=client", shown(tls));
        Path key = file("client.key");
        CERTIFICATES.certificatePem(file("client.pem"), TestCertificates.OTHER_CLIENT);
        assertEquals("CN=client", shown(tls), "a certificate without its key is not used");
        CERTIFICATES.keyPem(key, TestCertificates.OTHER_CLIENT);
        // Both keys have the same length, and file systems may count time in seconds.
        Files.setLastModifiedTime(key, java.nio.file.attribute.FileTime.fromMillis(4_000));
        assertEquals("CN=other-client", shown(tls));
        Files.delete(key);
        assertEquals("CN=other-client", shown(tls), "a missing file changes nothing");
        CERTIFICATES.certificatePem(file("client.pem"), TestCertificates.CLIENT);
        CERTIFICATES.keyPem(key, TestCertificates.CLIENT);
        assertEquals("CN=client", shown(tls));
    }

    @Test
    void filesThatCannotBeUsedAreNamed() throws Exception {
        Path chain = CERTIFICATES.certificatePem(file("c.pem"), TestCertificates.CLIENT);
        Path key = CERTIFICATES.keyPem(file("c.key"), TestCertificates.CLIENT);
        assertEquals(
                "spark.sluice.ssl.certChain cannot be used: "
                        + file("none.pem")
                        + ": there is no such file on this host",
                problem(pem(file("none.pem"), key, null)));
        assertEquals(
                "spark.sluice.ssl.privateKey cannot be used: "
                        + chain
                        + ": it has no private key in PEM form",
                problem(pem(chain, chain, null)));
        Path other = CERTIFICATES.keyPem(file("other.key"), TestCertificates.STRANGER);
        assertEquals(
                "spark.sluice.ssl.privateKey cannot be used: "
                        + other
                        + ": it is not the key of the first certificate in "
                        + chain,
                problem(pem(chain, other, null)));
        Path old =
                Files.writeString(
                        file("old.key"), TestCertificates.pem("EC PRIVATE KEY", new byte[] {48}));
        assertTrue(problem(pem(chain, old, null)).contains("openssl pkcs8 -topk8"));
        Path garbage =
                Files.writeString(
                        file("garbage.pem"),
                        TestCertificates.pem("CERTIFICATE", new byte[] {1, 2, 3}));
        assertTrue(
                problem(pem(garbage, key, null)).startsWith("spark.sluice.ssl.certChain cannot"));
    }

    @Test
    void storesThatCannotBeUsedAreNamed() throws Exception {
        Path keys = CERTIFICATES.keyStore(file("keys"), "PKCS12", TestCertificates.CLIENT);
        Path trusted = CERTIFICATES.trustStore(file("trusted"), "PKCS12", TestCertificates.CA);
        TlsSettings.Store good =
                new TlsSettings.Store(trusted, "PKCS12", TestCertificates.PASSWORD, null);
        String wrong =
                problem(stores(new TlsSettings.Store(keys, "PKCS12", "wrong-9876", null), good));
        assertTrue(wrong.startsWith("spark.sluice.ssl.keyStore cannot be used: " + keys), wrong);
        assertFalse(wrong.contains("wrong-9876"), wrong);
        String noKey = problem(stores(good, good));
        assertTrue(noKey.contains("it has no private key"), noKey);
        TlsSettings.Store keysOnly =
                new TlsSettings.Store(keys, "PKCS12", TestCertificates.PASSWORD, null);
        String trustsNobody = problem(stores(keysOnly, keysOnly));
        assertTrue(
                trustsNobody.startsWith("spark.sluice.ssl.trustStore cannot be used"),
                trustsNobody);
        assertTrue(trustsNobody.contains("spark.sluice.ssl.caFile"), trustsNobody);
        String type =
                problem(stores(new TlsSettings.Store(keys, "NO-SUCH", "x-secret", null), good));
        assertTrue(type.contains("NO-SUCH"), type);
    }
}
