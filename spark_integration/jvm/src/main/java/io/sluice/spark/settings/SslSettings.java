package io.sluice.spark.settings;

import io.sluice.client.tls.Tls;
import io.sluice.client.tls.TlsSettings;
import io.sluice.spark.members.EndpointList;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;

/**
 * The settings {@code spark.sluice.ssl.*}. With {@code spark.ssl.rpc.enabled}, their defaults are
 * {@code spark.ssl.rpc.*}, then {@code spark.ssl.*}.
 *
 * @param tls the settings of TLS; null if it is off
 * @param needsEncryptedPeers whether Spark's settings require that TaskManagers encrypt, too
 */
public record SslSettings(TlsSettings tls, boolean needsEncryptedPeers) {
    static final String RPC_SSL = "spark.ssl.rpc.enabled";
    static final String NETWORK_CRYPTO = "spark.network.crypto.enabled";
    private static final List<String> OF_SPARK = List.of("spark.ssl.rpc.", "spark.ssl.");

    static final List<SluiceSettings.Entry> ENTRIES =
            SluiceSettings.Entry.parse(
                    """
                    spark.sluice.ssl.enabled | spark.ssl.rpc.enabled | true or false
                        whether TCP connections to TaskManagers use TLS; the default is
                        spark.ssl.rpc.enabled
                    spark.sluice.ssl.certChain |  | path on each host, or empty
                        certificate in PEM form, followed by those of intermediate authorities
                    spark.sluice.ssl.privateKey |  | path on each host, or empty
                        key of that certificate: PKCS8 in PEM form
                    spark.sluice.ssl.privateKeyPassword |  | text or empty
                        password of that key, if it is encrypted
                    spark.sluice.ssl.caFile |  | path on each host, or empty
                        certificates of the trusted authorities, in PEM form
                    spark.sluice.ssl.keyStore |  | path on each host, or empty
                        key store with key and certificate, instead of PEM files
                    spark.sluice.ssl.keyStorePassword |  | text or empty
                        password of the key store
                    spark.sluice.ssl.keyPassword |  | text or empty
                        password of the key in the key store; empty: that of the store
                    spark.sluice.ssl.keyStoreType | PKCS12 | PKCS12, JKS or another type of Java's
                        type of the key store
                    spark.sluice.ssl.trustStore |  | path on each host, or empty
                        store with the certificates of the trusted authorities, instead of a PEM
                        file
                    spark.sluice.ssl.trustStorePassword |  | text or empty
                        password of the trust store, if it has one
                    spark.sluice.ssl.trustStoreType | PKCS12 | PKCS12, JKS or another type of Java's
                        type of the trust store
                    spark.sluice.ssl.protocol | TLSv1.3 | TLSv1.3 or TLSv1.2
                        minimum version of TLS
                    spark.sluice.ssl.checkHostName | true | true or false
                        whether a TaskManager's certificate must name the host of its endpoint
                    """);

    /** Reads the files; the result is for all connections of this process. */
    public Tls load() {
        return Tls.of(tls, needsEncryptedPeers);
    }

    /**
     * Reads the settings.
     *
     * @param given returns a setting, or null if it is not set
     * @param endpoints {@code spark.sluice.endpoints}
     * @param problems collects problems
     */
    static SslSettings read(
            UnaryOperator<String> given, String endpoints, Consumer<String> problems) {
        Reading reading = new Reading(given, problems);
        boolean ofRpc = reading.isTrue(RPC_SSL, false);
        boolean crypto = reading.isTrue(NETWORK_CRYPTO, false);
        TlsSettings tls = null;
        if (reading.isTrue(TlsSettings.ENABLED, ofRpc)) {
            tls = readTls(reading, ofRpc);
        } else if (ofRpc || crypto) {
            refuseTcp(endpoints, ofRpc ? RPC_SSL : NETWORK_CRYPTO, problems);
        }
        return new SslSettings(tls, ofRpc || crypto);
    }

    private static void refuseTcp(String text, String asks, Consumer<String> problems) {
        List<String> plain;
        try {
            plain = EndpointList.parse(text, "host").tcp();
        } catch (IllegalArgumentException e) {
            return; // Already reported.
        }
        if (!plain.isEmpty()) {
            problems.accept(
                    String.format(
                            "%s is true, but connections to %s would not be encrypted: set %s=true,"
                                    + " with %s, %s and %s, or list unix:/PATH only in %s",
                            asks,
                            String.join(", ", plain),
                            TlsSettings.ENABLED,
                            TlsSettings.CA_FILE,
                            TlsSettings.CERT_CHAIN,
                            TlsSettings.PRIVATE_KEY,
                            SluiceSettings.ENDPOINTS));
        }
    }

