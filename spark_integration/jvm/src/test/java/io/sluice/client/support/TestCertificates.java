package io.sluice.client.support;

import io.sluice.client.connection.ClientOptions;
import io.sluice.client.tls.Tls;
import io.sluice.client.tls.TlsSettings;
import io.sluice.client.wire.ChunkPool;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.PrivateKey;
import java.security.Security;
import java.security.cert.Certificate;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Comparator;
import java.util.List;
import java.util.stream.Stream;
import javax.net.ssl.KeyManagerFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

/** Certificates that the JDK's keytool makes for the tests, once for all of them. */
public final class TestCertificates {
    public static final String PASSWORD = "open-sesame-4711";
    public static final String CA = "ca";

    /** For localhost and 127.0.0.1, with a key of RSA. */
    public static final String SERVER = "server";

    public static final String ELSEWHERE = "elsewhere";
    public static final String EXPIRED = "expired";
    public static final String CLIENT = "client";
    public static final String OTHER_CLIENT = "other-client";

    /** Signed by itself. */
    public static final String STRANGER = "stranger";

    private static TestCertificates shared;

    private final Path directory;
    private final KeyStore store;

    static {
        // Keys are renewed often, so that larger transfers meet updates in both directions. The JDK
        // reads this once, before its first connection.
        Security.setProperty(
                "jdk.tls.keyLimits",
                "AES/GCM/NoPadding KeyUpdate 2^20, ChaCha20-Poly1305 KeyUpdate 2^20");
    }

    private TestCertificates() throws IOException, GeneralSecurityException {
        directory = Files.createTempDirectory("sluice-certificates-");
        Runtime.getRuntime().addShutdownHook(new Thread(() -> remove(directory)));
        make(CA, "-keyalg", "EC", "-ext", "bc:c");
        make(SERVER, "-keyalg", "RSA", "-signer", CA, "-ext", "san=dns:localhost,ip:127.0.0.1");
        make(ELSEWHERE, "-keyalg", "EC", "-signer", CA, "-ext", "san=dns:elsewhere.example");
        make(
                EXPIRED,
                "-keyalg",
                "EC",
                "-signer",
                CA,
                "-startdate",
                "-9d",
                "-validity",
                "1",
                "-ext",
                "san=dns:localhost,ip:127.0.0.1");
        make(CLIENT, "-keyalg", "EC", "-signer", CA);
        make(OTHER_CLIENT, "-keyalg", "EC", "-signer", CA);
        make(STRANGER, "-keyalg", "EC", "-ext", "san=dns:localhost,ip:127.0.0.1");
        store = KeyStore.getInstance("PKCS12");
        try (InputStream in = Files.newInputStream(directory.resolve("all.p12"))) {
            store.load(in, PASSWORD.toCharArray());
        }
    }

    public static synchronized TestCertificates get() {
        try {
            shared = shared == null ? new TestCertificates() : shared;
            return shared;
        } catch (IOException | GeneralSecurityException e) {
            throw new IllegalStateException(e);
        }
    }

