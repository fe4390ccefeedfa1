package io.sluice.spark.settings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.sluice.client.tls.TlsSettings;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.regex.Pattern;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;

/** Where the settings of TLS come from, and which are refused. */
class SslSettingsTest {
    /** The default of spark.redaction.regex in all lines of Spark. */
    private static final Pattern REDACTED =
            Pattern.compile("(?i)secret|password|token|access[.]?key");

    private static final String SECRET = "open-sesame-4711";

    private final List<String> problems = new ArrayList<>();

    private SslSettings read(String... pairs) {
        Map<String, String> settings = new HashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            settings.put(pairs[i], pairs[i + 1]);
        }
        String endpoints = settings.getOrDefault(SluiceSettings.ENDPOINTS, "127.0.0.1:7337");
        return SslSettings.read(settings::get, endpoints, problems::add);
    }

    private String problem(String... pairs) {
        SslSettings settings = read(pairs);
        assertFalse(problems.isEmpty(), settings.toString());
        String message = String.join("; ", problems);
        problems.clear();
        assertFalse(message.contains(SECRET), message);
        return message;
    }

    @AfterEach
    void nothingElseWasWrong() {
        assertEquals(List.of(), problems);
    }

    @Test
    void withoutSettingsThereIsNoTls() {
        assertEquals(new SslSettings(null, false), read());
    }

    @Test
    void pemFilesAreTaken() {
        TlsSettings tls =
                read(
                                "spark.sluice.ssl.enabled", "true",
                                "spark.sluice.ssl.certChain", "/c.pem",
                                "spark.sluice.ssl.privateKey", "/c.key",
                                "spark.sluice.ssl.privateKeyPassword", SECRET,
                                "spark.sluice.ssl.caFile", "/ca.pem",
                                "spark.sluice.ssl.protocol", "TLSv1.2",
                                "spark.sluice.ssl.checkHostName", "false")
                        .tls();
        assertEquals(
                new TlsSettings(
                        null,
                        new TlsSettings.PemKey(Path.of("/c.pem"), Path.of("/c.key"), SECRET),
                        null,
                        Path.of("/ca.pem"),
                        "TLSv1.2",
                        false),
                tls);
    }

    @Test
    void sparksOwnSettingsStandIn() {
        SslSettings ssl =
                read(
                        "spark.ssl.rpc.enabled", "true",
                        "spark.ssl.keyStore", "/of-all.jks",
                        "spark.ssl.rpc.keyStore", "/of-rpc.jks",
                        "spark.ssl.keyStorePassword", SECRET,
                        "spark.ssl.keyStoreType", "JKS",
                        "spark.ssl.rpc.trustStore", "/trusted.p12",
                        "spark.ssl.rpc.trustStorePassword", "other",
                        "spark.ssl.protocol", "TLS");
        assertTrue(ssl.needsEncryptedPeers());
        assertEquals(
                new TlsSettings(
                        new TlsSettings.Store(Path.of("/of-rpc.jks"), "JKS", SECRET, null),
                        null,
                        new TlsSettings.Store(Path.of("/trusted.p12"), "PKCS12", "other", null),
                        null,
                        "TLSv1.2",
                        true),
                ssl.tls());
    }

    @Test
    void sparksPasswordsDoNotBelongToSluicesFiles() {
        TlsSettings tls =
                read(
                                "spark.ssl.rpc.enabled", "true",
                                "spark.ssl.rpc.keyStore", "/of-rpc.jks",
                                "spark.ssl.rpc.keyStorePassword", SECRET,
                                "spark.ssl.rpc.trustStore", "/trusted.jks",
                                "spark.ssl.rpc.privateKeyPassword", SECRET,
                                "spark.sluice.ssl.certChain", "/c.pem",
                                "spark.sluice.ssl.privateKey", "/c.key",
                                "spark.sluice.ssl.caFile", "/ca.pem")
                        .tls();
        assertNull(tls.keyStore());
        assertNull(tls.trustStore());
        assertEquals(
                new TlsSettings.PemKey(Path.of("/c.pem"), Path.of("/c.key"), null), tls.pemKey());
    }

    @Test
    void sparksOwnSettingsDoNotStandInUnlessRpcIsEncrypted() {
        assertTrue(
                problem(
                                "spark.sluice.ssl.enabled", "true",
                                "spark.ssl.trustStore", "/trusted.jks",
                                "spark.ssl.trustStorePassword", SECRET)
                        .contains("nothing says whom to trust: set spark.sluice.ssl.caFile"));
    }

    @Test
    void halvesAndDoublesAreRefused() {
        String half =
                problem(
                        "spark.sluice.ssl.enabled", "true",
                        "spark.sluice.ssl.caFile", "/ca.pem",
                        "spark.sluice.ssl.certChain", "/c.pem");
        assertTrue(half.contains("belong together: set both"), half);
        String doubled =
                problem(
                        "spark.sluice.ssl.enabled", "true",
                        "spark.sluice.ssl.caFile", "/ca.pem",
                        "spark.sluice.ssl.trustStore", "/t.p12",
                        "spark.sluice.ssl.keyStore", "/k.p12",
                        "spark.sluice.ssl.keyStorePassword", SECRET,
                        "spark.sluice.ssl.certChain", "/c.pem",
                        "spark.sluice.ssl.protocol", "SSLv3");
        assertTrue(doubled.contains("set either spark.sluice.ssl.keyStore or"), doubled);
        assertTrue(doubled.contains("set either spark.sluice.ssl.caFile or"), doubled);
        assertTrue(doubled.contains("spark.sluice.ssl.protocol is 'SSLv3'"), doubled);
        String noPassword =
                problem(
                        "spark.sluice.ssl.enabled", "true",
                        "spark.sluice.ssl.caFile", "/ca.pem",
                        "spark.sluice.ssl.keyStore", "/k.p12");
        assertTrue(noPassword.contains("needs spark.sluice.ssl.keyStorePassword"), noPassword);
    }

    @Test
    void encryptionThatSparkAsksForIsNeverIgnored() {
        String crypto =
                problem(
                        "spark.network.crypto.enabled", "true",
                        "spark.sluice.endpoints", "unix:/s.sock,node-1:7337");
        assertTrue(crypto.contains("spark.network.crypto.enabled is true"), crypto);
        assertTrue(crypto.contains("connections to node-1:7337 would not"), crypto);
        assertTrue(crypto.contains("set spark.sluice.ssl.enabled=true"), crypto);
        String rpc = problem("spark.ssl.rpc.enabled", "true", "spark.sluice.ssl.enabled", "false");
        assertTrue(rpc.contains("spark.ssl.rpc.enabled is true"), rpc);
        assertEquals(
                new SslSettings(null, true),
                read(
                        "spark.network.crypto.enabled", "true",
                        "spark.sluice.endpoints", "unix:/s.sock"));
        assertTrue(
                read(
                                "spark.network.crypto.enabled", "true",
                                "spark.sluice.ssl.enabled", "true",
                                "spark.sluice.ssl.caFile", "/ca.pem")
                        .needsEncryptedPeers());
    }

    @Test
    void passwordsAreHiddenEverywhere() {
        List<String> passwords =
                SslSettings.ENTRIES.stream()
                        .filter(entry -> entry.meaning().contains("password"))
                        .map(SluiceSettings.Entry::key)
                        .toList();
        assertEquals(4, passwords.size());
        for (String key : passwords) {
            assertTrue(REDACTED.matcher(key).find(), key);
        }
        SslSettings settings =
                read(
                        "spark.sluice.ssl.enabled",
                        "true",
                        "spark.sluice.ssl.keyStore",
                        "/k.p12",
                        "spark.sluice.ssl.keyStorePassword",
                        SECRET,
                        "spark.sluice.ssl.keyPassword",
                        SECRET,
                        "spark.sluice.ssl.trustStore",
                        "/t.p12",
                        "spark.sluice.ssl.trustStorePassword",
                        SECRET);
        assertFalse(settings.toString().contains(SECRET), settings.toString());
        assertTrue(settings.toString().contains("/k.p12"), settings.toString());
    }

    @Test
    void flagsAreTrueOrFalse() {
        String wrong = problem("spark.sluice.ssl.enabled", "yes");
        assertEquals("spark.sluice.ssl.enabled is 'yes': must be one of true, false", wrong);
    }
}