    private static TlsSettings readTls(Reading reading, boolean ofRpc) {
        boolean hasOwnKey =
                isGiven(
                        reading,
                        TlsSettings.KEY_STORE,
                        TlsSettings.CERT_CHAIN,
                        TlsSettings.PRIVATE_KEY);
        boolean hasOwnTrust = isGiven(reading, TlsSettings.TRUST_STORE, TlsSettings.CA_FILE);
        // A password belongs to a file: Spark's passwords are used only with Spark's files.
        Taken key = new Taken(reading, ofRpc && !hasOwnKey);
        Taken trust = new Taken(reading, ofRpc && !hasOwnTrust);

        TlsSettings.Store keyStore = null;
        TlsSettings.PemKey pemKey = null;
        Path store = key.path(TlsSettings.KEY_STORE);
        Path chain = key.path(TlsSettings.CERT_CHAIN);
        Path privateKey = key.path(TlsSettings.PRIVATE_KEY);
        if (store != null && hasOwnKey && (chain != null || privateKey != null)) {
            reading.problems.accept(
                    String.format(
                            "set either %s or %s and %s, not both",
                            TlsSettings.KEY_STORE,
                            TlsSettings.CERT_CHAIN,
                            TlsSettings.PRIVATE_KEY));
        } else if (store != null) {
            keyStore =
                    new TlsSettings.Store(
                            store,
                            key.textOr(TlsSettings.KEY_STORE_TYPE, "PKCS12"),
                            key.text(TlsSettings.KEY_STORE_PASSWORD),
                            key.text(TlsSettings.KEY_PASSWORD));
            if (keyStore.password() == null) {
                reading.problems.accept(
                        TlsSettings.KEY_STORE + " needs " + TlsSettings.KEY_STORE_PASSWORD);
            }
        } else if (chain != null && privateKey != null) {
            pemKey =
                    new TlsSettings.PemKey(
                            chain, privateKey, key.text(TlsSettings.PRIVATE_KEY_PASSWORD));
        } else if (chain != null || privateKey != null) {
            reading.problems.accept(
                    String.format(
                            "%s and %s belong together: set both",
                            TlsSettings.CERT_CHAIN, TlsSettings.PRIVATE_KEY));
        }

        Path trustStore = trust.path(TlsSettings.TRUST_STORE);
        Path caFile = trust.path(TlsSettings.CA_FILE);
        if (trustStore == null && caFile == null) {
            reading.problems.accept(
                    String.format(
                            "TLS is on, but nothing says whom to trust: set %s or %s",
                            TlsSettings.CA_FILE, TlsSettings.TRUST_STORE));
        } else if (trustStore != null && caFile != null) {
            reading.problems.accept(
                    String.format(
                            "set either %s or %s, not both",
                            TlsSettings.CA_FILE, TlsSettings.TRUST_STORE));
        }
        return new TlsSettings(
                keyStore,
                pemKey,
                trustStore == null
                        ? null
                        : new TlsSettings.Store(
                                trustStore,
                                trust.textOr(TlsSettings.TRUST_STORE_TYPE, "PKCS12"),
                                trust.text(TlsSettings.TRUST_STORE_PASSWORD),
                                null),
                caFile,
                protocol(reading, new Taken(reading, ofRpc)),
                reading.isTrue(TlsSettings.CHECK_HOST_NAME, true));
    }

    private static boolean isGiven(Reading reading, String... keys) {
        return Stream.of(keys).anyMatch(key -> reading.given.apply(key) != null);
    }

    private static String protocol(Reading reading, Taken taken) {
        String text = taken.textOr(TlsSettings.PROTOCOL, TlsSettings.TLS_1_3);
        boolean isOwn = reading.given.apply(TlsSettings.PROTOCOL) != null;
        // In Spark, TLS means any version.
        if (!isOwn && text.equals("TLS")) {
            return TlsSettings.TLS_1_2;
        }
        if (!text.equals(TlsSettings.TLS_1_2) && !text.equals(TlsSettings.TLS_1_3)) {
            reading.problems.accept(
                    String.format(
                            "%s is '%s'%s: must be one of TLSv1.3, TLSv1.2",
                            TlsSettings.PROTOCOL, text, isOwn ? "" : " (of spark.ssl)"));
        }
        return text;
    }

    /** The settings of an application, and where problems with them go. */
    private record Reading(UnaryOperator<String> given, Consumer<String> problems) {
        boolean isTrue(String key, boolean otherwise) {
            String value = given.apply(key);
            if (value == null) {
                return otherwise;
            }
            String text = value.trim().toLowerCase(Locale.ROOT);
            if (!text.equals("true") && !text.equals("false")) {
                problems.accept(key + " is '" + text + "': must be one of true, false");
            }
            return text.equals("true");
        }
    }

    /** Reads Sluice's own settings, and Spark's as their defaults. */
    private record Taken(Reading reading, boolean ofSpark) {
        /** Returns the value, or null. */
        String text(String key) {
            String value = reading.given.apply(key);
            if (value == null && ofSpark) {
                String name = key.substring(TlsSettings.PREFIX.length());
                for (String prefix : OF_SPARK) {
                    value = value == null ? reading.given.apply(prefix + name) : value;
                }
            }
            return value;
        }

        String textOr(String key, String otherwise) {
            String value = text(key);
            return value == null ? otherwise : value;
        }

        Path path(String key) {
            String value = text(key);
            return value == null ? null : Path.of(value);
        }
    }
}
