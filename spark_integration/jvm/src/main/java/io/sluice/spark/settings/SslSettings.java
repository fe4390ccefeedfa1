package io.sluice.spark.settings;

import io.sluice.client.tls.Tls;
import io.sluice.client.tls.TlsSettings;
import io.sluice.client.wire.Endpoint;
import java.nio.file.Path;
import java.util.List;
import java.util.Locale;
import java.util.function.Consumer;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;

/**
 * The settings {@code spark.sluice.ssl.*}. Where {@code spark.ssl.rpc.enabled} is true, they are
 * taken from Spark's own: {@code spark.ssl.rpc.*}, then {@code spark.ssl.*}.
 *
 * @param tls the settings of TLS; null when it is off
 * @param needsEncryptedPeers whether Spark's own settings ask for encryption between hosts, so that
 *     TaskManagers must encrypt, too
 */
public record SslSettings(TlsSettings tls, boolean needsEncryptedPeers) {
    static final String RPC_SSL = "spark.ssl.rpc.enabled";
    static final String NETWORK_CRYPTO = "spark.network.crypto.enabled";
    private static final List<String> OF_SPARK = List.of("spark.ssl.rpc.", "spark.ssl.");

    static final List<SluiceSettings.Entry> ENTRIES =
            List.of(
                    new SluiceSettings.Entry(
                            TlsSettings.ENABLED,
                            RPC_SSL,
                            "true or false",
                            "whether TCP connections to TaskManagers use TLS; not set: as"
                                    + " spark.ssl.rpc.enabled says"),
                    new SluiceSettings.Entry(
                            TlsSettings.CERT_CHAIN,
                            "",
                            "path on each host, or empty",
                            "this side's certificate in PEM form, then those of intermediate"
                                    + " authorities"),
                    new SluiceSettings.Entry(
                            TlsSettings.PRIVATE_KEY,
                            "",
                            "path on each host, or empty",
                            "the key of that certificate: PKCS8 in PEM form"),
                    new SluiceSettings.Entry(
                            TlsSettings.PRIVATE_KEY_PASSWORD,
                            "",
                            "text or empty",
                            "the password of that key, if it is encrypted"),
                    new SluiceSettings.Entry(
                            TlsSettings.CA_FILE,
                            "",
                            "path on each host, or empty",
                            "the certificates of the authorities to trust, in PEM form"),
                    new SluiceSettings.Entry(
                            TlsSettings.KEY_STORE,
                            "",
                            "path on each host, or empty",
                            "a key store with this side's key and certificate, in place of PEM"
                                    + " files"),
                    new SluiceSettings.Entry(
                            TlsSettings.KEY_STORE_PASSWORD,
                            "",
                            "text or empty",
                            "the password of the key store"),
                    new SluiceSettings.Entry(
                            TlsSettings.KEY_PASSWORD,
                            "",
                            "text or empty",
                            "the password of the key in the key store; empty: that of the store"),
                    new SluiceSettings.Entry(
                            TlsSettings.KEY_STORE_TYPE,
                            "PKCS12",
                            "PKCS12, JKS or another type of Java's",
                            "the form of the key store"),
                    new SluiceSettings.Entry(
                            TlsSettings.TRUST_STORE,
                            "",
                            "path on each host, or empty",
                            "a store with the certificates of the authorities to trust, in place of"
                                    + " a PEM file"),
                    new SluiceSettings.Entry(
                            TlsSettings.TRUST_STORE_PASSWORD,
                            "",
                            "text or empty",
                            "the password of the trust store, if it needs one"),
                    new SluiceSettings.Entry(
                            TlsSettings.TRUST_STORE_TYPE,
                            "PKCS12",
                            "PKCS12, JKS or another type of Java's",
                            "the form of the trust store"),
                    new SluiceSettings.Entry(
                            TlsSettings.PROTOCOL,
                            TlsSettings.TLS_1_3,
                            "TLSv1.3 or TLSv1.2",
                            "the lowest version of TLS to speak"),
                    new SluiceSettings.Entry(
                            TlsSettings.CHECK_HOST_NAME,
                            "true",
                            "true or false",
                            "whether a TaskManager's certificate must name the host of its"
                                    + " endpoint"));

    /** Reads the files; the result is for all connections of this process. */
    public Tls load() {
        return Tls.of(tls, needsEncryptedPeers);
    }

    /**
     * Reads the settings.
     *
     * @param given returns a setting, or null if it is not set
     * @param endpoints the text of {@code spark.sluice.endpoints}, which is valid or known not to
     *     be
     * @param problems takes everything that is wrong
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
        List<Endpoint> endpoints;
        try {
            endpoints = Endpoint.parseList(text, "host");
        } catch (IllegalArgumentException e) {
            return; // It is among the problems already.
        }
        List<String> plain =
                endpoints.stream()
                        .filter(endpoint -> !endpoint.isUnix())
                        .map(Endpoint::toString)
                        .toList();
        if (!plain.isEmpty()) {
            problems.accept(
                    asks
                            + " is true, but connections to "
                            + String.join(", ", plain)
                            + " would not be encrypted: set "
                            + TlsSettings.ENABLED
                            + "=true, with "
                            + TlsSettings.CA_FILE
                            + ", "
                            + TlsSettings.CERT_CHAIN
                            + " and "
                            + TlsSettings.PRIVATE_KEY
                            + ", or list unix:/PATH only in "
                            + SluiceSettings.ENDPOINTS);
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
        // A password belongs to a file: Spark's go together with Spark's files only.
        Taken key = new Taken(reading, ofRpc && !hasOwnKey);
        Taken trust = new Taken(reading, ofRpc && !hasOwnTrust);

        TlsSettings.Store keyStore = null;
        TlsSettings.PemKey pemKey = null;
        Path store = key.path(TlsSettings.KEY_STORE);
        Path chain = key.path(TlsSettings.CERT_CHAIN);
        Path privateKey = key.path(TlsSettings.PRIVATE_KEY);
        if (store != null && hasOwnKey && (chain != null || privateKey != null)) {
            reading.problems.accept(
                    "set either "
                            + TlsSettings.KEY_STORE
                            + " or "
                            + TlsSettings.CERT_CHAIN
                            + " and "
                            + TlsSettings.PRIVATE_KEY
                            + ", not both");
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
                    TlsSettings.CERT_CHAIN
                            + " and "
                            + TlsSettings.PRIVATE_KEY
                            + " belong together: set both");
        }

        Path trustStore = trust.path(TlsSettings.TRUST_STORE);
        Path caFile = trust.path(TlsSettings.CA_FILE);
        if (trustStore == null && caFile == null) {
            reading.problems.accept(
                    "TLS is on, but nothing says whom to trust: set "
                            + TlsSettings.CA_FILE
                            + " or "
                            + TlsSettings.TRUST_STORE);
        } else if (trustStore != null && caFile != null) {
            reading.problems.accept(
                    "set either "
                            + TlsSettings.CA_FILE
                            + " or "
                            + TlsSettings.TRUST_STORE
                            + ", not both");
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
        // Spark's TLS means any version of Java's.
        if (!isOwn && text.equals("TLS")) {
            return TlsSettings.TLS_1_2;
        }
        if (!text.equals(TlsSettings.TLS_1_2) && !text.equals(TlsSettings.TLS_1_3)) {
            reading.problems.accept(
                    TlsSettings.PROTOCOL
                            + " is '"
                            + text
                            + "'"
                            + (isOwn ? "" : " (of spark.ssl)")
                            + ": must be one of TLSv1.3, TLSv1.2");
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

    /** Reads settings of one kind: Sluice's own, and Spark's where these may stand in. */
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