    private static void remove(Path directory) {
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path file : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(file);
            }
        } catch (IOException e) {
            // It is a temporary directory.
        }
    }

    private void make(String alias, String... options) throws IOException {
        List<String> command = new ArrayList<>();
        command.add(Path.of(System.getProperty("java.home"), "bin", "keytool").toString());
        command.addAll(List.of("-genkeypair", "-keystore", directory.resolve("all.p12") + ""));
        command.addAll(List.of("-storetype", "PKCS12", "-storepass", PASSWORD));
        command.addAll(List.of("-alias", alias, "-dname", "CN=" + alias));
        command.addAll(List.of(options));
        Process process = new ProcessBuilder(command).redirectErrorStream(true).start();
        try {
            String output =
                    new String(process.getInputStream().readAllBytes(), StandardCharsets.UTF_8);
            if (process.waitFor() != 0) {
                throw new IOException(output);
            }
        } catch (InterruptedException e) {
            throw new IOException(e);
        }
    }

    public X509Certificate certificate(String alias) throws GeneralSecurityException {
        return (X509Certificate) store.getCertificate(alias);
    }

    public PrivateKey key(String alias) throws GeneralSecurityException {
        return (PrivateKey) store.getKey(alias, PASSWORD.toCharArray());
    }

    /** Writes a store with the key of an alias, its password being {@link #PASSWORD}. */
    public Path keyStore(Path file, String type, String alias)
            throws IOException, GeneralSecurityException {
        KeyStore one = KeyStore.getInstance(type);
        one.load(null, null);
        Certificate[] chain = store.getCertificateChain(alias);
        one.setKeyEntry(alias, key(alias), PASSWORD.toCharArray(), chain);
        return write(one, file);
    }

    /** Writes a store that trusts an alias. */
    public Path trustStore(Path file, String type, String alias)
            throws IOException, GeneralSecurityException {
        KeyStore one = KeyStore.getInstance(type);
        one.load(null, null);
        one.setCertificateEntry(alias, certificate(alias));
        return write(one, file);
    }

    private static Path write(KeyStore store, Path file)
            throws IOException, GeneralSecurityException {
        try (OutputStream out = Files.newOutputStream(file)) {
            store.store(out, PASSWORD.toCharArray());
        }
        return file;
    }

    public Path certificatePem(Path file, String alias)
            throws IOException, GeneralSecurityException {
        return Files.writeString(file, pem("CERTIFICATE", certificate(alias).getEncoded()));
    }

    public Path keyPem(Path file, String alias) throws IOException, GeneralSecurityException {
        return Files.writeString(file, pem("PRIVATE KEY", key(alias).getEncoded()));
    }

    public static String pem(String label, byte[] der) {
        String lines = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(der);
        return "# made by a test\n-----BEGIN %s-----\n%s\n-----END %s-----\n"
                .formatted(label, lines, label);
    }

    /** Returns the context of a server that shows the certificate of an alias. */
    public SSLContext server(String alias) throws GeneralSecurityException, IOException {
        KeyStore own = KeyStore.getInstance("PKCS12");
        own.load(null, null);
        own.setKeyEntry(
                alias, key(alias), PASSWORD.toCharArray(), store.getCertificateChain(alias));
        KeyManagerFactory keys =
                KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm());
        keys.init(own, PASSWORD.toCharArray());
        KeyStore trusted = KeyStore.getInstance("PKCS12");
        trusted.load(null, null);
        trusted.setCertificateEntry(CA, certificate(CA));
        TrustManagerFactory authorities =
                TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        authorities.init(trusted);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(keys.getKeyManagers(), authorities.getTrustManagers(), null);
        return context;
    }

    /** Returns PEM settings of a client. */
    public TlsSettings settings(String alias, String trusted) throws IOException {
        return settings(alias, trusted, TlsSettings.TLS_1_3, true);
    }

    /**
     * Returns PEM settings of a client.
     *
     * @param alias its certificate, or null for none
     */
    public TlsSettings settings(
            String alias, String trusted, String protocol, boolean checkHostName)
            throws IOException {
        try {
            Path files = Files.createTempDirectory(directory, "pem-");
            return new TlsSettings(
                    null,
                    alias == null
                            ? null
                            : new TlsSettings.PemKey(
                                    certificatePem(files.resolve("cert.pem"), alias),
                                    keyPem(files.resolve("key.pem"), alias),
                                    null),
                    null,
                    certificatePem(files.resolve("ca.pem"), trusted),
                    protocol,
                    checkHostName);
        } catch (GeneralSecurityException e) {
            throw new IllegalStateException(e);
        }
    }

    /** Returns the options of a client with the certificate of an alias, which trusts the CA. */
    public ClientOptions options(String alias, ChunkPool chunks) throws IOException {
        return options(settings(alias, CA), chunks);
    }

    public static ClientOptions options(TlsSettings settings, ChunkPool chunks) {
        return new ClientOptions(
                "app", "test", 5_000, 5_000, chunks, Tls.of(settings, false), null);
    }
}
