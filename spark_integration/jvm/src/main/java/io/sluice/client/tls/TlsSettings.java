package io.sluice.client.tls;

import java.nio.file.Path;
import java.util.List;
import java.util.Objects;
import java.util.stream.Stream;

/**
 * The settings of TLS. Keys, certificates and trusted authorities are in stores or PEM files.
 *
 * @param keyStore the store with this side's key and certificate, or null
 * @param pemKey this side's key and certificate in PEM files, or null
 * @param trustStore the store with the authorities to trust, or null
 * @param caFile the authorities to trust in a PEM file, or null
 * @param protocol the minimum version: TLSv1.2 or TLSv1.3
 * @param checkHostName whether a server's certificate must name the host of its endpoint
 */
public record TlsSettings(
        Store keyStore,
        PemKey pemKey,
        Store trustStore,
        Path caFile,
        String protocol,
        boolean checkHostName) {
    public static final String PREFIX = "spark.sluice.ssl.";
    public static final String ENABLED = PREFIX + "enabled";
    public static final String KEY_STORE = PREFIX + "keyStore";
    public static final String KEY_STORE_PASSWORD = PREFIX + "keyStorePassword";
    public static final String KEY_STORE_TYPE = PREFIX + "keyStoreType";
    public static final String KEY_PASSWORD = PREFIX + "keyPassword";
    public static final String CERT_CHAIN = PREFIX + "certChain";
    public static final String PRIVATE_KEY = PREFIX + "privateKey";
    public static final String PRIVATE_KEY_PASSWORD = PREFIX + "privateKeyPassword";
    public static final String TRUST_STORE = PREFIX + "trustStore";
    public static final String TRUST_STORE_PASSWORD = PREFIX + "trustStorePassword";
    public static final String TRUST_STORE_TYPE = PREFIX + "trustStoreType";
    public static final String CA_FILE = PREFIX + "caFile";
    public static final String PROTOCOL = PREFIX + "protocol";
    public static final String CHECK_HOST_NAME = PREFIX + "checkHostName";

    public static final String TLS_1_2 = "TLSv1.2";
    public static final String TLS_1_3 = "TLSv1.3";

    /**
     * A key store or a trust store.
     *
     * @param path its file
     * @param type its type as {@link java.security.KeyStore} names it
     * @param password its password, or null
     * @param keyPassword the password of its key, or null for that of the store
     */
    public record Store(Path path, String type, String password, String keyPassword) {
        @Override
        public String toString() {
            return path + " (" + type + ")";
        }
    }

    /**
     * A key and its certificate in PEM files.
     *
     * @param certChain the certificate, followed by those of intermediate authorities
     * @param privateKey the key in PKCS8
     * @param password the password of the key, or null
     */
    public record PemKey(Path certChain, Path privateKey, String password) {
        @Override
        public String toString() {
            return certChain + ", " + privateKey;
        }
    }

    /** Returns whether this side has a certificate to show. */
    boolean hasCertificate() {
        return keyStore != null || pemKey != null;
    }

    /** Returns the enabled versions. */
    String[] protocols() {
        return protocol.equals(TLS_1_2) ? new String[] {TLS_1_3, TLS_1_2} : new String[] {TLS_1_3};
    }

    /** Returns the files that hold keys and certificates. */
    List<Path> files() {
        return Stream.of(
                        keyStore == null ? null : keyStore.path(),
                        pemKey == null ? null : pemKey.certChain(),
                        pemKey == null ? null : pemKey.privateKey(),
                        trustStore == null ? null : trustStore.path(),
                        caFile)
                .filter(Objects::nonNull)
                .toList();
    }
}
